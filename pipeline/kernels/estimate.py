"""The result of every kernel model: kernel time, latency as samples measure it, interval, and evidence.

Intervals are p10 to p90 of residuals log(measured / predicted) over cross-validation folds, in bins of predicted time
(conformal prediction). They know one session: one card, at the clocks of one day. `Session` is the error of another one.
A GPU's own `BandwidthCurve` and `Floor` are what all its families share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.families import FAMILIES
from pipeline.families.dims import values_of
from pipeline.families.family import Law
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import LOW_POWER_W
from pipeline.model_files import SHARED, read_by_gpu, shipped_file

T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """Times of calls in microseconds, each array of shape (rows,).

    `latency` is the time that a measurement around the call gives, floor included. `kernel`, `p10` and `p90` are times
    of the kernel alone. `inside` says whether the sizes lie within the range of the model's samples.
    """

    latency: Array
    kernel: Array
    p10: Array
    p90: Array
    inside: Flags
    latency_p10: Array
    latency_p90: Array

    @classmethod
    def around(cls, latency: Array, kernel: Array, spread: Array | float, floor: Array) -> Estimate:
        """Kernel times with one factor up and down; the latency's interval follows from it, not below the floor."""
        low, high = kernel / spread, kernel * spread
        rest = np.maximum(latency - kernel, 0.0)
        ends = np.maximum(rest + low, np.minimum(floor, latency)), np.maximum(rest + high, latency)
        return cls(latency, kernel, low, high, np.ones(len(kernel), dtype=bool), *ends)

    def rows(self, kept: Flags | Ints) -> Estimate:
        """Select the rows of a mask of shape (rows,), or rows by their places."""
        return Estimate(*(getattr(self, name)[kept] for name in ESTIMATE_COLUMNS))

    def scale(self, factor: Array | float, spread: Array | float = 1.0) -> Estimate:
        """Multiply kernel times by `factor`, and the intervals' log half-widths by `spread`; the offset stays."""
        kernel = self.kernel * factor
        low = kernel * (self.p10 / self.kernel) ** spread
        high = kernel * (self.p90 / self.kernel) ** spread
        latency = np.maximum(self.latency - self.kernel, 0.0) + kernel
        bottom = latency * (self.latency_p10 / self.latency) ** spread
        top = latency * (self.latency_p90 / self.latency) ** spread
        return Estimate(latency, kernel, low, high, self.inside, bottom, top)

    def floored(self, floor: Array) -> Estimate:
        """Raise latencies to at least a host's floor, shape (rows,), µs; kernel times and lower ends do not change."""
        latency = np.maximum(self.latency, floor)
        return replace(self, latency=latency, latency_p90=np.maximum(self.latency_p90, latency))

    def widen(self, spread: Array | float) -> Estimate:
        """Add an independent uncertainty, a factor `spread` up and down, to the kernel's interval.

        The latency's interval becomes at least as wide as the kernel's, in microseconds.
        """
        low = further(self.kernel, self.p10, -np.log(spread))
        high = further(self.kernel, self.p90, np.log(spread))
        bottom = np.minimum(self.latency_p10, self.latency - (self.kernel - low))
        top = np.maximum(self.latency_p90, self.latency + (high - self.kernel))
        return Estimate(self.latency, self.kernel, low, high, self.inside, bottom, top)

    def in_any_session(self, low: float, high: float, least_us: Array | float = 0.0) -> Estimate:
        """Add another session's error to both intervals: `-low` and `high` in log time; none begins below `least_us` (rows,)."""
        return replace(
            self,
            p10=np.fmax(further(self.kernel, self.p10, -low), least_us),
            p90=further(self.kernel, self.p90, high),
            latency_p10=np.fmax(further(self.latency, self.latency_p10, -low), least_us),
            latency_p90=further(self.latency, self.latency_p90, high),
        )


def further(middle: Array, end: Array, extra: Array | float) -> Array:
    """An end of an interval around `middle`, with an independent error added: `extra` in log time, below 0 at the lower end."""
    apart = np.hypot(np.log(end / middle), extra)
    return middle * np.exp(np.copysign(apart, extra))


EXTRAPOLATED = " extrapolated"
"""What the evidence of a call outside the range of its model's samples ends with."""

ESTIMATE_COLUMNS = tuple(entry.name for entry in fields(Estimate))


def merge(base: Estimate, new: Estimate, at: Any) -> Estimate:
    """`base` with the rows `at` (mask or positions) replaced by those of `new`."""
    merged: list[Array] = []
    for name in ESTIMATE_COLUMNS:
        values = np.array(getattr(base, name))
        values[at] = getattr(new, name)
        merged.append(values)
    return Estimate(*merged)  # type: ignore[arg-type]


def joined(parts: Sequence[Estimate]) -> Estimate:
    """The rows of all parts, in their order; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Estimate(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ESTIMATE_COLUMNS)
    )


class KernelModel(Protocol):
    """A model of one family on one GPU."""

    @property
    def evidence(self) -> str:
        """Source of the samples: one of measured, fitted, pack, transferred."""

    def evidence_of(self, calls: pd.DataFrame) -> Texts:
        """Evidence of each row, shape (rows,); it differs between rows only where a model combines several models."""
        return np.full(len(calls), self.evidence, dtype=object)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Rows whose op, dtype, phase and window are in the samples; other rows must be derived."""

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Estimate calls of the family; ops and dtypes that the samples lack are treated as the nearest known ones."""


@dataclass(frozen=True)
class Floor:
    """Latency that event timing gives for a kernel of time k: max(floor, `offset_us` + k).

    The offset is the time from the first event to the kernel's start, plus the time from its end to the second event.
    The floor is the shortest latency: it is reached when the host cannot enqueue faster. Floors are per op, with a
    default for other ops.
    """

    offset_us: float
    default_us: float
    by_op: Mapping[str, float]

    def of(self, ops: Texts) -> Array:
        """Floor of each row's op, shape (rows,)."""
        return values_of(ops, self.by_op, self.default_us)

    def latency(self, kernel_us: Array, ops: Texts) -> Array:
        """Latency of kernels as a measurement would give it."""
        return np.maximum(self.of(ops), self.offset_us + kernel_us)

    def kernel(self, latency_us: Array, prior_us: Array, ops: Texts) -> Array:
        """Kernel time of a latency: latency minus offset well above the floor, and the prior at the floor.

        Between `BLEND_FROM` and `BLEND_TO` times the floor, the two are blended in log time. The prior is never longer
        than the latency minus the offset.
        """
        floor = self.of(ops)
        if self.default_us <= 0 and not self.by_op:
            return np.maximum(latency_us - self.offset_us, MIN_KERNEL_US)
        above = np.maximum(latency_us - self.offset_us, MIN_KERNEL_US)
        hidden = np.clip(prior_us, MIN_KERNEL_US, np.maximum(above, MIN_KERNEL_US))
        weight = np.clip((latency_us / floor - BLEND_FROM) / (BLEND_TO - BLEND_FROM), 0.0, 1.0)
        return np.exp(weight * np.log(above) + (1.0 - weight) * np.log(hidden))


MIN_KERNEL_US = 1.0
"""Shortest kernel time, us: no kernel of the public traces is shorter."""

BLEND_FROM, BLEND_TO = 1.02, 1.25
"""Multiples of the floor between which a latency begins to show its kernel: repeated floors differ by 2 %, and from 25 %
above the floor, the latency is the kernel plus the offset."""


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
        edge = (
            (0.1 * (len(rows) + 1) - 1) / max(len(rows) - 1, 1)
            if few
            else 0.1 * (1.0 - 1.0 / (len(rows) + 1))
        )
        edge = np.clip(edge, 0.0, 0.5)
        ends = np.quantile(residual[rows], [edge, 1.0 - edge])
        low.append(float(min(ends[0], -1e-5)))
        high.append(float(max(ends[1], 1e-5)))
    return Quantiles(tuple(knots), tuple(low), tuple(high))


FILE = "sessions.json"
"""Name of the file of sessions in the shared pack; `evaluation/checks/session_fit.py` makes it."""

LOW_POWER, OTHER_CARDS, LOW_POWER_CARDS = "T4", "other cards", "low-power cards"
"""The card that shows how the clock depends on heat and power for those of so little power that were not measured twice, and the
names of both kinds in the file."""

NOTED_RATIO = 1.1
"""Ratio of product rates between sessions from which an answer says which clock it means."""


@dataclass(frozen=True)
class Session:
    """The error that all kernels of a step share: session, card and clock. Its p10 and p90 in log time: -`low`, `high`."""

    low: float
    high: float


def session_of(gpu: GpuSpec, family: str) -> Session:
    """The session error of a family's kernels on a GPU: that of the card if it was measured twice, else of other cards.

    A family that was not measured twice has the error of matrix products if it computes, else that of element-wise kernels.

    Raises:
        PackError: the shipped file is damaged.
    """
    cards = _read_sessions(shipped_file(SHARED, FILE))
    like = "gemm" if FAMILIES[family].law is Law.COMPUTE else "elementwise"
    low_power = [LOW_POWER_CARDS] if gpu.tdp_w <= LOW_POWER_W else []
    for card in (gpu.name, *low_power, OTHER_CARDS):
        for name in (family, like):
            if name in (entries := cards.get(card, {})):
                return entries[name]
    return Session(0.0, 0.0)


def clock_notes(gpu: GpuSpec) -> tuple[str, ...]:
    """Which clock a prediction means, where the clock of products depends on heat and power, and which card showed it."""
    faster = float(np.exp(session_of(gpu, "gemm").low))
    if gpu.limits is None or gpu.tdp_w > LOW_POWER_W or faster < NOTED_RATIO:
        return ()
    load = f"{gpu.name} is predicted at its clock under continuous load;"
    fast = f"its products ran up to {faster:.1f} times as fast"
    if gpu.name == LOW_POWER:
        return (f"{load} in whole models, {fast}",)
    if gpu.name in _read_sessions(shipped_file(SHARED, FILE)):
        return (f"{load} cool, {fast}",)
    return (
        f"{gpu.name}'s clock may depend on heat (not measured): products of two sessions of a"
        f" {LOW_POWER}, as small a card, differed by up to {faster:.1f} times",
    )


@lru_cache(maxsize=4)
def _read_sessions(path: Path | None) -> dict[str, dict[str, Session]]:
    return read_by_gpu(path, partial(converted, kind=dict[str, Session])) if path else {}


def converted(values: Any, kind: type[T]) -> T:
    """JSON values as an object of a class of models.

    Raises:
        ValueError: the values are not those of its fields.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
