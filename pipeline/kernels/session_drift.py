"""Drift of a measuring session: an extra time per call that grows while samples are taken.

The public convolution latencies were measured in random order of sizes. The latency of the smallest ones grows steadily
with the row number: from 68 to 300 us on V100. The growth is the same for small and large kernels, so it belongs to the
session and not to the kernel.

The drift is estimated as a function of the row's position and subtracted before fitting, which halves the error. Only
its typical size is added to a predicted *latency*. Samples without drift are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.kernels.networks import train_trees

BINS = 30
"""Number of bins of the row's position. The drift of a bin is its median residual."""

MIN_SAMPLES = 600
"""Minimum number of samples (20 per bin). With fewer, drift cannot be distinguished from noise."""

ROUNDS = 4
"""Rounds, each of which fits times and then the drift. The drift converged after three rounds on all five GPUs."""

QUICK = {"num_iterations": 100, "learning_rate": 0.1}
"""Boosting rounds of the trees that fit times, and their learning rate, in LightGBM's names.

With 250 rounds of 0.05, the drift is the same: the correlation over the samples is at least 0.9998 on all five GPUs."""

MIN_ERROR_REDUCTION = 0.2
"""Minimum relative reduction of the median error with which a drift is accepted."""

MIN_FIRST_REDUCTION = 0.1
"""Minimum relative reduction of the median error by the first round's drift; below it, no further round runs. It is at
least 30 % for the public convolutions, and at most 4 % for other families."""


@dataclass(frozen=True)
class Drift:
    """Drift of each sample's latency in microseconds, shape (rows,), and its median."""

    extra_us: Array
    typical_us: float

    @property
    def detected(self) -> bool:
        """Whether there is a drift."""
        return self.typical_us > 0


def estimate_drift(
    features: Array, baseline: Array, latency_us: Array, folds: Ints, seed: int = 0
) -> Drift:
    """Estimate the drift of a session.

    Args:
        features: shape (rows, columns), rows in the order of measurement.
        baseline: log of the expected latency, shape (rows,); trees fit the residual.
        latency_us: measured latency, shape (rows,).
        folds: fold number per row; the residual of a row comes from trees trained on other folds.
        seed: random seed of the trees.
    """
    rows = len(latency_us)
    nothing = Drift(np.zeros(rows), 0.0)
    if rows < MIN_SAMPLES:
        return nothing
    position = np.arange(rows) / rows
    extra = np.zeros(rows)
    errors = []
    for _ in range(ROUNDS):
        clean = np.maximum(latency_us - extra, 0.2 * latency_us)
        target, expected = np.log(clean) - baseline, np.empty(rows)
        for fold in np.unique(folds):
            held = folds == fold
            trees = train_trees(features[~held], target[~held], seed, **QUICK)
            expected[held] = np.exp(trees.predict(features[held]) + baseline[held])
        errors.append(_typical_error(expected, clean))
        extra = _smooth_drift(position, latency_us - expected, latency_us)
        if len(errors) == 1:  # predictions of the first round contain the median drift
            hinted = _typical_error(
                expected, np.maximum(latency_us - extra + np.median(extra), 0.2 * latency_us)
            )
            if hinted > (1.0 - MIN_FIRST_REDUCTION) * errors[0]:
                return nothing
    if errors[-1] > (1.0 - MIN_ERROR_REDUCTION) * errors[0]:
        return nothing
    return Drift(extra, float(np.median(extra)))


def _typical_error(expected: Array, measured: Array) -> float:
    """Median absolute error of log time."""
    return float(np.median(np.abs(np.log(expected / measured))))


def _smooth_drift(position: Array, residual: Array, latency_us: Array) -> Array:
    """Median residual by position, minus its minimum, us.

    Only the half of the samples with the shorter latencies is used, because their errors in us are small.
    """
    short = latency_us <= np.median(latency_us)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    centres, values = [], []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = short & (position >= low) & (position < high)
        if inside.sum() >= 5:
            centres.append((low + high) / 2.0)
            values.append(float(np.median(residual[inside])))
    if len(values) < 3:
        return np.zeros_like(position)
    smooth = np.convolve(np.pad(values, 1, mode="edge"), [0.25, 0.5, 0.25], mode="valid")
    drift = np.interp(position, centres, smooth)
    return np.asarray(drift - drift.min())


def best_extra(
    time_us: Array, noise: Array, drift: Drift, seed: int = 0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Microseconds to add to a time without drift, by its size, to minimise the geometric mean error of the latency.

    The drift of a future call is unknown; only its distribution over the session is known. The relative error of a
    short kernel depends strongly on the added time. The best value is neither the mean nor the median of the drift. It
    is found by a grid search.

    Args:
        time_us: out-of-fold predictions of the times without drift, shape (rows,).
        noise: ratio of measured to predicted time, both without drift, of the same rows.
        drift: drift of the session.
        seed: seed of the random draws.

    Returns:
        Knots of log time, and the microseconds to add at each.
    """
    if not drift.detected:
        return (0.0,), (0.0,)
    rng = np.random.default_rng(seed)
    knots = np.quantile(np.log(time_us), np.linspace(0.02, 0.98, 9))
    draws = 4000
    extra = rng.choice(drift.extra_us, draws)
    ratio = rng.choice(noise, draws)
    guesses = np.quantile(drift.extra_us, np.linspace(0.05, 0.95, 46))
    best = []
    for knot in knots:
        actual = np.exp(knot) * ratio + extra
        relative = np.abs((np.exp(knot) + guesses[:, None]) / actual - 1.0)
        score = np.log(np.maximum(relative, 1e-3)).mean(axis=1)
        # neighbouring guesses differ by chance only: smooth before the minimum is taken
        smooth = np.convolve(np.pad(score, 4, mode="edge"), np.full(9, 1.0 / 9.0), mode="valid")
        best.append(float(guesses[int(np.argmin(smooth))]))
    return tuple(map(float, knots)), tuple(best)
