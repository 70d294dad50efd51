"""Calibration from a handful of kernels measured on the new GPU, by what models get wrong on GPUs they have not seen.

The probes condition the covariance of a family's errors (`probe_prior.py`): factors on compute, memory and host floor
enter the model's own formula, everything else the errors hold is a factor per call that fades out away from the probes.
Probes far off the others count less (Student's t). `steptime kernels predict --probes` and `steptime transfer --probes`
read the probes from a table; `design` says which calls are worth measuring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.transfer.probe_prior import CORRECTED, ProbePrior, Seen, look
from pipeline.transfer.utilisation import Correction, UtilisationModel

Array = npt.NDArray[np.float64]

DEGREES = 4.0
"""Degrees of freedom of a probe's error: a measurement disturbed by another process weighs little."""

ROUNDS = 8
"""Rounds of taking the model's slopes at the factors found, and the probes' weights at their errors."""

FARTHEST = 1.5
"""Largest log factor of the model's formula: probes beyond it are of another kernel or another unit."""

MOST_CANDIDATES = 400
"""Calls that `design` looks at."""

TENTH = 1.2816
"""Standard deviations from the middle to p90."""


@dataclass(frozen=True)
class Calibration:
    """What probes of one family ask for.

    Attributes:
        model, gpu: what was calibrated.
        probes: the rows measured.
        correction: factors of the model's formula.
        seen: the probes as the covariance sees them, around the correction.
        weights: of the probes in everything the correction leaves, shape (probes,).
        noise: variance of each probe, shape (probes,).
    """

    model: UtilisationModel = field(repr=False)
    gpu: GpuSpec = field(repr=False)
    probes: pd.DataFrame = field(repr=False)
    correction: Correction
    seen: Seen = field(repr=False)
    weights: Array
    noise: Array

    @cached_property
    def prior(self) -> ProbePrior:
        """The family's covariance."""
        return ProbePrior.of(self.model.probe_prior)

    def predict(self, calls: pd.DataFrame) -> tuple[Array, Array, Array]:
        """Kernel time and latency in µs, and the log half-width to p90 of either; each of shape (rows,)."""
        kernel, latency = self.model.kernel_and_latency(calls, self.gpu, correction=self.correction)
        seen = look(self.model, calls, self.gpu, self.correction)
        factor = np.exp(self.prior.covariance(seen, self.seen, corrected=False) @ self.weights)
        across = self.prior.covariance(seen, self.seen)
        known = self.prior.covariance(self.seen, self.seen) + np.diag(self.noise)
        left = self.prior.variance(seen) - (across * np.linalg.solve(known, across.T).T).sum(axis=1)
        sigma = np.sqrt(np.maximum(left, 0.0) + self.prior.noise**2)
        return kernel * factor, latency * factor, TENTH * sigma


def calibrate(model: UtilisationModel, probes: pd.DataFrame, gpu: GpuSpec) -> Calibration:
    """Condition a model's errors on probes of its family.

    Args:
        model: the cross-GPU model.
        probes: rows with `op`, dims and `latency_us`, measured on `gpu`.
        gpu: the GPU of the probes.
    """
    target = np.log(probes["latency_us"].to_numpy(dtype=np.float64))
    prior = ProbePrior.of(model.probe_prior)
    scale = np.asarray(prior.effects[: len(CORRECTED)]) ** 2
    factors, trust = np.zeros(len(CORRECTED)), np.ones(len(probes))
    for _ in range(ROUNDS):
        correction = Correction(*(float(v) for v in factors))
        seen = look(model, probes, gpu, correction)
        slopes = seen.effects[:, : len(CORRECTED)]
        # linear around the factors at hand: what the probes would show had the factors been 1
        off = target - seen.log_latency + slopes @ factors
        covariance, noise = prior.covariance(seen, seen), prior.noise**2 / trust
        weights = np.linalg.solve(covariance + np.diag(noise), off)
        missed = off - covariance @ weights
        trust = (DEGREES + 1.0) / (DEGREES + (missed / prior.noise) ** 2)
        factors = np.clip(scale * (slopes.T @ weights), -FARTHEST, FARTHEST)
    correction = Correction(*(float(v) for v in factors))
    seen = look(model, probes, gpu, correction)
    rest = prior.covariance(seen, seen, corrected=False) + np.diag(noise)
    return Calibration(
        model, gpu, probes, correction, seen, np.linalg.solve(rest, target - seen.log_latency), noise
    )  # fmt: skip


def calibrate_all(models: dict[str, UtilisationModel], probes: pd.DataFrame, gpu: GpuSpec) -> dict[str, Calibration]:
    """Calibrate every model whose family has probes."""
    family = probes["family"].astype(str)
    return {name: calibrate(model, probes[family == name], gpu) for name, model in models.items() if
            (family == name).any()}  # fmt: skip


def design(
    model: UtilisationModel, candidates: pd.DataFrame, gpu: GpuSpec, count: int = 10, most: int = MOST_CANDIDATES
) -> pd.DataFrame:
    """The calls to measure on a new GPU: those that tell most about all candidates, before anything is measured.

    Greedy: each probe is the call that lowers the expected squared error over the candidates most, under the family's
    covariance. Of the new GPU only the spec file enters.

    Args:
        model: the family's cross-GPU model, as in `kernels.load_models()["gemm"]`.
        candidates: calls of that family, of the sizes that matter.
        gpu: the GPU to be measured.
        count: probes.
        most: candidates that are looked at, evenly spaced.
    """
    step = max(1, -(-len(candidates) // most))
    pool = candidates.iloc[::step]
    prior, seen = ProbePrior.of(model.probe_prior), look(model, pool, gpu)
    covariance = prior.covariance(seen, seen)
    chosen: list[int] = []
    for _ in range(min(count, len(pool))):
        # posterior covariance column norms over posterior variance: the error that measuring a call would remove
        gain = (covariance**2).sum(axis=0) / (np.diag(covariance) + prior.noise**2)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        column = covariance[:, best : best + 1]
        covariance = covariance - column @ column.T / (covariance[best, best] + prior.noise**2)
    return pool.iloc[chosen]
