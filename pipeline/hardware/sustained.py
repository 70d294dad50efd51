"""Sustained figures of a GPU at its operating point: matrix throughput under its power limit, and DRAM bandwidth.

Datasheet peaks are too high for two reasons, and the difference depends on the GPU:
- Issue slots and operand bandwidth limit fp32 matrix products to a share of the peak that depends on the architecture.
- GPUs with a small power budget (P4, T4, L4) lower their clock far below that limit.

`transfer/utilisation.py` predicts shares of these sustained figures. A model trained on some GPUs then carries over to
others.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array
from pipeline.hardware.spec import GpuSpec

THROTTLE_US = 800.0
"""Kernel time in µs at which a repeated kernel is half throttled.

A T4 reaches the same share of its peak as a V100 in products of 0.3 ms, and half of that share from 3 ms on (public
latencies, 25 repetitions of each kernel)."""

LOW_POWER_W = 75.0
"""Board power up to which the clock of a step depends on heat and power (P4, T4, probably L4), W."""

IDLE_WATTS = 12.0
"""Board power in W that does no arithmetic (memory refresh, leakage, regulators); a P4 or T4 idles at 8 to 15 W."""


def arithmetic_us(gpu: GpuSpec, flops: Array) -> Array:
    """Least time of fp32 matrix arithmetic, µs: at the architecture's share of the peak, slowed by the power limit.

    A GPU throttles only after it has been busy for some time, and a measurement repeats its kernel. Short kernels
    measured alone therefore run at full clock, and long ones at the throughput that the power budget sustains. In a step the
    kernels around a short one keep a small card at its limit. A higher clock or power budget never increases this time.
    """
    full = np.asarray(flops, dtype=float) / (gpu.generation.fp32_share * gpu.fp32_gflop_per_s * 1e3)
    powered = np.asarray(flops, dtype=float) / (power_gflop_per_s(gpu) * 1e3)
    return throttled_us(full, powered, gpu)


def power_gflop_per_s(gpu: GpuSpec) -> float:
    """fp32 throughput that the power budget sustains, GFLOP/s."""
    return (
        1e3
        * max(gpu.operating_point.power_limit_w - IDLE_WATTS, 1.0)
        / gpu.generation.watts_per_tflop
    )


def throttled_us(full: Array, powered: Array, gpu: GpuSpec) -> Array:
    """Times of arithmetic, interpolated between full clock and the sustained throughput of the power budget.

    The weight of the second grows with the duration of the kernel; in a step of a card of at most `LOW_POWER_W` it is 1.
    """
    always = gpu.in_step and gpu.tdp_w <= LOW_POWER_W
    weight = 1.0 if always else full / (full + THROTTLE_US)
    return full * (1.0 - weight) + np.maximum(powered, full) * weight


def sustained_dram_gb_per_s(gpu: GpuSpec) -> float:
    """Streaming DRAM bandwidth, GB/s: measured where the spec file has it, else the architecture's share."""
    return gpu.measured_dram_gb_per_s or gpu.generation.dram_share * gpu.dram_gb_per_s


DTYPES = ("bf16", "fp16", "tf32")
"""Data types that tensor cores of the covered GPUs multiply, as tables name them."""


def peak_gflop_per_s(gpu: GpuSpec, dtype: str) -> float | None:
    """Datasheet peak of tensor cores in a dtype, GFLOP/s; None where the GPU has no tensor cores for it."""
    if not gpu.generation.tensor_cores:
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
    limited = (
        gpu.generation.tensor_power * np.sqrt(gpu.operating_point.power_limit_w * half / 1e3) * 1e3
    )
    return float(min(gpu.generation.tensor_share, limited / half) * peak)
