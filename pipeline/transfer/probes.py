"""Calibration of a cross-GPU model with a few kernels measured on the new GPU (probes).

The log error of a model on a new GPU is modelled as a sum of four parts:
1. The effects of wrong datasheet figures (`EFFECTS`: throughput, bandwidth, host floor, power, L2).
2. A level that all calls share.
3. A level per op.
4. Three smooth functions (`GROUPS`): of sizes, of work and time, and of how sizes fit tiles and alignment.

The size of each part, and the distances over which the functions vary, are learned from the errors on GPUs that a model
has not seen (`evaluation/training/prior_fit.py`). Probes condition the covariance of the errors. That gives two kinds of
factors:
- Factors on compute, memory and host floor are inserted into the model's own formula.
- The rest of the errors gives a factor per call. It approaches 1 with growing distance from the probes.

Probes that disagree with the others have less weight (Student's t). `steptime kernels predict --probes` and
`steptime transfer --probes` read the probes from a table. `choose_probes` selects the calls to measure.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array
from pipeline.families import FAMILIES, work_of
from pipeline.hardware.spec import GpuSpec
from pipeline.transfer.gpu_features import call_features
from pipeline.transfer.utilisation import Correction, UtilisationModel

CORRECTED_EFFECTS = ("compute", "memory", "floor")
"""Effects for which `Correction` has a factor."""

EFFECTS = (*CORRECTED_EFFECTS, "power", "l2")
"""Effects of wrong figures on the log time: columns of `CovarianceInputs.effects`, per unit of log time or of log figure."""

GROUPS = ("sizes", "work", "form")
"""Coordinates of the three smooth functions."""

LOG_STEP = 0.2
"""Step in a logarithm with which the effects are computed as difference quotients."""

MAX_COORDINATE = 50.0
"""Coordinates are limited to this absolute value: calls of empty tensors have logarithms of minus infinity."""

FORM_FEATURES = (
    "tail",
    "padding",
    "align",
    "winograd_padding",
    "winograd_tail",
    "row_power",
    "wide",
    "block_wave_tail",
)
"""Prefixes of the features (`gpu_features.py`) that describe how sizes fit tiles, waves and alignment."""

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
class CovarianceInputs:
    """Inputs of the covariance for a set of calls.

    Attributes:
        log_latency: logarithm of the modelled latency in µs, shape (rows,).
        effects: slopes of the log latency in `EFFECTS`, shape (rows, 5).
        groups: coordinates of `GROUPS`, each of shape (rows, axes).
        op: index of the op, shape (rows,).

    All but the log latency are tensors while a prior is learned.
    """

    log_latency: Array
    effects: Any
    groups: tuple[Any, ...]
    op: Any

    def rows(self, at: npt.NDArray[Any]) -> CovarianceInputs:
        """Some of the calls."""
        groups = tuple(group[at] for group in self.groups)
        return CovarianceInputs(self.log_latency[at], self.effects[at], groups, self.op[at])


def covariance_inputs(
    model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, correction: Correction | None = None
) -> CovarianceInputs:
    """Inputs of the covariance for calls of a model's family on a GPU.

    Args:
        model: the cross-GPU model.
        calls: rows with `op` and dims.
        gpu: spec of the GPU.
        correction: the factors at which the effects are computed; none by default.
    """
    around = correction or Correction()
    smaller = float(np.exp(-LOG_STEP))
    less_l2 = max(int(gpu.l2_bytes * smaller), 1)
    moved = [
        *((gpu, replace(around, **{e: getattr(around, e) + LOG_STEP})) for e in CORRECTED_EFFECTS),
        (replace(gpu, tdp_w=gpu.tdp_w * smaller), around),
        (replace(gpu, l2_bytes=less_l2), around),
    ]
    base, *others = (
        np.log(model.kernel_and_latency(calls, spec, correction=at)[1])
        for spec, at in [(gpu, around), *moved]
    )
    effects = (np.column_stack(others) - base[:, None]) / LOG_STEP
    groups = _groups(model.family, calls, gpu, base)
    return CovarianceInputs(base, effects, groups, model.op_codes(calls))


def _groups(
    family: str, calls: pd.DataFrame, gpu: GpuSpec, log_latency: Array
) -> tuple[Array, ...]:
    """Coordinates of `GROUPS`. Their scale is such that errors are similar over a distance of about 1 before learning."""
    work = work_of(family, calls, own_columns=False)
    names = [name for name in FAMILIES[family].required if name in calls.columns]
    features = call_features(family, calls, gpu)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.log(calls[names].to_numpy(dtype=float)) / 2.0
        intensity = np.log(work.flops / work.bytes)
        amount = [
            intensity,
            np.log(work.bytes) / 2.0,
            log_latency / 1.5,
        ]
    form = [2.0 * x for name, x in features.items() if name.startswith(FORM_FEATURES)]
    return tuple(
        np.clip(np.nan_to_num(group), -MAX_COORDINATE, MAX_COORDINATE)
        for group in (sizes, np.column_stack(amount), np.column_stack(form))
    )


@dataclass(frozen=True)
class ProbePrior:
    """Standard deviations (log time) and length scales of one family's errors.

    Attributes:
        effects: standard deviation of the logarithm of each figure in `EFFECTS`.
        level: standard deviation of the level that all calls share.
        op: standard deviation of the level of an op.
        spreads: standard deviations of the smooth functions over `GROUPS`.
        lengths: distance over which each function varies, per axis of its group; 1 where there are none.
        noise: standard deviation of the difference that remains between neighbouring calls.

    The values are numbers and tuples, or tensors while a prior is learned.
    """

    effects: Any = (0.3, 0.3, 0.3, 0.1, 0.1)
    level: Any = 0.05
    op: Any = 0.03
    spreads: Any = (0.1, 0.1, 0.03)
    lengths: Any = ((), (), ())
    noise: Any = 0.1

    def covariance(
        self, a: CovarianceInputs, b: CovarianceInputs, corrected: bool = True, xp: Any = np
    ) -> Any:
        """Covariance of the log errors of two sets of calls, shape (rows of a, rows of b), without the noise.

        Args:
            a, b: calls.
            corrected: whether to include the effects that `Correction` has a factor for.
            xp: the library of the arrays, numpy or torch.
        """
        first = 0 if corrected else len(CORRECTED_EFFECTS)
        scale = xp.asarray(self.effects)[first:] ** 2
        total = self.level**2 + (a.effects[:, first:] * scale) @ b.effects[:, first:].T
        total = total + self.op**2 * (a.op[:, None] == b.op[None, :])
        groups = zip(
            self.spreads,
            self.lengths,
            a.groups,
            b.groups,
            strict=True,
        )
        for spread, lengths, x, y in groups:
            unit = xp.asarray(lengths)[: x.shape[1]] if len(lengths) else 1.0
            total = total + spread**2 * xp.exp(-0.5 * _squared_distances(x / unit, y / unit))
        return total

    def variance(self, a: CovarianceInputs) -> Array:
        """Variance of each call's log error, without the noise; shape (rows,)."""
        from_effects = (a.effects**2) @ np.asarray(self.effects) ** 2
        others = (self.level, self.op, *self.spreads)
        return np.asarray(from_effects + sum(sigma**2 for sigma in others))


def _squared_distances(x: Any, y: Any) -> Any:
    """Squared distances of two sets of points, shape (rows of x, rows of y)."""
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :]
    return (squares - 2.0 * x @ y.T).clip(0.0)


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
        return ProbePrior(**self.model.probe_prior)

    def predict(self, calls: pd.DataFrame) -> tuple[Array, Array, Array]:
        """Kernel time and latency in µs, and the log distance from each to its p90; each of shape (rows,)."""
        kernel, latency = self.model.kernel_and_latency(calls, self.gpu, correction=self.correction)
        inputs = covariance_inputs(self.model, calls, self.gpu, self.correction)
        factor = np.exp(self.prior.covariance(inputs, self.inputs, corrected=False) @ self.weights)
        across = self.prior.covariance(inputs, self.inputs)
        among = self.prior.covariance(self.inputs, self.inputs) + np.diag(self.noise)
        explained = (across * np.linalg.solve(among, across.T).T).sum(axis=1)
        left = np.maximum(
            self.prior.variance(inputs) - explained,
            0.0,
        )
        return kernel * factor, latency * factor, P90_SIGMAS * np.sqrt(left + self.prior.noise**2)


def calibrate(model: UtilisationModel, probes: pd.DataFrame, gpu: GpuSpec) -> Calibration:
    """Condition a model's errors on probes of its family.

    Args:
        model: the cross-GPU model.
        probes: rows with `op`, dims and `latency_us`, measured on `gpu`.
        gpu: the GPU of the probes.
    """
    target = np.log(probes["latency_us"].to_numpy(dtype=float))
    prior, count = ProbePrior(**model.probe_prior), len(CORRECTED_EFFECTS)
    scale = np.asarray(prior.effects[:count]) ** 2
    correction, trust = Correction(), np.ones(len(probes))
    inputs = covariance_inputs(model, probes, gpu, correction)
    for _ in range(ROUNDS):
        slopes = inputs.effects[:, :count]
        # linear in the factors: the probes' log errors if all factors were 1
        off = target - inputs.log_latency + slopes @ np.array(astuple(correction))
        covariance, noise = prior.covariance(inputs, inputs), prior.noise**2 / trust
        weights = np.linalg.solve(
            covariance + np.diag(noise),
            off,
        )
        missed = off - covariance @ weights
        trust = (DEGREES + 1.0) / (DEGREES + (missed / prior.noise) ** 2)
        factors = np.clip(
            scale * (slopes.T @ weights),
            -MAX_LOG_FACTOR,
            MAX_LOG_FACTOR,
        )
        correction = Correction(*map(float, factors))
        inputs = covariance_inputs(model, probes, gpu, correction)
    rest = prior.covariance(inputs, inputs, corrected=False) + np.diag(noise)
    weights = np.linalg.solve(rest, target - inputs.log_latency)
    return Calibration(model, gpu, probes, correction, inputs, weights, noise)


def calibrate_all(
    models: dict[str, UtilisationModel], probes: pd.DataFrame, gpu: GpuSpec
) -> dict[str, Calibration]:
    """Calibrate every model whose family has probes."""
    family = probes["family"].astype(str)
    probed = {name: model for name, model in models.items() if (family == name).any()}
    return {name: calibrate(model, probes[family == name], gpu) for name, model in probed.items()}


def choose_probes(
    model: UtilisationModel,
    candidates: pd.DataFrame,
    gpu: GpuSpec,
    count: int = 10,
) -> pd.DataFrame:
    """Select the calls to measure on a new GPU, before anything is measured there.

    The selection is greedy. Each probe is the call that most reduces the expected squared error over all candidates,
    under the family's covariance. The only input about the new GPU is its spec file.

    Args:
        model: the family's cross-GPU model, as in `kernels.load_models()["gemm"]`.
        candidates: calls of that family, of the sizes of interest.
        gpu: the GPU to be measured.
        count: number of probes.
    """
    pool = candidates.iloc[:: max(1, -(-len(candidates) // MAX_CANDIDATES))]
    prior, inputs = ProbePrior(**model.probe_prior), covariance_inputs(model, pool, gpu)
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
