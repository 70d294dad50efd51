"""Estimates of the latency floor of event-timed samples, and of the bandwidth curve, from the samples of one GPU.

A kernel that lasts k has an event latency of max(floor, offset + k): see `estimate.Floor`. The offset and the GPU's
bandwidth curve are fitted on element-wise ops, whose traffic is known exactly. The floor of each op comes from its
smallest samples.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.bandwidth import SMALLEST_KERNEL_US, CurveFit, fit_curve
from pipeline.kernels.estimate import Floor
from pipeline.kernels.families import work_of
from pipeline.kernels.physics import Physics
from pipeline.kernels.work import Array

STREAMING_OPS = ("relu", "tanh", "add", "mul")
"""Element-wise ops whose time is memory traffic alone. Other ops may be limited by arithmetic on GPUs with low peak
FLOP/s."""

ABOVE_FLOOR = 1.25
"""Multiple of the floor above which a latency depends on the kernel's own time."""

SMALL_WORK_US = 3.0
"""Samples for which the physical model predicts less than this many microseconds are taken to be at the floor."""

MIN_CURVE_SAMPLES = 30
"""Minimum number of samples above the floor for a curve fit."""

FLOOR_SAMPLES = 5
"""Number of smallest samples whose median latency is taken as the floor."""

HIDDEN_KERNEL_RATIO = 4.0
"""Ratio of latency to physical prediction above which the latency is taken to be the floor, not the kernel's time."""

MAX_UNSEEN_FLOOR_US = 32.0
"""Upper bound of an op's floor where no sample is at the floor, microseconds: the median of the public samples."""


def op_floors(samples: pd.DataFrame, kernel_us: Array) -> dict[str, float]:
    """Floor of each op, microseconds: the median latency of the samples with the smallest predicted kernel times."""
    floors: dict[str, float] = {}
    for op, rows in samples.reset_index(drop=True).groupby("op", observed=True).groups.items():
        at = np.asarray(rows)
        latency, expected = samples["latency_us"].to_numpy(dtype=np.float64)[at], kernel_us[at]
        small = latency[expected < SMALL_WORK_US]
        if len(small) >= FLOOR_SAMPLES:
            floors[str(op)] = float(np.median(small))
            continue
        shortest = np.argsort(expected)[:FLOOR_SAMPLES]
        typical = float(np.median(latency[shortest]))
        hidden = typical > HIDDEN_KERNEL_RATIO * float(np.median(expected[shortest]))
        # even the smallest samples may be above the floor; then the floor is at most the minimum latency
        floors[str(op)] = typical if hidden else float(min(latency[shortest].min(), MAX_UNSEEN_FLOOR_US))
    return floors


def memory_curve(samples: pd.DataFrame, gpu: GpuSpec) -> CurveFit | None:
    """Fit the bandwidth curve of device memory on element-wise samples; None if too few samples are above the floor."""
    rows = samples[(samples["family"] == "elementwise") & samples["op"].isin(STREAMING_OPS)].reset_index(drop=True)
    if len(rows) < MIN_CURVE_SAMPLES:
        return None
    size = work_of("elementwise", rows).bytes
    measured, timed = kernel_times(rows)
    if timed:
        keep, start = measured > 1.5 * SMALLEST_KERNEL_US, float(np.clip(np.quantile(measured, 0.01), 0.5, 20.0))
    else:
        floors = rows["op"].map(op_floors(rows, Physics.of(gpu).reference_us("elementwise", rows)))
        keep, start = measured > ABOVE_FLOOR * floors.to_numpy(dtype=np.float64), SMALLEST_KERNEL_US
    if keep.sum() < MIN_CURVE_SAMPLES:
        return None
    return fit_curve(size[keep], measured[keep], start, gpu.peak_dram_gb_per_s(), offset=not timed)


def kernel_times(samples: pd.DataFrame) -> tuple[Array, bool]:
    """The times to fit, and whether they are kernel times: `kernel_us` where every row has it, else `latency_us`."""
    if "kernel_us" in samples.columns:
        kernel = pd.to_numeric(samples["kernel_us"], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if len(kernel) and np.all(np.isfinite(kernel) & (kernel > 0)):
            return kernel, True
    return samples["latency_us"].to_numpy(dtype=np.float64), False


def estimate_floor(samples: pd.DataFrame, physics: Physics, offset_us: float) -> Floor:
    """Floors of the ops of one family's samples.

    If the samples have kernel times, the offset is the median difference between latency and kernel time, at most
    `offset_us`.
    """
    name = str(samples["family"].iloc[0])
    measured, timed = kernel_times(samples)
    latency = samples["latency_us"].to_numpy(dtype=np.float64)
    if timed:
        extra = float(np.median(np.maximum(latency - measured, 0.0)))
        return Floor(min(extra, offset_us) if extra else 0.0, 0.0 if not extra else float(latency.min()), {})
    floors = op_floors(samples, physics.reference_us(name, samples))
    # a kernel time cannot be negative: the offset stays below the smallest floor
    offset = min(offset_us, 0.9 * min(floors.values()))
    return Floor(offset, float(np.median(list(floors.values()))), floors)
