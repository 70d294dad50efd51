"""The result of every kernel model: kernel time, latency as samples measure it, interval, and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.work import Array, values_of


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
    inside: npt.NDArray[np.bool_]
    latency_p10: Array
    latency_p90: Array

    @classmethod
    def around(cls, latency: Array, kernel: Array, spread: Array | float, floor: Array) -> Estimate:
        """Kernel times with one factor up and down; the latency's interval follows from it, not below the floor."""
        low, high = kernel / spread, kernel * spread
        rest = np.maximum(latency - kernel, 0.0)
        ends = np.maximum(rest + low, np.minimum(floor, latency)), np.maximum(rest + high, latency)
        return cls(latency, kernel, low, high, np.ones(len(kernel), dtype=bool), *ends)

    def rows(self, kept: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Estimate:
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
        extra = np.log(spread)
        low = self.kernel * np.exp(-np.hypot(np.log(self.p10 / self.kernel), extra))
        high = self.kernel * np.exp(np.hypot(np.log(self.p90 / self.kernel), extra))
        bottom = np.minimum(self.latency_p10, self.latency - (self.kernel - low))
        top = np.maximum(self.latency_p90, self.latency + (high - self.kernel))
        return Estimate(self.latency, self.kernel, low, high, self.inside, bottom, top)

    def in_any_session(self, low: float, high: float) -> Estimate:
        """Add the error of another session, whose p10 and p90 are `-low` and `high` in log time, to both intervals."""
        return replace(
            self,
            p10=self.kernel * np.exp(-np.hypot(np.log(self.p10 / self.kernel), low)),
            p90=self.kernel * np.exp(np.hypot(np.log(self.p90 / self.kernel), high)),
            latency_p10=self.latency * np.exp(-np.hypot(np.log(self.latency_p10 / self.latency), low)),
            latency_p90=self.latency * np.exp(np.hypot(np.log(self.latency_p90 / self.latency), high)),
        )


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
    return Estimate(*(np.concatenate([getattr(part, name) for part in parts]) for name in ESTIMATE_COLUMNS))


class KernelModel(Protocol):
    """A model of one family on one GPU."""

    @property
    def evidence(self) -> str:
        """Source of the samples: one of measured, fitted, pack, transferred."""

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row, shape (rows,); it differs between rows only where a model combines several models."""
        return np.full(len(calls), self.evidence, dtype=object)

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Floor:
        """From the values of `family.json`."""
        by_op = {str(op): float(floor) for op, floor in values["by_op"].items()}
        return cls(float(values["offset_us"]), float(values["default_us"]), by_op)

    def of(self, ops: npt.NDArray[np.object_]) -> Array:
        """Floor of each row's op, shape (rows,)."""
        return values_of(ops, self.by_op, self.default_us)

    def latency(self, kernel_us: Array, ops: npt.NDArray[np.object_]) -> Array:
        """Latency of kernels as a measurement would give it."""
        return np.maximum(self.of(ops), self.offset_us + kernel_us)

    def kernel(self, latency_us: Array, prior_us: Array, ops: npt.NDArray[np.object_]) -> Array:
        """Kernel time of a latency: latency minus offset well above the floor, and the prior at the floor.

        Between `BLEND_FROM` and `BLEND_TO` times the floor, the two are blended in log time. The prior is never longer
        than the latency minus the offset.
        """
        floor = self.of(ops)
        if self.default_us <= 0 and not self.by_op:
            return np.asarray(np.maximum(latency_us - self.offset_us, MIN_KERNEL_US))
        above = np.maximum(latency_us - self.offset_us, MIN_KERNEL_US)
        hidden = np.clip(prior_us, MIN_KERNEL_US, np.maximum(above, MIN_KERNEL_US))
        weight = np.clip((latency_us / floor - BLEND_FROM) / (BLEND_TO - BLEND_FROM), 0.0, 1.0)
        return np.asarray(np.exp(weight * np.log(above) + (1.0 - weight) * np.log(hidden)))


MIN_KERNEL_US = 1.0
"""Shortest kernel time, us: no kernel of the public traces is shorter."""

BLEND_FROM, BLEND_TO = 1.02, 1.25
"""Multiples of the floor between which a latency begins to show its kernel: repeated floors differ by 2 %, and from 25 %
above the floor, the latency is the kernel plus the offset."""
