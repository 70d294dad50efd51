"""Kernel times by physics: each family's formula on one GPU, with its uncertainty.

They are the fallback for every family without a fitted model. They are also the prior for kernels that are shorter than
the latency floor of the samples. Times are kernel times, without the launch and without the latency floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families import family
from pipeline.families.chip import Chip
from pipeline.families.convolutions import volumes
from pipeline.families.dims import Dims
from pipeline.families.family import Calls, Law
from pipeline.hardware.spec import GpuSpec

PHYSICS_SPREAD = {
    Law.MOVEMENT: 1.45, Law.COMPUTE: 1.6, Law.LINK: 1.5, Law.EMBEDDING: 1.6, Law.COLLECTIVE: 2.5,
    Law.SORT: 2.0,
}  # fmt: skip
"""Factor between a formula's time and the ends of its p10-p90 interval, which holds about 80 % of the kernels of public
traces (docs/kernels.md)."""


LARGE_SIDES, BEYOND_SHARE = {"M": 8192.0, "K": 8192.0}, 1.04
"""Rows and columns of a product that fills a GPU. Sizes beyond the samples' range add time at the rate of such a product with
their sum's length, times the second figure. Short sums reach less of the peak: a V100's of two elements 0.48 of its bandwidth, of
256 0.82 of its peak. The figure is the mean of the four fp32 products of `measurements/H100` with more than 16,384 rows and a side
of up to 300, of the half of the shapes that sets constants (0.96 to 1.15)."""


@dataclass(frozen=True)
class Physics(Chip):
    """The formulas of all families on one GPU."""

    def calls(self, name: str, table: pd.DataFrame) -> Calls:
        """Calls of one family, with their work, on this GPU."""
        return family(name).on(self, Dims(table))

    def kernel_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Kernel times of calls of one family, us, shape (rows,); NaN where neither dims nor bytes are known."""
        return family(name).time_us(self.calls(name, calls))

    def reference_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Reference times that learned models correct (`Family.reference`), us, shape (rows,), with the start of the curve."""
        own = self.calls(name, calls)
        return family(name).reference_us(own) - own.start + self.memory.start_us

    def start_us(self, name: str) -> float:
        """Duration of a family's kernel at negligible size, us; for a CPU, the start time of the memory curve."""
        return self.started_us(family(name).start)

    def spread(self, name: str, calls: pd.DataFrame) -> Array | float:
        """Factor between a formula's time and the ends of its p10-p90 interval, of the family or shape (rows,)."""
        entry = family(name)
        usual = PHYSICS_SPREAD[entry.law]
        return usual if entry.spread is None else entry.spread(self.calls(name, calls), usual)

    def added_us(
        self,
        name: str,
        calls: pd.DataFrame,
        within: pd.DataFrame,
        large: pd.DataFrame,
        large_us: Array,
    ) -> Array:
        """Time that calls add to those `within` the samples' range at the chip's rates, us, shape (rows,); NaN where they add none.

        Args:
            name: the family, which states `added`.
            calls: calls of the family.
            within: the nearest calls in the samples' range, one for each row.
            large: large calls in that range, one for each row, which take `large_us`: how far from its peak the chip runs.
        """
        added = family(name).added
        assert added is not None
        full, longer, usual = (added(self.calls(name, rows)) for rows in (large, calls, within))
        return np.where(longer > usual, BEYOND_SHARE * (longer - usual) * large_us / full, np.nan)

    def least_moving_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Time of the bytes that L2 cannot hold at the datasheet's bandwidth, us, shape (rows,): no call is faster."""
        beyond = self.calls(name, calls).work.bytes - self.gpu.l2_bytes
        return np.maximum(beyond, 0.0) / (1e3 * self.gpu.dram_gb_per_s)

    def least_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Arithmetic at the datasheet's peak where nothing was measured (fp64, fp32 volumes), us, shape (rows,); else 0."""
        own = self.calls(name, calls)
        double = own.dtype == "fp64"
        volume = name.startswith("conv2d") & volumes(own.d) & (own.dtype == "fp32")
        bounded = (double | volume) & (own.family.law is Law.COMPUTE)
        fp64, fp32 = (1e3 * self.gpu.datasheet_gflop_per_s(of) for of in ("fp64", "fp32"))
        us = np.nan_to_num(own.work.flops) / np.where(double, fp64, fp32)
        return np.where(bounded, us, 0.0)


def raised_to_min_duration(
    kernel_us: Array, family: str, gpu: GpuSpec, measured_us: Array | None = None
) -> Array:
    """Kernel times raised to the duration of a family's kernel at negligible size (`Family.start`).

    Latencies above a host's floor do not show how long the shortest kernels take, and scaling has no lower limit. All
    transfer methods raise shorter predictions here.

    Args:
        kernel_us: predicted times, shape (rows,).
        family: a kernel family.
        gpu: the GPU of the prediction; a CPU starts no kernels, so its times are returned unchanged.
        measured_us: times of the same calls on another GPU; a call that was shorter there may be as short here.
    """
    if gpu.limits is None:
        return kernel_us
    start = np.full(len(kernel_us), Physics.of(gpu).start_us(family))
    shortest = start if measured_us is None else np.minimum(start, measured_us)
    return np.asarray(np.maximum(kernel_us, shortest))
