"""Sustained figures of a GPU, from its spec file alone: matrix throughput under its power limit, and DRAM bandwidth.

Datasheet peaks are too high for two reasons, and the difference depends on the GPU:
- Issue slots and operand bandwidth limit fp32 matrix products to a share of the peak that depends on the architecture.
- GPUs with a small power budget (P4, T4, L4) lower their clock far below that limit.

`transfer/utilisation.py` predicts shares of these sustained figures. A model trained on some GPUs then carries over to
others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.hardware.spec import GpuSpec

Array = npt.NDArray[np.float64]

THROTTLE_US = 800.0
"""Kernel time in µs at which a repeated kernel is half throttled.

A T4 reaches the same share of its peak as a V100 in products of 0.3 ms, and half of that share from 3 ms on (public
latencies, 25 repetitions of each kernel)."""

IDLE_WATTS = 12.0
"""Board power in W that does no arithmetic (memory refresh, leakage, regulators); a P4 or T4 idles at 8 to 15 W."""


@dataclass(frozen=True)
class Sustained:
    """Sustained shares of peaks, and power per throughput, of an architecture.

    Attributes:
        fp32_share: throughput of large fp32 matrix products over the datasheet peak where power is no limit.
        watts_per_tflop: board power in W per sustained fp32 TFLOP/s at the clocks of a power-limited GPU.
        dram_share: streaming DRAM bandwidth over the datasheet's bandwidth.
        source: where the figures come from.
    """

    fp32_share: float
    watts_per_tflop: float
    dram_share: float
    source: str


_TABLE = "torch 8192-wide matmul table of public GPUs (raw/fp32 column, contributors' machines)"

ARCHITECTURE_SHARES: dict[tuple[str, float], Sustained] = {
    ("pascal", 6.0): Sustained(0.86, 16.0, 0.75, f"fp32: sibling P40 10.07 of 11.76, {_TABLE}; DRAM: Lin et al. P100"),
    ("pascal", 6.1): Sustained(0.86, 16.0, 0.75, f"fp32: P40 10.07 of 11.76, {_TABLE}; DRAM: as T4 (GDDR with ECC)"),
    ("volta", 7.0): Sustained(0.90, 16.0, 0.90, f"fp32: between V100S 13.55 of 16.4 ({_TABLE}) and Lin et al."),
    ("turing", 7.5): Sustained(0.90, 16.0, 0.75, f"fp32: RTX 2080 9.23 of 10.1, {_TABLE}; DRAM: T4 bandwidthTest 240"),
    ("ampere", 8.0): Sustained(
        0.93,
        12.0,
        0.88,
        f"fp32: A100 18.11 to 19.18 of 19.5, {_TABLE}; DRAM: A100 80GB SXM 1.80 of 2.04 TB/s (NVIDIA forum, 339083)",
    ),
    ("ampere", 8.6): Sustained(0.69, 14.5, 0.88, f"fp32: RTX 3090 24.5 of 35.6; watts: A40 18.9 at 300 W, {_TABLE}"),
    ("ada", 8.9): Sustained(0.68, 4.4, 0.87, f"fp32: RTX 4090 54.7 of 82.6, RTX 4070S 24.6 of 35.5, {_TABLE}"),
    ("hopper", 9.0): Sustained(
        0.78, 9.0, 0.90, f"fp32: H20 31.95 of 39.5 at its clock, {_TABLE}; DRAM: GH200 3.6 of 4"
    ),
    ("blackwell", 10.0): Sustained(0.88, 9.0, 0.90, f"fp32: B200 66.24 of 75, {_TABLE}; DRAM: as Hopper"),
    ("blackwell", 10.3): Sustained(0.88, 9.0, 0.90, "as B200: the same units for fp32"),
    ("blackwell", 12.0): Sustained(0.66, 4.4, 0.90, f"fp32: RTX 5090 69.2 of 104.8, {_TABLE}"),
}
"""Figures by (architecture, compute capability).

Watts per TFLOP/s of Ada and newer are estimates: a low-voltage GPU needs about half the power per TFLOP/s of an RTX
4090 (8 W)."""

UNKNOWN_ARCHITECTURE = Sustained(0.80, 12.0, 0.85, "no figures for this architecture: middle of the others")


def shares(gpu: GpuSpec) -> Sustained:
    """The figures of a GPU's architecture."""
    return ARCHITECTURE_SHARES.get((gpu.architecture, gpu.compute_capability), UNKNOWN_ARCHITECTURE)


def arithmetic_us(gpu: GpuSpec, flops: Array) -> Array:
    """Least time of fp32 matrix arithmetic, µs: at the architecture's share of the peak, slowed by the power limit.

    A GPU throttles only after it has been busy for some time, and a measurement repeats its kernel. Short kernels
    therefore run at full clock, and long ones at the throughput that the power budget sustains. A higher clock or power
    budget never increases this time.
    """
    figures = shares(gpu)
    full = np.asarray(flops, dtype=np.float64) / (figures.fp32_share * gpu.fp32_gflop_per_s * 1e3)
    return throttled_us(full, np.asarray(flops, dtype=np.float64) / (power_gflop_per_s(gpu) * 1e3))


def power_gflop_per_s(gpu: GpuSpec) -> float:
    """fp32 throughput that the power budget sustains, GFLOP/s."""
    return 1e3 * max(gpu.tdp_w - IDLE_WATTS, 1.0) / shares(gpu).watts_per_tflop


def throttled_us(full: Array, powered: Array) -> Array:
    """Times of arithmetic, interpolated between full clock and the sustained throughput of the power budget.

    The weight of the second grows with the duration of the kernel.
    """
    weight = full / (full + THROTTLE_US)
    return np.asarray(full * (1.0 - weight) + np.maximum(powered, full) * weight)


def sustained_dram_gb_per_s(gpu: GpuSpec) -> float:
    """Streaming DRAM bandwidth, GB/s: measured where the spec file has it, else the architecture's share."""
    return gpu.measured_dram_gb_per_s or shares(gpu).dram_share * gpu.dram_gb_per_s


DTYPES = ("bf16", "fp16", "tf32")
"""Data types that tensor cores of the covered GPUs multiply, as tables name them."""


@dataclass(frozen=True)
class TensorCores:
    """Sustained throughput of an architecture's tensor cores.

    Attributes:
        share: throughput of large products over the datasheet's peak where power is no limit; above 1 on boards that
            clock above their stated boost.
        power: throughput of large products under the power limit, over the geometric mean of board power in W and peak
            in TFLOP/s. A chip that lowers its clock also lowers its voltage, so half the power costs less than half the
            speed. H100 boards with 350 and 700 W reach 0.90 and 0.92 in this measure.
        source: where the figures come from.
    """

    share: float
    power: float
    source: str


_HALF_TABLE = "8192-wide fp16 and bf16 products, zzc0721/torch-performance-test-data (contributors' GPUs)"
_BEST = "best shapes of searches (Bekman: ML Engineering; mag-/gpu_benchmark), less 4 %"

TENSOR_CORES: dict[tuple[str, float], TensorCores] = {
    ("volta", 7.0): TensorCores(
        0.90, 0.50, f"power: V100-SXM2 97, V100S 89, {_HALF_TABLE}; share: between Turing and A100"
    ),
    ("turing", 7.5): TensorCores(
        0.97, 0.50, f"share: RTX 2080 39 of 40.3, {_HALF_TABLE}; power: as Volta, the same process"
    ),
    ("ampere", 8.0): TensorCores(
        0.84, 0.77, f"A100-SXM4 259 to 266, PCIe with 40 GB 206, {_HALF_TABLE}; with 80 GB 253, {_BEST}"
    ),
    ("ampere", 8.6): TensorCores(
        1.03, 0.54, f"RTX 3090 76 of 71, 3080 Ti 70 of 68, A10G 66 of 70, A40 110, A4000 58, {_HALF_TABLE}"
    ),
    ("ada", 8.9): TensorCores(
        0.97,
        0.69,
        f"L20 112 of 119.5, RTX 4090 159 to 173 of 165, L4 57, {_HALF_TABLE}; L40S 252, RTX 6000 Ada 279, {_BEST}",
    ),
    ("hopper", 9.0): TensorCores(
        0.96, 0.92, f"share: H20 142 of 148; power: H100 767, H100 PCIe 465, H800 PCIe 485, {_HALF_TABLE}"
    ),
    ("blackwell", 10.0): TensorCores(
        0.96, 1.08, f"B200 1628 to 1696, {_HALF_TABLE}; GB200 1822, {_BEST}; share: as Hopper"
    ),
    ("blackwell", 10.3): TensorCores(0.96, 1.08, f"B300 1769, {_BEST}; share: as Hopper"),
    ("blackwell", 12.0): TensorCores(
        1.10, 0.69, f"share: RTX 5090 224 to 236 of 209.5, {_HALF_TABLE}; power: as Ada, the same process"
    ),
}
"""Figures by (architecture, compute capability); none comes from the samples that the models are trained on."""

UNKNOWN_TENSOR_CORES = TensorCores(0.85, 0.8, "no figures for this architecture: middle of the others")


def peak_gflop_per_s(gpu: GpuSpec, dtype: str) -> float | None:
    """Datasheet peak of tensor cores in a dtype, GFLOP/s; None where the GPU has no tensor cores for it."""
    if gpu.limits is None or gpu.architecture == "pascal":
        return None
    peak = getattr(gpu, f"{dtype}_gflop_per_s")
    return None if peak is None else float(peak)


def sustained_gflop_per_s(gpu: GpuSpec, dtype: str) -> float:
    """Throughput of large products, GFLOP/s; NaN without tensor cores for the dtype.

    TF32 and half precision need the same power, so the power limit costs both the same share of their peak. In the same
    table, 8192-wide products reach these shares of the peak in TF32 and in half precision:
    - H100: 0.75 and 0.78.
    - H100 PCIe: 0.64 and 0.62.
    - A100-PCIE-40GB: 0.62 and 0.66.
    - A40: 0.80 and 0.73.
    """
    peak, half = peak_gflop_per_s(gpu, dtype), peak_gflop_per_s(gpu, "fp16")
    if peak is None or half is None:
        return np.nan
    figures = TENSOR_CORES.get((gpu.architecture, gpu.compute_capability), UNKNOWN_TENSOR_CORES)
    limited = figures.power * np.sqrt(gpu.tdp_w * half / 1e3) * 1e3
    return float(min(figures.share, limited / half) * peak)
