"""Matrix products on tensor cores (bf16, fp16, TF32): sustained throughput, work and features of each output tile.

A library computes a product in tiles of outputs, a thread block or a cluster of them each, and takes the tile that suits
the sizes. Every tile here is a way to compute the product (`terms.py`): its padding, its waves over the SMs with long
sums split over idle ones, and the chain of steps along one block's sum. bf16 and fp16
run at one rate; TF32 runs the same tiles on elements of twice the bytes at its own peak. A batched product has its batch
as more tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import ELEMENT_BYTES, Dims, values_of

Array = npt.NDArray[np.float64]

FAMILY = "tensor_gemm"
"""Name of the cross-GPU model, and of its file under `packs/transfer`; calls are those of `gemm` and `bmm`."""

DTYPES = ("bf16", "fp16", "tf32")
"""What tensor cores of the covered GPUs multiply, as tables name it."""

BYTES = {name: float(ELEMENT_BYTES[name]) for name in DTYPES}

TILES = ("256x128", "128x256", "128x128", "128x64", "64x128", "64x64")
"""Tiles, columns x rows of the outputs; columns are the weight's outputs."""

STEP_BYTES = 128.0
"""Bytes of the sum's length that a block takes in one step: 64 elements of bf16, 32 of TF32."""

STEP_CYCLES = 100.0
"""Cycles that a step is quoted in; the network scales it."""

LEAST_STEPS = 8.0
"""Steps that each part of a split sum keeps."""

ALIGNMENT_BYTES = 16.0
"""Rows of a matrix in memory must be a multiple of this for kernels that copy whole vectors."""

MISALIGNED = 2.25
"""Times as long as arithmetic takes in the kernels for other rows (`align1` in their names). Set on half of the 26 such
sizes of the A100 DLRM trace, every other one in order of size: MAPE 20 % there and 25 % on the other half, 38 and 40 without
it."""


@dataclass(frozen=True)
class Sustained:
    """What tensor cores of an architecture sustain.

    Attributes:
        share: large products over the datasheet's peak where power is no limit; above 1 on boards that clock above
            their stated boost.
        power: throughput of large products under the power limit, over the geometric mean of board power in W and peak
            in TFLOP/s. A chip that lowers its clock lowers its voltage too, so that half the power costs less than half
            the speed: H100 with 350 and 700 W reach 0.90 and 0.92 so.
        source: where the figures come from.
    """

    share: float
    power: float
    source: str


_TABLE = "8192-wide fp16 and bf16 products, zzc0721/torch-performance-test-data (contributors' cards)"
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
"""Figures by (architecture, compute capability); none comes from the samples that the model is trained on."""

UNKNOWN = Sustained(0.85, 0.8, "no figures for this architecture: middle of the others")


def peak_gflop_per_s(gpu: GpuSpec, dtype: str) -> float | None:
    """Datasheet peak of a dtype's tensor cores; None where the GPU has none for it."""
    if gpu.limits is None or gpu.architecture == "pascal":
        return None
    peak = getattr(gpu, f"{dtype}_gflop_per_s")
    return None if peak is None else float(peak)


def sustained_gflop_per_s(gpu: GpuSpec, dtype: str) -> float:
    """Throughput of large products, GFLOP/s; NaN without tensor cores for the dtype.

    TF32 and half precision draw alike, so that the power limit costs them the same share: of their peaks, products of
    8192 reach 0.75 and 0.78 on an H100, 0.64 and 0.62 on the PCIe card, 0.62 and 0.66 on an A100-PCIE-40GB, 0.80 and 0.73
    on an A40 (the same table).
    """
    peak, half = peak_gflop_per_s(gpu, dtype), peak_gflop_per_s(gpu, "fp16")
    if peak is None or half is None:
        return np.nan
    known = SUSTAINED.get((gpu.architecture, gpu.compute_capability), UNKNOWN)
    limited = known.power * np.sqrt(gpu.tdp_w * half / 1e3) * 1e3
    return float(min(known.share, limited / half) * peak)


def covered(calls: pd.DataFrame, gpu: GpuSpec) -> npt.NDArray[np.bool_]:
    """Products that tensor cores of the GPU compute, with all their dims; shape (rows,)."""
    d = Dims(calls)
    able = {name: 1.0 for name in DTYPES if peak_gflop_per_s(gpu, name) is not None}
    sizes = d("M") + d("N") + d("K")
    return np.asarray((values_of(d.text("dtype", "fp32"), able, 0.0) > 0) & np.isfinite(sizes))


def misaligned(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Products of which a matrix has rows that are no multiple of `ALIGNMENT_BYTES` in memory; shape (rows,).

    Rows of an operand lie along the sum unless it is stored transposed. Where a table does not say how they are stored,
    the first lies as it is and the second transposed, as a linear layer has them, and gradients either way.
    """
    d = Dims(calls)
    size = values_of(d.text("dtype", "bf16"), BYTES, 2.0)
    known = np.isfinite(d("trans_a"))
    either = ~known & d.backward()
    m, n, k = (np.mod(d(name) * size, ALIGNMENT_BYTES) != 0 for name in ("M", "N", "K"))
    first = np.where(d("trans_a", 0.0) > 0, m, n)
    second = np.where(d("trans_b", 1.0) > 0, n, k)
    return np.asarray(first | second | k | (either & (m | n)))


@dataclass(frozen=True)
class TensorTile:
    """Products in one tile, each array of shape (rows,) but `x` of (rows, features).

    Attributes:
        us: arithmetic with padding and idle SMs of the last wave, at the sustained throughput.
        bytes: moved at least.
        chain_us: the steps along one block's sum, one after another.
        x: features.
    """

    us: Array
    bytes: Array
    chain_us: Array
    x: Array


def tensor_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, TensorTile]:
    """Work and features of products by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    dtype = d.text("dtype", "bf16")
    size = values_of(dtype, BYTES, 2.0)
    rate = values_of(dtype, {name: sustained_gflop_per_s(gpu, name) for name in DTYPES}, np.nan)
    traffic = size * batch * (m * n + n * k + m * k)
    steps = np.ceil(n * size / STEP_BYTES)
    slower = np.where(misaligned(calls), MISALIGNED, 1.0)
    found = {}
    for name in TILES:
        high, wide = (int(v) for v in name.split("x"))
        blocks = batch * np.ceil(k / high) * np.ceil(m / wide)
        parts = np.clip(np.floor(gpu.sms / np.maximum(blocks, 1.0)), 1.0, np.maximum(steps / LEAST_STEPS, 1.0))
        own = np.ceil(steps / parts)
        waves = blocks * parts / gpu.sms
        # sizes and working sets do not appear by themselves: a GPU with another L2 would look like nothing seen
        x = np.column_stack([
            np.log(waves), waves / np.ceil(waves), np.log(parts), np.log(own),
            batch * m * k / (blocks * high * wide),
            np.full(d.rows, np.log(high * wide / 4096.0)), np.full(d.rows, np.log(high / wide)),
        ])  # fmt: skip
        flops = 2.0 * blocks * parts * high * wide * own * STEP_BYTES / size
        found[name] = TensorTile(
            slower * flops / rate / 1e3,
            traffic,
            STEP_CYCLES * own / gpu.boost_clock_mhz,
            np.nan_to_num(x, posinf=0.0, neginf=0.0),
        )
    return found
