"""Gaussian processes: the model for families with few samples, and members of averages that are fitted the quick way.

A Gaussian process predicts similar times for two calls whose features are close. Each feature has a length scale, in
which its distances are measured. The length scales maximise the likelihood of the samples times a prior (Rasmussen and
Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 5).

With a few hundred samples the fit takes a second, and the error is smaller than that of networks and trees. Memory
grows with the square of the number of samples, and time with the cube.

The model is the mean of several processes. All use the same samples, but each takes its hyperparameters from a
different subset, so that the error of the mean is 3 to 4 % smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array
from pipeline.errors import PackError
from pipeline.kernels.networks import CLIP
from pipeline.model_files import Shapes, check_shapes

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

MAX_ITERATIONS = 30
"""Maximum iterations of the hyperparameter optimiser. 60 iterations gave the same errors."""

MAX_HYPERPARAMETER_SAMPLES = 300
"""Maximum number of samples used to find hyperparameters. The processes themselves are conditioned on all samples."""

LENGTH_SPREAD = 2.0
"""Standard deviation of the prior of log length scales; the prior's mean is log(number of features) / 2. A narrower prior
over-regularises informative features."""

MIN_NOISE = 1e-4
"""Variance added to the noise variance, as a share of the samples' variance. With it the covariance matrix can always
be factored."""

TYPICAL_NOISE = 0.02
"""Median of the prior of the noise variance, as a share of the samples' variance."""

BOUNDS = (-12.0, 12.0)
"""Minimum and maximum of the log of a hyperparameter, so that the optimiser's steps do not overflow."""

MIN_FEATURE_DEVIATION = 1e-9
"""Standard deviation below which a feature counts as constant and is ignored."""

MAX_COVARIANCE_CELLS = 1 << 20
"""Maximum size of a covariance block (calls x samples) that is computed at once: 8 MB in float64."""

SHAPES: Shapes = {
    "mean": ("columns",),
    "scale": ("columns",),
    "centre": (1,),
    "rows": ("samples", "columns"),
    "lengths": ("processes", "columns"),
    "weights": ("processes", "samples"),
}
"""Shapes of the arrays that are saved."""

MAY_BE_INFINITE = ("scale", "lengths")
"""Arrays that are infinite for a constant feature; no other feature has a scale or length of 0."""


@dataclass(frozen=True)
class Hyperparameters:
    """Length scales of the standardised features, shape (columns,), and the ratio of noise to signal variance."""

    lengths: Array
    noise: float


@dataclass(frozen=True)
class GaussianProcess:
    """Fitted Gaussian processes on the same samples; the prediction is their mean.

    Attributes:
        mean, scale: of the features, shape (columns,); the scale of a constant feature is infinite.
        centre: log time that is predicted far from all samples.
        rows: standardised features of the samples, shape (samples, columns).
        lengths: length scales, shape (processes, columns).
        weights: factor on each sample's covariance with a call, shape (processes, samples).
    """

    mean: Array
    scale: Array
    centre: float
    rows: Array
    lengths: Array
    weights: Array

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns); float64, however many rows the table has."""
        x = _standardise(features, self.mean, self.scale)
        times = np.full(len(x), self.centre)
        block = max(1, MAX_COVARIANCE_CELLS // len(self.rows))
        for lengths, weights in zip(self.lengths, self.weights, strict=True):
            covariance = _matern(lengths)
            for start in range(0, len(x), block):
                part = slice(start, start + block)
                times[part] += covariance(x[part], self.rows) @ weights / len(self.weights)
        return times

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save, in full precision: weights of neighbouring samples nearly cancel.

        Files hold finite numbers only, so the infinite scale and length of a constant feature are saved as 0.
        """
        arrays = {**vars(self), "centre": np.array([self.centre])}
        arrays |= {name: np.nan_to_num(arrays[name], posinf=0.0) for name in MAY_BE_INFINITE}
        return {f"process_{name}": values for name, values in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[np.generic]]) -> GaussianProcess:
        """Rebuild the object from the arrays of `tensors`.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        found = {name.removeprefix("process_"): values for name, values in tensors.items()}
        if not check_shapes("Gaussian process", found, SHAPES)["processes"]:
            raise PackError("the Gaussian process has no weights; rebuild the model")
        parts = {name: found[name].astype(float) for name in SHAPES}
        for name in MAY_BE_INFINITE:
            parts[name][parts[name] == 0.0] = np.inf
        return cls(centre=float(parts.pop("centre")[0]), **parts)


def train_gaussian_process(
    features: Array, target: Array, settings: Sequence[Hyperparameters]
) -> GaussianProcess:
    """Condition one process per entry of `settings` on features (rows, columns) and log times (rows,)."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    mean, scale = _mean_and_deviation(features)
    rows, centre = _standardise(features, mean, scale), float(np.median(target))
    weights = []
    for chosen in settings:
        kernel = _matern(chosen.lengths)
        process = GaussianProcessRegressor(kernel, alpha=chosen.noise, optimizer=None)
        weights.append(process.fit(rows, target - centre).alpha_)
    lengths = np.array([chosen.lengths for chosen in settings])
    return GaussianProcess(mean, scale, centre, rows, lengths, np.array(weights))


def find_hyperparameters(features: Array, target: Array, seed: int) -> Hyperparameters:
    """Hyperparameters with the largest posterior density, from features (rows, columns) and log times (rows,).

    If there are more than `MAX_HYPERPARAMETER_SAMPLES` rows, that many are drawn at random with the seed.
    """
    from scipy.optimize import minimize

    if len(target) > MAX_HYPERPARAMETER_SAMPLES:
        order = np.random.default_rng(seed).permutation(len(target))
        drawn = np.sort(order[:MAX_HYPERPARAMETER_SAMPLES])
        features, target = features[drawn], target[drawn]
    varies = features.std(axis=0) > MIN_FEATURE_DEVIATION
    lengths = np.full(features.shape[1], np.inf)
    if not varies.any():
        return Hyperparameters(lengths, TYPICAL_NOISE)
    rows = _standardise(
        features[:, varies],
        *_mean_and_deviation(features[:, varies]),
    )
    target = (target - np.median(target)) / max(float(target.std()), 1e-6)
    count = rows.shape[1]
    start = np.log(
        [
            1.0,
            *[np.sqrt(count)] * count,
            TYPICAL_NOISE,
        ]
    )
    # prior standard deviations of log variance, log length scales and log noise, in the order of `start`
    spread = np.array([1.5, *[LENGTH_SPREAD] * count, 2.0])
    best = minimize(
        partial(_penalised, rows, target, start, spread),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[BOUNDS] * len(start),
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-6},
    )
    values = np.exp(best.x)
    lengths[varies] = values[1:-1]
    return Hyperparameters(
        lengths,
        float((values[-1] + MIN_NOISE) / values[0]),
    )


def _penalised(
    rows: Array, target: Array, centre: Array, spread: Array, theta: Array
) -> tuple[float, Array]:
    """`negative_log_likelihood`, plus the penalty of a normal prior on each parameter with that centre and spread."""
    value, gradient = negative_log_likelihood(rows, target, theta)
    off = (theta - centre) / spread
    return value + 0.5 * float(off @ off), gradient + off / spread


def negative_log_likelihood(rows: Array, target: Array, theta: Array) -> tuple[float, Array]:
    """Negative log marginal likelihood up to a constant, and its gradient (Rasmussen and Williams, section 5.4.1).

    scikit-learn computes the same with a matrix of all pairs of samples for each feature, in six times the time.

    Args:
        rows: standardised features, shape (samples, columns).
        target: standardised log times, shape (samples,).
        theta: log variance, log length scales and log noise variance, shape (columns + 2,).
    """
    from scipy.linalg import cho_solve, lapack

    variance, noise = np.exp(theta[0]), np.exp(theta[-1])
    scaled = rows / np.exp(theta[1:-1])
    norms = np.einsum("ij,ij->i", scaled, scaled)
    distance = np.sqrt(
        3.0
        * np.maximum(
            norms[:, None] + norms[None, :] - 2.0 * scaled @ scaled.T,
            0.0,
        )
    )
    decay = variance * np.exp(-distance)
    signal = (1.0 + distance) * decay
    covariance = signal + (noise + MIN_NOISE) * np.eye(len(target))
    factor, failed = lapack.dpotrf(covariance, lower=1, clean=1)
    if failed:
        return np.inf, np.zeros_like(theta)
    weights = cho_solve((factor, True), target)
    value = 0.5 * float(target @ weights) + float(np.log(np.diag(factor)).sum())
    inverse = lapack.dpotri(factor, lower=1)[0]
    slope = (
        inverse + np.tril(inverse, -1).T - np.outer(weights, weights)
    )  # twice the derivative by the covariance
    gradient = np.empty_like(theta)
    gradient[0] = 0.5 * np.vdot(slope, signal)
    gradient[-1] = 0.5 * noise * np.trace(slope)
    # the derivative by a log length is 3 x decay x squared scaled difference, summed over pairs with these factors
    slope *= 3.0 * decay
    gradient[1:-1] = slope.sum(axis=1) @ (scaled * scaled) - np.einsum(
        "ij,ij->j", scaled, slope @ scaled
    )
    return value, gradient


def _matern(lengths: Array) -> Kernel:
    """Matern kernel of order 3/2. Smoother kernels (order 5/2, rational quadratic) had equal or larger errors."""
    from sklearn.gaussian_process.kernels import Matern

    return Matern(lengths, "fixed", nu=1.5)


def _mean_and_deviation(features: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; infinity for a constant one, so that its standardised value is 0."""
    deviation = features.std(axis=0)
    return features.mean(axis=0), np.where(deviation > MIN_FEATURE_DEVIATION, deviation, np.inf)


def _standardise(features: Array, mean: Array, scale: Array) -> Array:
    return np.clip(
        (features - mean) / scale,
        -CLIP,
        CLIP,
    )
