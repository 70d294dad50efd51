"""The figures of one GPU that the formulas of kernel families need: its file, and bandwidth curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipeline.arrays import Array, Texts
from pipeline.families.dims import values_of
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import LOW_POWER_W, sustained_dram_gb_per_s

SMALLEST_KERNEL_US = 2.0
"""Duration of a kernel with almost no work, us: element-wise kernels on a few elements in public V100 and A100 traces."""


@dataclass(frozen=True)
class BandwidthCurve:
    """Time to move S bytes: start_us + S / bw(S); log10(bw) is a sigmoid of log2(S) (Lin et al., memory-bound kernels).

    It rises from low to peak GB/s around 2^middle_log2 bytes, `slope` octaves wide.
    """

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
        return np.asarray(
            10.0 ** (low + (high - low) / (1.0 + np.exp(-np.clip(octaves, -50.0, 50.0))))
        )

    def time_us(self, size: Array) -> Array:
        """Microseconds for `size` bytes; 1 GB/s is 1e3 bytes per microsecond."""
        return self.start_us + np.maximum(size, 0.0) / (1e3 * self.bandwidth(size))

    def moving_us(self, size: Array) -> Array:
        """Time of `size` bytes without the start-up time, microseconds."""
        return self.time_us(size) - self.start_us

    def faster(self, factor: float) -> BandwidthCurve:
        """The same curve with every bandwidth times `factor`; the start-up time does not change."""
        return replace(
            self, peak_gb_per_s=factor * self.peak_gb_per_s, low_gb_per_s=factor * self.low_gb_per_s
        )


LINK_START_US = 1.5
"""Duration of a tiny host copy on the stream, microseconds. The V100 and A100 DLRM traces show 1 to 2 us."""

L2_OCTAVES = 0.3
"""Width of the edge of L2 in the traffic of a kernel, octaves (measured on an H100)."""

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp64", "fp64_tensor")
"""Dtypes with a rate of their own; `fp64_tensor` is that of matrix products in fp64."""

START_CLOCK_MHZ = (1600.0, 1980.0)
"""Clocks up to which starts hold, MHz, up to Ampere and since Ada; a faster clock shortens them."""

OTHER_START_US = 1.6
"""Start since Ada of families that state none, from public traces of an H100: kernels on a few elements take 1.5 to 1.8 us there,
and 1.0 to 1.4 on the H100 of `measurements/`, which has models of its own."""


@dataclass(frozen=True)
class Chip:
    """The figures of one GPU that the formulas need: from its spec file, or with a bandwidth curve fitted on samples.

    `memory` is the bandwidth curve of DRAM, and `link` that of PCIe. `evidence` names the source of the times that use
    `memory`. `cached` is the curve of tensors that a kernel before wrote; a fitted `memory` contains it.
    """

    gpu: GpuSpec
    memory: BandwidthCurve
    link: BandwidthCurve
    l2_gb_per_s: float
    evidence: str = "roofline"
    cached: BandwidthCurve | None = None

    @classmethod
    def of(cls, gpu: GpuSpec) -> Self:
        """Figures from the GPU's spec file only."""
        memory = BandwidthCurve.flat(gpu.peak_dram_gb_per_s())
        link = BandwidthCurve.flat(max(gpu.pcie_gb_per_s, 1.0), LINK_START_US)
        return cls(gpu, memory, link, gpu.peak_l2_gb_per_s())

    def calibrate(self, memory: BandwidthCurve, evidence: str) -> Self:
        """The same figures with a fitted bandwidth curve of device memory, and the evidence for it."""
        return replace(self, memory=memory, evidence=evidence)

    def streaming(self) -> Self:
        """The same figures with the architecture's sustained streaming bandwidth, if it exceeds `peak_dram_gb_per_s`, and L2's.

        Tensors that a kernel before wrote, and the result, are in L2 as far as they fit. What it writes there takes the place of
        earlier results, which go to DRAM: traffic in L2 is at most twice as fast as in DRAM.

        It is not the default, because saved models hold corrections of formulas that do not use it.
        """
        if self.is_cpu:
            return self
        peak = max(self.gpu.peak_dram_gb_per_s(), sustained_dram_gb_per_s(self.gpu))
        cached = min(max(self.l2_gb_per_s, peak), 2.0 * peak)
        edge = float(np.log2(max(self.gpu.l2_bytes, 1.0)))
        curve = BandwidthCurve(SMALLEST_KERNEL_US, peak, cached, edge, L2_OCTAVES)
        return replace(self, memory=BandwidthCurve.flat(peak), cached=curve)

    @property
    def is_cpu(self) -> bool:
        """Whether the architecture has no limits of SMs: it starts no kernels."""
        return self.gpu.limits is None

    @property
    def is_recent(self) -> bool:
        """Whether kernels start as on an H100: Ada, Hopper, Blackwell. Nobody saw it on a card whose power limits its clock."""
        return self.gpu.generation.recent_start and self.gpu.tdp_w > LOW_POWER_W

    @property
    def sms(self) -> int:
        """Number of SMs, at least 1."""
        return max(self.gpu.sms, 1)

    @property
    def mhz(self) -> float:
        """Clock of the SMs, that is cycles in a microsecond; at least 1."""
        return self.gpu.clock_mhz

    def clocks_per_us(self) -> float:
        """Clock cycles of all SMs in a microsecond."""
        return self.sms * self.mhz

    def moving_us(self, size: Array) -> Array:
        """Time of the traffic of kernels that only move data, us: over L2 where it fits, if that is known."""
        return (self.cached or self.memory).moving_us(size)

    def started_us(self, start: tuple[float, float] | None) -> float:
        """Duration of a kernel at negligible size, us, from that up to Ampere and that since Ada (None: the usual ones)."""
        if self.is_cpu:
            return self.memory.start_us
        us = (start or (self.memory.start_us, OTHER_START_US))[self.is_recent]
        return us * min(START_CLOCK_MHZ[self.is_recent] / self.mhz, 1.0)

    def flop_per_us(self, dtype: Texts) -> Array:
        """Attainable throughput of each dtype, FLOP per microsecond, shape (rows,)."""
        peaks = {of: 1e3 * self.gpu.peak_gflop_per_s(of) for of in DTYPES}
        return values_of(dtype, peaks, peaks["fp32"])
