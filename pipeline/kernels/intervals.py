"""Calibrated p10 to p90 intervals from the residuals of predictions that had not seen their rows.

Residuals log(measured / predicted) are collected over cross-validation folds. Their 10 % and 90 % quantiles, as
functions of the predicted time, are the ends of the interval (conformal prediction, binned by difficulty). A bagged
ensemble errs less than its members, which the folds measure: `bagging_shrink` corrects for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.work import Array

ROWS_PER_BIN = 150
MOST_BINS = 12

LEAST_SHRINK = 0.95
"""Members share most of their errors; a smaller factor made intervals of small families too narrow on new shapes."""


@dataclass(frozen=True)
class Quantiles:
    """Ends of the interval as factors in log, at knots of log predicted time; interpolated, flat outside."""

    knots: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, log_time: Array) -> tuple[Array, Array]:
        """(low, high) log factors, low <= 0 <= high, each of shape (rows,)."""
        return np.interp(log_time, self.knots, self.low), np.interp(log_time, self.knots, self.high)

    def to_json(self) -> dict[str, list[float]]:
        """Plain lists."""
        return {key: [round(value, 6) for value in getattr(self, key)] for key in ("knots", "low", "high")}

    @classmethod
    def from_json(cls, values: Mapping[str, Sequence[float]]) -> Quantiles:
        """Back from `to_json`."""
        return cls(*(tuple(float(value) for value in values[key]) for key in ("knots", "low", "high")))

    @classmethod
    def constant(cls, factor: float) -> Quantiles:
        """The same factor up and down everywhere."""
        return cls((0.0,), (-float(np.log(factor)),), (float(np.log(factor)),))


def fit_quantiles(log_time: Array, residual: Array, shrink: float = 1.0, few: bool = False) -> Quantiles:
    """Bin residuals by predicted log time and take their outer tenths.

    Args:
        log_time: predicted log times, shape (rows,).
        residual: log(measured / predicted) of the same rows.
        shrink: factor on residuals, for a final model that errs less than those that made them.
        few: ends by order statistics: of n residuals, a new one lies below the k-th with probability k / (n + 1). For
            many it is the same.
    """
    order = np.argsort(log_time, kind="stable")
    bins = np.array_split(order, int(np.clip(len(order) // ROWS_PER_BIN, 1, MOST_BINS)))
    knots, low, high = [], [], []
    for rows in bins:
        knots.append(float(np.median(log_time[rows])))
        # order statistics of a small bin are too narrow on average: n + 1 spacings (split conformal)
        edge = (0.1 * (len(rows) + 1) - 1) / max(len(rows) - 1, 1) if few else 0.1 * (1.0 - 1.0 / (len(rows) + 1))
        edge = np.clip(edge, 0.0, 0.5)
        ends = np.quantile(shrink * residual[rows], [edge, 1.0 - edge])
        low.append(float(min(ends[0], -1e-5)))
        high.append(float(max(ends[1], 1e-5)))
    return Quantiles(tuple(knots), tuple(low), tuple(high))


def bagging_shrink(residual: Array, members: Array, mismatch: Array) -> float:
    """Error of a bagged mean over that of one member.

    A member's squared error is bias and noise plus its own variance v; a mean of n members keeps v/n. v shows as the
    members' spread on rows that none of them has seen.

    Args:
        residual: out-of-fold log residuals, shape (rows,).
        members: predictions of every member on unseen rows, shape (members, unseen).
        mismatch: log difference of the final model from the members' mean on unseen rows, shape (unseen,).
    """
    count = len(members)
    middle = _core(residual)
    if count < 2 or middle <= 0:
        return 1.0
    variance = _core(np.ravel(members - members.mean(axis=0))) * count / (count - 1)
    square = 1.0 - variance / middle * (1.0 - 1.0 / count) + _core(mismatch) / middle
    return float(np.sqrt(np.clip(square, LEAST_SHRINK**2, 1.2)))


def _core(values: Array) -> float:
    """Mean square without the outer tenths, which tails would dominate."""
    low, high = np.quantile(values, [0.1, 0.9])
    return float(np.mean(np.square(np.clip(values, low, high))))
