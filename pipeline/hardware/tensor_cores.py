"""Sustained throughput of a GPU's tensor cores in matrix products, from its spec file alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hardware.spec import GpuSpec

DTYPES = ("bf16", "fp16", "tf32")
"""Data types that tensor cores of the covered GPUs multiply, as tables name them."""


@dataclass(frozen=True)
class Sustained:
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


_TABLE = "8192-wide fp16 and bf16 products, zzc0721/torch-performance-test-data (contributors' GPUs)"
_BEST = "best shapes of searches (Bekman: ML Engineering; mag-/gpu_benchmark), less 4 %"

SUSTAINED: dict[tuple[str, float], Sustained] = {
    ("volta", 7.0): Sustained(0.90, 0.50, f"power: V100-SXM2 97, V100S 89, {_TABLE}; share: between Turing and A100"),
    ("turing", 7.5): Sustained(0.97, 0.50, f"share: RTX 2080 39 of 40.3, {_TABLE}; power: as Volta, the same process"),
    ("ampere", 8.0): Sustained(
        0.84, 0.77, f"A100-SXM4 259 to 266, PCIe with 40 GB 206, {_TABLE}; with 80 GB 253, {_BEST}"
    ),
    ("ampere", 8.6): Sustained(
        1.03, 0.54, f"RTX 3090 76 of 71, 3080 Ti 70 of 68, A10G 66 of 70, A40 110, A4000 58, {_TABLE}"
    ),
    ("ada", 8.9): Sustained(
        0.97,
        0.69,
        f"L20 112 of 119.5, RTX 4090 159 to 173 of 165, L4 57, {_TABLE}; L40S 252, RTX 6000 Ada 279, {_BEST}",
    ),
    ("hopper", 9.0): Sustained(
        0.96, 0.92, f"share: H20 142 of 148; power: H100 767, H100 PCIe 465, H800 PCIe 485, {_TABLE}"
    ),
    ("blackwell", 10.0): Sustained(0.96, 1.08, f"B200 1628 to 1696, {_TABLE}; GB200 1822, {_BEST}; share: as Hopper"),
    ("blackwell", 10.3): Sustained(0.96, 1.08, f"B300 1769, {_BEST}; share: as Hopper"),
    ("blackwell", 12.0): Sustained(
        1.10, 0.69, f"share: RTX 5090 224 to 236 of 209.5, {_TABLE}; power: as Ada, the same process"
    ),
}
"""Figures by (architecture, compute capability); none comes from the samples that the models are trained on."""

UNKNOWN_ARCHITECTURE = Sustained(0.85, 0.8, "no figures for this architecture: middle of the others")


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
    known = SUSTAINED.get((gpu.architecture, gpu.compute_capability), UNKNOWN_ARCHITECTURE)
    limited = known.power * np.sqrt(gpu.tdp_w * half / 1e3) * 1e3
    return float(min(known.share, limited / half) * peak)
