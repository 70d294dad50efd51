"""Calibration of a cross-GPU model with a few kernels measured on the new GPU (probes).

The probes condition the covariance of a family's errors (`probe_prior.py`). The covariance is learned from errors on
GPUs that a model has not seen. Conditioning gives two kinds of factors:
- Factors on compute, memory and host floor are inserted into the model's own formula.
- The rest of the errors gives a factor per call. It approaches 1 with growing distance from the probes.

Probes that disagree with the others have less weight (Student's t). `steptime kernels predict --probes` and
`steptime transfer --probes` read the probes from a table. `choose_probes` selects the calls to measure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.transfer.probe_prior import CORRECTED_EFFECTS, CovarianceInputs, ProbePrior, covariance_inputs
from pipeline.transfer.utilisation import Correction, UtilisationModel

Array = npt.NDArray[np.float64]

DEGREES = 4.0
"""Degrees of freedom of Student's t for a probe's error.

The value is low, so that a measurement which another process disturbed has little weight."""

ROUNDS = 8
"""Iterations of `calibrate`. Each recomputes the model's slopes at the current factors, and the probes' weights."""

MAX_LOG_FACTOR = 1.5
"""Largest log factor in the model's formula; a larger one means that probes have another kernel or another unit."""

MAX_CANDIDATES = 400
"""Largest number of calls among which `choose_probes` selects."""

P90_SIGMAS = 1.2816
"""Distance of p90 from the median of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Calibration:
    """Calibration of one family's model with probes.

    Attributes:
        model, gpu: the model, and the GPU for which it is calibrated.
        probes: the measured rows.
        correction: log factors in the model's formula.
        inputs: inputs of the covariance for the probes, at the correction.
        weights: weights of the probes for the errors that remain after the correction, shape (probes,).
        noise: variance of each probe, shape (probes,).
    """

    model: UtilisationModel = field(repr=False)
    gpu: GpuSpec = field(repr=False)
    probes: pd.DataFrame = field(repr=False)
    correction: Correction
    inputs: CovarianceInputs = field(repr=False)
    weights: Array
    noise: Array

    @cached_property
    def prior(self) -> ProbePrior:
        """The family's covariance."""
        return ProbePrior.of(self.model.probe_prior)

    def predict(self, calls: pd.DataFrame) -> tuple[Array, Array, Array]:
        """Kernel time and latency in µs, and the log distance from each to its p90; each of shape (rows,)."""
        kernel, latency = self.model.kernel_and_latency(calls, self.gpu, correction=self.correction)
        inputs = covariance_inputs(self.model, calls, self.gpu, self.correction)
        factor = np.exp(self.prior.covariance(inputs, self.inputs, corrected=False) @ self.weights)
        across = self.prior.covariance(inputs, self.inputs)
        known = self.prior.covariance(self.inputs, self.inputs) + np.diag(self.noise)
        left = self.prior.variance(inputs) - (across * np.linalg.solve(known, across.T).T).sum(axis=1)
        sigma = np.sqrt(np.maximum(left, 0.0) + self.prior.noise**2)
        return kernel * factor, latency * factor, P90_SIGMAS * sigma


def calibrate(model: UtilisationModel, probes: pd.DataFrame, gpu: GpuSpec) -> Calibration:
    """Condition a model's errors on probes of its family.

    Args:
        model: the cross-GPU model.
        probes: rows with `op`, dims and `latency_us`, measured on `gpu`.
        gpu: the GPU of the probes.
    """
    target = np.log(probes["latency_us"].to_numpy(dtype=np.float64))
    prior = ProbePrior.of(model.probe_prior)
    scale = np.asarray(prior.effects[: len(CORRECTED_EFFECTS)]) ** 2
    factors, trust = np.zeros(len(CORRECTED_EFFECTS)), np.ones(len(probes))
    for _ in range(ROUNDS):
        correction = Correction(*(float(v) for v in factors))
        inputs = covariance_inputs(model, probes, gpu, correction)
        slopes = inputs.effects[:, : len(CORRECTED_EFFECTS)]
        # linear in the factors: the probes' log errors if all factors were 1
        off = target - inputs.log_latency + slopes @ factors
        covariance, noise = prior.covariance(inputs, inputs), prior.noise**2 / trust
        weights = np.linalg.solve(covariance + np.diag(noise), off)
        missed = off - covariance @ weights
        trust = (DEGREES + 1.0) / (DEGREES + (missed / prior.noise) ** 2)
        factors = np.clip(scale * (slopes.T @ weights), -MAX_LOG_FACTOR, MAX_LOG_FACTOR)
    correction = Correction(*(float(v) for v in factors))
    inputs = covariance_inputs(model, probes, gpu, correction)
    rest = prior.covariance(inputs, inputs, corrected=False) + np.diag(noise)
    return Calibration(
        model, gpu, probes, correction, inputs, np.linalg.solve(rest, target - inputs.log_latency), noise
    )  # fmt: skip


def calibrate_all(models: dict[str, UtilisationModel], probes: pd.DataFrame, gpu: GpuSpec) -> dict[str, Calibration]:
    """Calibrate every model whose family has probes."""
    family = probes["family"].astype(str)
    return {name: calibrate(model, probes[family == name], gpu) for name, model in models.items() if
            (family == name).any()}  # fmt: skip


def choose_probes(
    model: UtilisationModel,
    candidates: pd.DataFrame,
    gpu: GpuSpec,
    count: int = 10,
    max_candidates: int = MAX_CANDIDATES,
) -> pd.DataFrame:
    """Select the calls to measure on a new GPU, before anything is measured there.

    The selection is greedy. Each probe is the call that most reduces the expected squared error over all candidates,
    under the family's covariance. The only input about the new GPU is its spec file.

    Args:
        model: the family's cross-GPU model, as in `kernels.load_models()["gemm"]`.
        candidates: calls of that family, of the sizes of interest.
        gpu: the GPU to be measured.
        count: number of probes.
        max_candidates: largest number of candidates that are considered, evenly spaced.
    """
    step = max(1, -(-len(candidates) // max_candidates))
    pool = candidates.iloc[::step]
    prior, inputs = ProbePrior.of(model.probe_prior), covariance_inputs(model, pool, gpu)
    covariance = prior.covariance(inputs, inputs)
    chosen: list[int] = []
    for _ in range(min(count, len(pool))):
        # squared error that measuring a call would remove: squared norm of its covariance column over its variance
        gain = (covariance**2).sum(axis=0) / (np.diag(covariance) + prior.noise**2)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        column = covariance[:, best : best + 1]
        covariance = covariance - column @ column.T / (covariance[best, best] + prior.noise**2)
    return pool.iloc[chosen]
