"""Gaussian processes (scikit-learn), the model for families with few samples.

A Gaussian process predicts similar times for two calls whose features are close. Each feature has a length scale, in
which its distances are measured. The length scales maximise the likelihood of the samples times a prior (Rasmussen and
Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 5).

With a few hundred samples the fit takes a second, and the error is smaller than that of networks and trees. Memory
grows with the square of the number of samples, and time with the cube.

The model is the mean of several processes. All use the same samples, but each takes its hyperparameters from a
different subset. The error of the mean is 3 to 4 % smaller than that of a single process (development shapes of V100
and T4, 60 to 150 samples).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.networks import CLIP
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

MAX_ITERATIONS = 30
"""Maximum iterations of the hyperparameter optimiser. 60 iterations gave the same errors."""

MAX_HYPERPARAMETER_SAMPLES = 300
"""Maximum number of samples used to find hyperparameters. The processes themselves are conditioned on all samples."""

LENGTH_SPREAD = 2.0
"""Standard deviation of the prior of log length scales; the prior's mean is log(number of features) / 2. A narrow prior
over-regularises informative features: the error is 2 % larger with 1, and 7 % larger with 0.5 (V100 and T4, 30 to 150
samples)."""

MIN_NOISE = 1e-4
"""Variance added to the noise variance, as a share of the samples' variance. With it the covariance matrix can always
be factored."""

TYPICAL_NOISE = 0.02
"""Median of the prior of the noise variance, as a share of the samples' variance."""

BOUNDS = (np.exp(-12.0), np.exp(12.0))
"""Minimum and maximum of a hyperparameter, so that the optimiser's steps do not overflow."""

MIN_FEATURE_DEVIATION = 1e-9
"""Standard deviation below which a feature counts as constant and is ignored."""

MAX_COVARIANCE_CELLS = 1 << 20
"""Maximum size of a covariance block (calls x samples) that is computed at once: 8 MB in float64."""


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

    def predict(self, features: Array) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns)."""
        x = _standardise(features, self.mean, self.scale)
        found = np.full(len(x), self.centre)
        block = max(1, MAX_COVARIANCE_CELLS // len(self.rows))
        for lengths, weights in zip(self.lengths, self.weights, strict=True):
            covariance = _matern(lengths)
            for start in range(0, len(x), block):
                part = slice(start, start + block)
                found[part] += covariance(x[part], self.rows) @ weights / len(self.weights)
        return found

    def tensors(self, prefix: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save, in full precision: weights of neighbouring samples nearly cancel.

        Files hold finite numbers only, so the infinite scale and length of a constant feature are saved as 0.
        """
        names = ("mean", "scale", "rows", "lengths", "weights")
        found: dict[str, npt.NDArray[np.generic]] = {}
        for name in names:
            values = getattr(self, name)
            found[f"{prefix}process_{name}"] = (
                np.where(np.isinf(values), 0.0, values) if name in MAY_BE_INFINITE else values
            )
        return found | {f"{prefix}process_centre": np.array([self.centre])}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[np.generic]], prefix: str = "") -> GaussianProcess:
        """Rebuild the object from the arrays of `tensors`.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        names = ("mean", "scale", "centre", "rows", "lengths", "weights")
        try:
            parts = {name: tensors[f"{prefix}process_{name}"].astype(np.float64) for name in names}
        except KeyError as error:
            raise PackError(f"array {error.args[0]!r} of the Gaussian process is missing; rebuild the model") from None
        columns, samples, count = parts["mean"].size, len(parts["rows"]), len(parts["weights"])
        expected = {
            "mean": (columns,), "scale": (columns,), "centre": (1,), "rows": (samples, columns),
            "lengths": (count, columns), "weights": (count, samples),
        }  # fmt: skip
        if not count or any(parts[name].shape != shape for name, shape in expected.items()):
            raise PackError("arrays of the Gaussian process have sizes that contradict each other; rebuild the model")
        parts |= {name: np.where(parts[name] == 0.0, np.inf, parts[name]) for name in MAY_BE_INFINITE}
        centre = float(parts.pop("centre")[0])
        return cls(centre=centre, **parts)


def train_gaussian_process(features: Array, target: Array, settings: Sequence[Hyperparameters]) -> GaussianProcess:
    """Condition one process per entry of `settings` on features (rows, columns) and log times (rows,)."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    mean, scale = _mean_and_deviation(features)
    rows, centre = _standardise(features, mean, scale), float(np.median(target))
    fitted = [
        GaussianProcessRegressor(_matern(found.lengths), alpha=found.noise, optimizer=None).fit(rows, target - centre)
        for found in settings
    ]
    weights = [regressor.alpha_ for regressor in fitted]
    return GaussianProcess(
        mean, scale, centre, rows, np.array([found.lengths for found in settings]), np.array(weights)
    )


def find_hyperparameters(features: Array, target: Array, seed: int) -> Hyperparameters:
    """Hyperparameters with the largest posterior density, from features (rows, columns) and log times (rows,).

    If there are more than `MAX_HYPERPARAMETER_SAMPLES` rows, that many are drawn at random with the seed.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

    if len(target) > MAX_HYPERPARAMETER_SAMPLES:
        kept = np.sort(np.random.default_rng(seed).permutation(len(target))[:MAX_HYPERPARAMETER_SAMPLES])
        features, target = features[kept], target[kept]
    moves = features.std(axis=0) > MIN_FEATURE_DEVIATION
    lengths = np.full(features.shape[1], np.inf)
    if not moves.any():
        return Hyperparameters(lengths, TYPICAL_NOISE)
    rows = _standardise(features[:, moves], *_mean_and_deviation(features[:, moves]))
    typical = np.full(rows.shape[1], np.sqrt(rows.shape[1]))
    kernel = ConstantKernel(1.0, BOUNDS) * _matern(typical, BOUNDS) + WhiteKernel(TYPICAL_NOISE, BOUNDS)
    # prior standard deviations of log variance, log length scales and log noise, in the kernel's parameter order
    spread = np.array([1.5, *[LENGTH_SPREAD] * len(typical), 2.0])
    regressor = GaussianProcessRegressor(kernel, alpha=MIN_NOISE, optimizer=partial(_optimise, spread))
    regressor.fit(rows, (target - np.median(target)) / max(float(target.std()), 1e-6))
    found = np.exp(regressor.kernel_.theta)
    lengths[moves] = found[1:-1]
    return Hyperparameters(lengths, float((found[-1] + MIN_NOISE) / found[0]))


def _optimise(
    spread: Array, objective: Callable[[Array], tuple[float, Array]], start: Array, bounds: Array
) -> tuple[Array, float]:
    """Minimise scikit-learn's objective plus the penalty of a normal prior on each parameter, centred on `start`."""
    from scipy.optimize import minimize

    def penalised(theta: Array) -> tuple[float, Array]:
        value, gradient = objective(theta)
        off = (theta - start) / spread
        return value + 0.5 * float(off @ off), gradient + off / spread

    limits = {"maxiter": MAX_ITERATIONS, "ftol": 1e-6}
    best = minimize(penalised, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    return best.x, float(best.fun)


def _matern(lengths: Array, bounds: tuple[float, float] | str = "fixed") -> Kernel:
    """Matern kernel of order 3/2. Smoother kernels (order 5/2, rational quadratic) had equal or larger errors."""
    from sklearn.gaussian_process.kernels import Matern

    return Matern(lengths, bounds, nu=1.5)


def _mean_and_deviation(features: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column; infinity for a constant one, so that its standardised value is 0."""
    deviation = features.std(axis=0)
    return features.mean(axis=0), np.where(deviation > MIN_FEATURE_DEVIATION, deviation, np.inf)


def _standardise(features: Array, mean: Array, scale: Array) -> Array:
    return np.asarray(np.clip((features - mean) / scale, -CLIP, CLIP))
