"""Calibration from a handful of kernels measured on the new GPU: three factors, then a smooth correction by size.

The factors (compute, memory, host floor) are fitted to the probes' log errors with a prior that keeps them near 1. What
they leave is interpolated between probes by a Gaussian process over log dims, which fades out away from them.
"""

from __future__ import annotations

from dataclasses import dataclass

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

NOISE_SIGMA = 0.08
"""What remains between neighbouring shapes: log error of a model fitted on the very GPU."""

FIELD_SIGMA = 0.25
"""Spread of the errors that vary smoothly with size: leave-one-GPU-out errors after removing each GPU's mean."""

LENGTH = 2.0
"""Distance, in natural logarithms of all dims together, over which errors resemble each other."""


@dataclass(frozen=True)
class Calibration:
    """What probes of one family ask for: factors, and the residual at the probes."""

    correction: Correction
    sizes: Array
    weights: Array

    def log_factor(self, sizes: Array) -> Array:
        """Smooth correction of log time at log sizes (rows, dims); shape (rows,)."""
        if not len(self.weights):
            return np.zeros(len(sizes))
        return np.asarray(_kernel(sizes, self.sizes) @ self.weights)


def log_sizes(family: str, calls: pd.DataFrame) -> Array:
    """Logarithms of the family's dims, shape (rows, dims)."""
    names = [name for name in FAMILIES[family].required if name in calls.columns]
    return np.asarray(np.log(np.maximum(calls[names].to_numpy(dtype=np.float64), 1.0)))


def calibrate(model: UtilisationModel, probes: pd.DataFrame, gpu: GpuSpec) -> Calibration:
    """Fit factors and residual to probes of the model's family.

    Args:
        model: the cross-GPU model.
        probes: rows with `op`, dims and `latency_us`, measured on `gpu`.
        gpu: the GPU of the probes.
    """
    target = np.log(probes["latency_us"].to_numpy(dtype=np.float64))

    def errors(factors: Array) -> Array:
        _, latency = model.kernel_and_latency(probes, gpu, correction=Correction(*factors))
        return np.asarray(np.hstack([(np.log(latency) - target) / (2.0 * NOISE_SIGMA), factors / FACTOR_SIGMA]))

    found = least_squares(errors, np.zeros(3), loss="soft_l1").x
    correction = Correction(*(float(v) for v in found))
    _, latency = model.kernel_and_latency(probes, gpu, correction=correction)
    sizes = log_sizes(model.family, probes)
    covariance = _kernel(sizes, sizes) + NOISE_SIGMA**2 * np.eye(len(probes))
    return Calibration(correction, sizes, np.linalg.solve(covariance, target - np.log(latency)))


def _kernel(a: Array, b: Array) -> Array:
    squared: Array = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(FIELD_SIGMA**2 * np.exp(-0.5 * squared / LENGTH**2))
