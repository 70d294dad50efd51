"""Calibrated p10 to p90 intervals from the residuals of out-of-fold predictions.

Residuals log(measured / predicted) are collected over cross-validation folds. Their 10 % and 90 % quantiles, in bins of
predicted time, are the ends of the interval (conformal prediction).
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


def fit_quantiles(log_time: Array, residual: Array, few: bool = False) -> Quantiles:
    """10 % and 90 % quantiles of residuals, in bins of predicted log time.

    Args:
        log_time: predicted log times, shape (rows,).
        residual: log(measured / predicted) of the same rows.
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
        ends = np.quantile(residual[rows], [edge, 1.0 - edge])
        low.append(float(min(ends[0], -1e-5)))
        high.append(float(max(ends[1], 1e-5)))
    return Quantiles(tuple(knots), tuple(low), tuple(high))
