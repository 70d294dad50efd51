"""Matrix products on tensor cores (bf16, fp16, TF32): work and features of each output tile.

A library computes a product in tiles of outputs and chooses the tile that suits the sizes. One thread block, or one
cluster of blocks, computes each tile. Every tile here is one way to compute the product (`utilisation_terms.py`). It
is described by its padding, its waves over the SMs, and the chain of steps along one block's sum. Long sums are split
over idle SMs.

bf16 and fp16 run at the same rate. TF32 runs the same tiles at its own peak, on elements of twice as many bytes. The
batch of a batched product multiplies its number of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, sustained_gflop_per_s
from pipeline.kernels.tensor_cores import BYTES, misaligned
from pipeline.kernels.work import Dims, values_of

Array = npt.NDArray[np.float64]

FAMILY = "tensor_gemm"
"""Name of the cross-GPU model, and of its file under `packs/transfer`; calls are those of `gemm` and `bmm`."""

TILES = ("256x128", "128x256", "128x128", "128x64", "64x128", "64x64")
"""Tiles, as columns x rows of the output matrix; its columns are the output features of the weight."""

STEP_BYTES = 128.0
"""Bytes along the sum that a block processes in one step: 64 elements of bf16 or 32 of TF32."""

STEP_CYCLES = 100.0
"""Nominal cycles of one step; the network scales it."""

MIN_STEPS = 8.0
"""Smallest number of steps of each part of a split sum."""

MISALIGNED_FACTOR = 2.25
"""Factor on the time of arithmetic in kernels for misaligned rows (`align1` in their names).

It was set on half of the 26 such sizes of the A100 DLRM trace, every second one in order of size. MAPE is 20 % on this
half and 25 % on the other half; without the factor it is 38 % and 40 %."""


@dataclass(frozen=True)
class TensorTile:
    """Work and features of products in one tile; arrays have shape (rows,), `x` has (rows, features).

    Attributes:
        us: time of arithmetic in µs at the sustained throughput, with padding and idle SMs of the last wave.
        bytes: least number of bytes moved.
        chain_us: time in µs of the consecutive steps along one block's sum.
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
    slower = np.where(misaligned(calls), MISALIGNED_FACTOR, 1.0)
    found = {}
    for name in TILES:
        high, wide = (int(v) for v in name.split("x"))
        blocks = batch * np.ceil(k / high) * np.ceil(m / wide)
        parts = np.clip(np.floor(gpu.sms / np.maximum(blocks, 1.0)), 1.0, np.maximum(steps / MIN_STEPS, 1.0))
        own = np.ceil(steps / parts)
        waves = blocks * parts / gpu.sms
        # sizes and working sets are no features: a GPU with another L2 would be outside the range of the samples
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
