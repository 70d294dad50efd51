"""Disturbances of a measuring session: a cost per call that grows while samples are taken.

The public convolution latencies were taken one after another in random order of sizes, and the time of the smallest
ones grows steadily with the row number: from 68 to 300 us on V100, from 108 to 760 us on P100, alike for small and
large kernels. It belongs to the session, not to the kernel: knowing the row number halves the error of any model. So
the disturbance is estimated as a function of the row's position, taken out before fitting, and only its typical size is
added back to a predicted *latency*; kernel times are free of it. Samples in an order without drift are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.kernels.fit_workers import Crew
from pipeline.kernels.trees import train_trees
from pipeline.kernels.work import Array

BINS = 30
"""Positions are binned; within a bin the median residual is taken."""

FEWEST = 600
"""Samples below which no drift can be told from noise (20 in a bin)."""

ROUNDS = 4
"""Rounds of fitting times and drift in turn; the drift has settled after three on all five GPUs."""

LEAST_GAIN = 0.2
"""Share by which the error must fall for a drift to be believed."""

LEAST_HINT = 0.1
"""Share by which the first round's drift alone must make the error fall for others to follow. The convolutions of the five
public GPUs fall by 30 to 53 %, no other family by more than 4; three of four rounds are spared there."""


@dataclass(frozen=True)
class Drift:
    """Microseconds that each sample's latency holds beyond the undisturbed one, shape (rows,), and its typical size."""

    extra_us: Array
    typical_us: float

    @property
    def found(self) -> bool:
        """Whether there is any."""
        return self.typical_us > 0


def estimate_drift(
    features: Array,
    baseline: Array,
    latency_us: Array,
    folds: npt.NDArray[np.int64],
    seed: int = 0,
    crew: Crew | None = None,
) -> Drift:
    """Estimate how latencies grew from row to row.

    Args:
        features: shape (rows, columns), rows in the order of measurement.
        baseline: log of the expected latency, shape (rows,); trees fit what is left.
        latency_us: measured, shape (rows,).
        folds: fold number per row; every row is judged by trees that have not seen it.
        seed: of the trees.
        crew: trains them; this thread where None.
    """
    crew = crew or Crew()
    rows = len(latency_us)
    nothing = Drift(np.zeros(rows), 0.0)
    if rows < FEWEST:
        return nothing
    position = np.arange(rows) / rows
    extra = np.zeros(rows)
    errors = []
    for _ in range(ROUNDS):
        clean = np.maximum(latency_us - extra, 0.2 * latency_us)
        target, expected = np.log(clean) - baseline, np.empty(rows)
        parts = [folds == fold for fold in np.unique(folds)]
        calls = [(features[~held], target[~held], features[held], seed) for held in parts]
        for held, found in zip(parts, crew.all(_unseen, calls), strict=True):
            expected[held] = np.exp(found + baseline[held])
        errors.append(_typical_error(expected, clean))
        extra = _smooth_drift(position, latency_us - expected, latency_us)
        if len(errors) == 1:  # these times hold the typical drift already
            hinted = _typical_error(expected, np.maximum(latency_us - extra + np.median(extra), 0.2 * latency_us))
            if hinted > (1.0 - LEAST_HINT) * errors[0]:
                return nothing
    if errors[-1] > (1.0 - LEAST_GAIN) * errors[0]:
        return nothing
    return Drift(extra, float(np.median(extra)))


def _typical_error(expected: Array, measured: Array) -> float:
    """Median error in log time."""
    return float(np.median(np.abs(np.log(expected / measured))))


def _unseen(features: Array, target: Array, asked: Array, seed: int) -> Array:
    """What trees on features (rows, columns) and log times (rows,) say of other features."""
    return train_trees(features, target, seed, rounds=250).predict(asked)


def _smooth_drift(position: Array, residual: Array, latency_us: Array) -> Array:
    """Median residual by position, from the shorter half of the samples, whose errors in us are small; least is 0."""
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
    """What to add to an undisturbed time so that the latency's geometric mean error is least, by size.

    A disturbance is not known in advance, only its distribution over the session. For a short kernel the relative error
    depends on it much, and the best single guess is neither its mean nor its median; it is found by trying.

    Args:
        time_us: undisturbed times predicted for unseen samples, shape (rows,).
        noise: measured over predicted undisturbed time of unseen samples, shape (rows,).
        drift: the disturbances.
        seed: of the draws.

    Returns:
        Knots of log time and microseconds to add at them.
    """
    if not drift.found:
        return (0.0,), (0.0,)
    rng = np.random.default_rng(seed)
    knots = np.quantile(np.log(time_us), np.linspace(0.02, 0.98, 9))
    draws = 4000
    extra = rng.choice(drift.extra_us, draws)
    ratio = rng.choice(noise, draws)
    guesses = np.quantile(drift.extra_us, np.linspace(0.05, 0.95, 46))
    found = []
    for knot in knots:
        actual = np.exp(knot) * ratio + extra
        relative = np.abs((np.exp(knot) + guesses[:, None]) / actual - 1.0)
        score = np.log(np.maximum(relative, 1e-3)).mean(axis=1)
        # neighbouring guesses differ by chance alone: smooth before choosing
        smooth = np.convolve(np.pad(score, 4, mode="edge"), np.full(9, 1.0 / 9.0), mode="valid")
        found.append(float(guesses[int(np.argmin(smooth))]))
    return tuple(map(float, knots)), tuple(found)
