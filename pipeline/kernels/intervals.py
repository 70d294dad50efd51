"""Calibrated p10 to p90 intervals from the residuals of out-of-fold predictions, and what another session changes.

Residuals log(measured / predicted) are collected over cross-validation folds. Their 10 % and 90 % quantiles, in bins of
predicted time, are the ends of the interval (conformal prediction). They know one session: one card, at the clocks of one
day. `Session` is the error of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import FAMILIES, Law
from pipeline.kernels.work import Array
from pipeline.model_files import read_by_gpu
from pipeline.packs import SHARED, shipped_file

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


FILE = "sessions.json"
"""Name of the file of sessions in the shared pack; `evaluation/checks/session_fit.py` makes it."""

LOW_POWER_W, OTHER_CARDS, LOW_POWER_CARDS = 75.0, "other cards", "low-power cards"
"""Board power up to which the clock of products depends on heat and power (P4, T4, L4), and the names in the file of cards
that were not measured twice."""


NOTED_RATIO = 1.1
"""Ratio of product rates between sessions from which an answer says which clock it means."""


@dataclass(frozen=True)
class Session:
    """The error that all kernels of a step share: session, card and clock. Its p10 and p90 in log time: -`low`, `high`."""

    low: float
    high: float

    @classmethod
    def from_json(cls, values: Mapping[str, float]) -> Session:
        """Read an entry of the file."""
        return cls(float(values["low"]), float(values["high"]))


def session_of(gpu: GpuSpec, family: str) -> Session:
    """The session error of a family's kernels on a GPU: that of the card if it was measured twice, else of other cards.

    A family that was not measured twice has the error of matrix products if it computes, else that of element-wise kernels.

    Raises:
        PackError: the shipped file is damaged.
    """
    path = shipped_file(SHARED, FILE)
    if path is None:
        return Session(0.0, 0.0)
    cards = _read_sessions(path)
    like = "gemm" if FAMILIES[family].law is Law.COMPUTE else "elementwise"
    low_power = [LOW_POWER_CARDS] if gpu.tdp_w <= LOW_POWER_W else []
    for card in (gpu.name, *low_power, OTHER_CARDS):
        for name in (family, like):
            if name in (entries := cards.get(card, {})):
                return entries[name]
    return Session(0.0, 0.0)


def clock_notes(gpu: GpuSpec) -> tuple[str, ...]:
    """Which clock a prediction means, where the clock of products depends on heat and power."""
    faster = float(np.exp(session_of(gpu, "gemm").low))
    if gpu.limits is None or gpu.tdp_w > LOW_POWER_W or faster < NOTED_RATIO:
        return ()
    return (
        f"{gpu.name} is predicted at its clock under continuous load; cool, its products ran up to {faster:.1f} times as fast",
    )


@lru_cache(maxsize=4)
def _read_sessions(path: Path) -> dict[str, dict[str, Session]]:
    return read_by_gpu(path, lambda card: {name: Session.from_json(values) for name, values in card.items()})
