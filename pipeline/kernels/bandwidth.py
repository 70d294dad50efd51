"""Time to move bytes: a start-up time, then a bandwidth that rises with size along a sigmoid.

The model is that of Lin et al. (section on memory-bound kernels). Small sizes take a constant overhead. Large sizes
take size over peak bandwidth. Between them, log10(bandwidth) is a sigmoid of log2(size), fitted to measured points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from pipeline.kernels.work import Array

SMALLEST_KERNEL_US = 2.0
"""Duration of a kernel with almost no work, us: element-wise kernels on a few elements in public V100 and A100 traces."""

MAX_LOG_LOSS = -0.5
"""Upper bound of the log ratio in the fit: the low bandwidth is at least 1 / (1 + e^-0.5) = 62 % of the peak.

Start-up time and event offset already describe small sizes. A lower bandwidth would replace them in the fit."""

MIN_OFFSET_US = 8.0
"""Lower bound of the event offset, us: two event records and one launch take at least this."""


@dataclass(frozen=True)
class BandwidthCurve:
    """t(S) = start_us + S / bw(S); bw rises from low to peak GB/s around 2^middle_log2 bytes, `slope` octaves wide."""

    start_us: float
    peak_gb_per_s: float
    low_gb_per_s: float
    middle_log2: float
    slope: float

    @classmethod
    def flat(cls, peak_gb_per_s: float, start_us: float = SMALLEST_KERNEL_US) -> BandwidthCurve:
        """Start-up time plus one bandwidth, where only a spec file is known."""
        return cls(start_us, peak_gb_per_s, peak_gb_per_s, 20.0, 1.0)

    def bandwidth(self, size: Array) -> Array:
        """GB/s at `size` bytes."""
        low, high = np.log10(self.low_gb_per_s), np.log10(self.peak_gb_per_s)
        octaves = (np.log2(np.maximum(size, 1.0)) - self.middle_log2) / max(self.slope, 1e-3)
        return np.asarray(10.0 ** (low + (high - low) / (1.0 + np.exp(-np.clip(octaves, -50.0, 50.0)))))

    def time_us(self, size: Array) -> Array:
        """Microseconds for `size` bytes; 1 GB/s is 1e3 bytes per microsecond."""
        return np.asarray(self.start_us + np.maximum(size, 0.0) / (1e3 * self.bandwidth(size)))

    def moving_us(self, size: Array) -> Array:
        """Time of `size` bytes without the start-up time, microseconds."""
        return np.asarray(self.time_us(size) - self.start_us)

    def faster(self, factor: float) -> BandwidthCurve:
        """The same curve with every bandwidth times `factor`; the start-up time does not change."""
        return replace(self, peak_gb_per_s=factor * self.peak_gb_per_s, low_gb_per_s=factor * self.low_gb_per_s)

    def to_json(self) -> dict[str, float]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, float]) -> BandwidthCurve:
        """Read the result of `to_json`."""
        return cls(**{key: float(value) for key, value in values.items()})


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
        start_us: duration of the smallest kernel, which an event latency cannot separate from its own offset.
        peak_hint_gb_per_s: start value of the peak bandwidth in the search.
        offset: whether the latencies contain a constant besides the kernel (event timing), which is then fitted too.
        max_log_loss: bound of the low bandwidth, as `MAX_LOG_LOSS`; larger where samples show the start-up time well.
    """
    from scipy.optimize import least_squares

    size, latency_us = np.asarray(size, dtype=np.float64), np.asarray(latency_us, dtype=np.float64)

    def unpack(p: Array) -> tuple[BandwidthCurve, float]:
        peak = float(np.exp(p[0]))
        start, extra = (start_us, float(np.exp(p[4]))) if offset else (float(np.exp(p[4])), 0.0)
        return BandwidthCurve(start, peak, peak / (1.0 + float(np.exp(p[1]))), float(p[2]), float(np.exp(p[3]))), extra

    def residual(p: Array) -> Array:
        curve, extra = unpack(p)
        return np.asarray(np.log((extra + curve.time_us(size)) / latency_us))

    middle = float(np.log2(np.median(size)))
    start = np.array([np.log(peak_hint_gb_per_s), -1.0, middle, 0.0, np.log(10.0 if offset else start_us)])
    low = np.array([np.log(peak_hint_gb_per_s / 20), -6.0, 8.0, -2.0, np.log(MIN_OFFSET_US if offset else 0.3)])
    high = np.array([np.log(peak_hint_gb_per_s * 20), max_log_loss, 36.0, 1.5, np.log(60.0)])
    solution = least_squares(residual, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=0.02)
    curve, extra = unpack(solution.x)
    error = float(np.exp(np.mean(np.log(np.maximum(np.abs(np.expm1(residual(solution.x))), 1e-6)))))
    return CurveFit(curve, extra, error)
