"""Estimates of the latency floor of event-timed samples, and of the bandwidth curve, from the samples of one GPU.

A kernel that lasts k has an event latency of max(floor, offset + k): see `estimate.Floor`. The offset and the GPU's
bandwidth curve are fitted on element-wise ops, whose traffic is known exactly. The floor of each op comes from its
smallest samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families import work_of
from pipeline.families.chip import SMALLEST_KERNEL_US, BandwidthCurve
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Floor
from pipeline.kernels.physics import Physics

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

SHORTEST_BYTES = 100_000.0
"""Traffic below which a kernel takes little longer than its start, bytes."""

HIDDEN_KERNEL_RATIO = 4.0
"""Ratio of latency to physical prediction above which the latency is taken to be the floor, not the kernel's time."""

MAX_UNSEEN_FLOOR_US = 32.0
"""Upper bound of an op's floor where no sample is at the floor, microseconds: the median of the public samples."""

MAX_LOG_LOSS = -0.5
"""Upper bound of the log ratio in the fit: the low bandwidth is at least 1 / (1 + e^-0.5) = 62 % of the peak.

Start-up time and event offset already describe small sizes. A lower bandwidth would replace them in the fit."""

MIN_OFFSET_US = 8.0
"""Lower bound of the event offset, us: two event records and one launch take at least this."""


def op_floors(samples: pd.DataFrame, kernel_us: Array) -> dict[str, float]:
    """Floor of each op, microseconds: the median latency of the samples with the smallest predicted kernel times."""
    floors: dict[str, float] = {}
    for op, rows in samples.reset_index(drop=True).groupby("op", observed=True).groups.items():
        at = np.asarray(rows)
        latency, expected = samples["latency_us"].to_numpy(dtype=float)[at], kernel_us[at]
        small = latency[expected < SMALL_WORK_US]
        if len(small) >= FLOOR_SAMPLES:
            floors[str(op)] = float(np.median(small))
            continue
        shortest = np.argsort(expected)[:FLOOR_SAMPLES]
        typical = float(np.median(latency[shortest]))
        hidden = typical > HIDDEN_KERNEL_RATIO * float(np.median(expected[shortest]))
        # even the smallest samples may be above the floor; then the floor is at most the minimum latency
        floors[str(op)] = (
            typical if hidden else float(min(latency[shortest].min(), MAX_UNSEEN_FLOOR_US))
        )
    return floors


def memory_curve(samples: pd.DataFrame, gpu: GpuSpec) -> CurveFit | None:
    """Fit the bandwidth curve of device memory on element-wise samples; None if too few samples are above the floor."""
    rows = samples[
        (samples["family"] == "elementwise") & samples["op"].isin(STREAMING_OPS)
    ].reset_index(drop=True)
    if len(rows) < MIN_CURVE_SAMPLES:
        return None
    size = work_of("elementwise", rows).bytes
    measured, timed = kernel_times(rows)
    if timed:
        # of sizes between, the time depends on what the cache holds
        keep = (size > gpu.l2_bytes) | (size < SHORTEST_BYTES)
        start = float(np.clip(np.quantile(measured, 0.01), 0.5, 20.0))
    else:
        floors = rows["op"].map(op_floors(rows, Physics.of(gpu).reference_us("elementwise", rows)))
        keep, start = measured > ABOVE_FLOOR * floors.to_numpy(dtype=float), SMALLEST_KERNEL_US
    if keep.sum() < MIN_CURVE_SAMPLES:
        return None
    return fit_curve(size[keep], measured[keep], start, gpu.peak_dram_gb_per_s(), offset=not timed)


def kernel_times(samples: pd.DataFrame) -> tuple[Array, bool]:
    """The times to fit, and whether they are kernel times: `kernel_us` where every row has it, else `latency_us`."""
    if "kernel_us" in samples.columns:
        kernel = pd.to_numeric(samples["kernel_us"], errors="coerce").to_numpy(
            dtype=float, na_value=np.nan
        )
        if len(kernel) and np.all(np.isfinite(kernel) & (kernel > 0)):
            return kernel, True
    return samples["latency_us"].to_numpy(dtype=float), False


def estimate_floor(samples: pd.DataFrame, physics: Physics, offset_us: float) -> Floor:
    """Floors of the ops of one family's samples.

    If the samples have kernel times, the offset is the median difference between latency and kernel time, at most
    `offset_us`.
    """
    name = str(samples["family"].iloc[0])
    measured, timed = kernel_times(samples)
    latency = samples["latency_us"].to_numpy(dtype=float)
    if timed:
        extra = float(np.median(np.maximum(latency - measured, 0.0)))
        return Floor(
            min(extra, offset_us) if extra else 0.0, 0.0 if not extra else float(latency.min()), {}
        )
    floors = op_floors(samples, physics.reference_us(name, samples))
    # a kernel time cannot be negative: the offset stays below the smallest floor
    offset = min(offset_us, 0.9 * min(floors.values()))
    return Floor(offset, float(np.median(list(floors.values()))), floors)


@dataclass(frozen=True)
class CurveFit:
    """A curve and the offset of the measurement: latency = max(`floor_us`, `offset_us` + curve), microseconds."""

    curve: BandwidthCurve
    offset_us: float
    error: float  # geometric mean of relative errors on the fitted points above the floor


def fit_curve(
    size: Array,
    latency_us: Array,
    start_us: float,
    peak_hint_gb_per_s: float,
    offset: bool,
    max_log_loss: float = MAX_LOG_LOSS,
) -> CurveFit:
    """Fit a curve to latencies that lie above the floor.

    Args:
        size: bytes moved, shape (points,).
        latency_us: their latencies, shape (points,).
        start_us: duration of the smallest kernel, which an event latency cannot separate from its own offset. Kernel times
            may show a longer start, but no shorter one.
        peak_hint_gb_per_s: start value of the peak bandwidth in the search.
        offset: whether the latencies contain a constant besides the kernel (event timing), which is then fitted too.
        max_log_loss: bound of the low bandwidth, as `MAX_LOG_LOSS`; larger where samples show the start-up time well.
    """
    from scipy.optimize import least_squares

    size, latency_us = np.asarray(size, dtype=float), np.asarray(latency_us, dtype=float)

    def unpack(p: Array) -> tuple[BandwidthCurve, float]:
        peak = float(np.exp(p[0]))
        start, extra = (start_us, float(np.exp(p[4]))) if offset else (float(np.exp(p[4])), 0.0)
        return BandwidthCurve(
            start, peak, peak / (1.0 + float(np.exp(p[1]))), float(p[2]), float(np.exp(p[3]))
        ), extra

    def residual(p: Array) -> Array:
        curve, extra = unpack(p)
        return np.log((extra + curve.time_us(size)) / latency_us)

    middle = float(np.log2(np.median(size)))
    start = np.array(
        [np.log(peak_hint_gb_per_s), -1.0, middle, 0.0, np.log(10.0 if offset else start_us)]
    )
    low = np.array(
        [
            np.log(peak_hint_gb_per_s / 20),
            -6.0,
            8.0,
            -2.0,
            np.log(MIN_OFFSET_US if offset else start_us),
        ]
    )
    high = np.array([np.log(peak_hint_gb_per_s * 20), max_log_loss, 36.0, 1.5, np.log(60.0)])
    solution = least_squares(
        residual, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=0.02
    )
    curve, extra = unpack(solution.x)
    error = float(np.exp(np.mean(np.log(np.maximum(np.abs(np.expm1(residual(solution.x))), 1e-6)))))
    return CurveFit(curve, extra, error)
