"""Calibrated p10 to p90 intervals from the residuals of out-of-fold predictions.

Residuals log(measured / predicted) are collected over cross-validation folds. Their 10 % and 90 % quantiles are the
ends of the interval. The quantiles are a function of the predicted time (conformal prediction, binned by predicted
time).

The folds measure the error of single members, which is larger than the error of the members' mean. `bagging_shrink`
corrects for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.work import Array

ROWS_PER_BIN = 150
"""Residuals per bin of predicted time. With 150, 15 residuals lie beyond each end of the interval."""

MAX_BINS = 12
"""Maximum number of bins of predicted time."""

MIN_SHRINK = 0.95
"""Minimum factor on residuals. Members share most of their errors. A smaller factor made the intervals of families with
few samples too narrow on new shapes."""


@dataclass(frozen=True)
class Quantiles:
    """Ends of the interval as log factors on the predicted time.

    They are given at knots of log predicted time, interpolated between knots, and constant outside them.
    """

    knots: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, log_time: Array) -> tuple[Array, Array]:
        """(low, high) log factors, low <= 0 <= high, each of shape (rows,)."""
        return np.interp(log_time, self.knots, self.low), np.interp(log_time, self.knots, self.high)

    def to_json(self) -> dict[str, list[float]]:
        """The fields as plain lists, for JSON."""
        return {key: [round(value, 6) for value in getattr(self, key)] for key in ("knots", "low", "high")}

    @classmethod
    def from_json(cls, values: Mapping[str, Sequence[float]]) -> Quantiles:
        """Rebuild from the values of `to_json`."""
        return cls(*(tuple(float(value) for value in values[key]) for key in ("knots", "low", "high")))

    @classmethod
    def constant(cls, factor: float) -> Quantiles:
        """The same factor in both directions at all times."""
        return cls((0.0,), (-float(np.log(factor)),), (float(np.log(factor)),))


def fit_quantiles(log_time: Array, residual: Array, shrink: float = 1.0, few: bool = False) -> Quantiles:
    """10 % and 90 % quantiles of residuals, in bins of predicted log time.

    Args:
        log_time: predicted log times, shape (rows,).
        residual: log(measured / predicted) of the same rows.
        shrink: factor on residuals, for a final model whose errors are smaller than those of the fold members.
        few: take order statistics, for few residuals: a new residual lies below the k-th of n with probability
            k / (n + 1). With many residuals both methods agree.
    """
    order = np.argsort(log_time, kind="stable")
    bins = np.array_split(order, int(np.clip(len(order) // ROWS_PER_BIN, 1, MAX_BINS)))
    knots, low, high = [], [], []
    for rows in bins:
        knots.append(float(np.median(log_time[rows])))
        # plain quantiles of a small bin are too narrow on average, so n + 1 spacings are counted (split conformal)
        edge = (0.1 * (len(rows) + 1) - 1) / max(len(rows) - 1, 1) if few else 0.1 * (1.0 - 1.0 / (len(rows) + 1))
        edge = np.clip(edge, 0.0, 0.5)
        ends = np.quantile(shrink * residual[rows], [edge, 1.0 - edge])
        low.append(float(min(ends[0], -1e-5)))
        high.append(float(max(ends[1], 1e-5)))
    return Quantiles(tuple(knots), tuple(low), tuple(high))


def bagging_shrink(residual: Array, members: Array, mismatch: Array) -> float:
    """Ratio of the error of a mean of members to the error of one member.

    A member's squared error is the sum of bias, noise and its own variance v. A mean of n members has the variance v/n.
    The spread of the members on rows that no member was trained on estimates v.

    Args:
        residual: out-of-fold log residuals, shape (rows,).
        members: predictions of every member on unseen rows, shape (members, unseen).
        mismatch: log difference of the final model from the members' mean on unseen rows, shape (unseen,).
    """
    count = len(members)
    middle = _clipped_mean_square(residual)
    if count < 2 or middle <= 0:
        return 1.0
    variance = _clipped_mean_square(np.ravel(members - members.mean(axis=0))) * count / (count - 1)
    square = 1.0 - variance / middle * (1.0 - 1.0 / count) + _clipped_mean_square(mismatch) / middle
    return float(np.sqrt(np.clip(square, MIN_SHRINK**2, 1.2)))


def _clipped_mean_square(values: Array) -> float:
    """Mean square of values. Values are clipped to their central 80 % range, so that outliers do not dominate."""
    low, high = np.quantile(values, [0.1, 0.9])
    return float(np.mean(np.square(np.clip(values, low, high))))
