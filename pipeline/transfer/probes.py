"""Calibration from a handful of kernels measured on the new GPU: three factors, then a smooth correction by size.

The factors (compute, memory, host floor) are fitted to the probes' log errors with a prior that keeps them near 1. What
they leave is interpolated between probes by a Gaussian process over the family's sizes, which fades out away from them.
`steptime kernels predict --probes` and `steptime transfer --probes` read the probes from a table; `design` says which
calls are worth measuring.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import FAMILIES
from pipeline.transfer.utilisation import Correction, UtilisationModel

Array = npt.NDArray[np.float64]

FACTOR_SIGMA = 0.4
"""How far, in log time, a factor is expected to be from 1 before any probe is seen."""


@dataclass(frozen=True)
class Field:
    """Prior of what the factors leave, over sizes.

    Attributes:
        spread: of errors that vary smoothly with size, in log time.
        noise: what remains between neighbouring shapes.
        length: distance, in natural logarithms of all dims together, over which errors resemble each other.
    """

    spread: float = 0.25
    noise: float = 0.08
    length: float = 2.0


FIELDS = {"gemm": Field(spread=0.4, noise=0.2, length=1.0)}
"""By family, where it differs from the default. Products leave errors that depend on intensity, reduction and outputs
(`sizes`): of the coordinates and widths tried, best over random probes of the five GPUs' left-out errors."""


@dataclass(frozen=True)
class Calibration:
    """What probes of one family ask for: factors, and the residual at the probes."""

    correction: Correction
    family: str
    at: Array
    weights: Array
    probes: pd.DataFrame = field(repr=False, compare=False)

    def log_factor(self, calls: pd.DataFrame) -> Array:
        """Smooth correction of log time; shape (rows,)."""
        return np.asarray(_kernel(self.family, sizes(self.family, calls), self.at) @ self.weights)


def sizes(family: str, calls: pd.DataFrame) -> Array:
    """Coordinates in which errors vary smoothly, shape (rows, axes): logarithms of the dims.

    A plain product's are its arithmetic intensity and, weighing half, reduction and outputs.
    """
    names = [name for name in FAMILIES[family].required if name in calls.columns]
    logs = {name: np.log(np.maximum(calls[name].to_numpy(dtype=np.float64), 1.0)) for name in names}
    if family != "gemm":
        return np.column_stack(list(logs.values()))
    intensity = -np.log(np.exp(-logs["M"]) + np.exp(-logs["N"]) + np.exp(-logs["K"]))
    return np.column_stack([0.6 * intensity, 0.3 * logs["N"], 0.3 * logs["K"]])


def calibrate(model: UtilisationModel, probes: pd.DataFrame, gpu: GpuSpec) -> Calibration:
    """Fit factors and residual to probes of the model's family.

    Args:
        model: the cross-GPU model.
        probes: rows with `op`, dims and `latency_us`, measured on `gpu`.
        gpu: the GPU of the probes.
    """
    target = np.log(probes["latency_us"].to_numpy(dtype=np.float64))
    prior = FIELDS.get(model.family, Field())

    def errors(factors: Array) -> Array:
        _, latency = model.kernel_and_latency(probes, gpu, correction=Correction(*factors))
        return np.asarray(np.hstack([(np.log(latency) - target) / (2.0 * prior.noise), factors / FACTOR_SIGMA]))

    found = least_squares(errors, np.zeros(3), loss="soft_l1").x
    correction = Correction(*(float(v) for v in found))
    _, latency = model.kernel_and_latency(probes, gpu, correction=correction)
    at = sizes(model.family, probes)
    covariance = _kernel(model.family, at, at) + prior.noise**2 * np.eye(len(probes))
    weights = np.linalg.solve(covariance, target - np.log(latency))
    return Calibration(correction, model.family, at, weights, probes)


def calibrate_all(models: dict[str, UtilisationModel], probes: pd.DataFrame, gpu: GpuSpec) -> dict[str, Calibration]:
    """Calibrate every model whose family has probes."""
    family = probes["family"].astype(str)
    return {name: calibrate(model, probes[family == name], gpu) for name, model in models.items() if
            (family == name).any()}  # fmt: skip


def design(family: str, candidates: pd.DataFrame, count: int = 10, most: int = 400) -> pd.DataFrame:
    """The calls to measure on a new GPU: those that tell most about all candidates, before anything is measured.

    Greedy: each probe is the call that lowers the expected squared error over the candidates most, under the family's
    prior. Nothing of the new GPU enters, so that one list serves all.

    Args:
        family: a covered family.
        candidates: calls of that family, of the sizes that matter.
        count: probes.
        most: candidates that are looked at, evenly spaced.
    """
    step = max(1, -(-len(candidates) // most))
    pool = candidates.iloc[::step]
    at, prior = sizes(family, pool), FIELDS.get(family, Field())
    covariance = _kernel(family, at, at)
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


def _kernel(family: str, a: Array, b: Array) -> Array:
    prior = FIELDS.get(family, Field())
    squared: Array = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(prior.spread**2 * np.exp(-0.5 * squared / prior.length**2))
