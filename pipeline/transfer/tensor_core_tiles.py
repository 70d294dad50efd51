"""Matrix products on tensor cores (bf16, fp16, TF32): work and features of each output tile.

A library computes a product in tiles of outputs, a thread block or a cluster of them each, and takes the tile that suits
the sizes. Every tile here is a way to compute the product (`terms.py`): its padding, its waves over the SMs with long
sums split over idle ones, and the chain of steps along one block's sum. bf16 and fp16 run at one rate; TF32 runs the same
tiles on elements of twice the bytes at its own peak. A batched product has its batch as more tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.tensor_cores import DTYPES, sustained_gflop_per_s
from pipeline.kernels.tensor_core_products import BYTES, misaligned
from pipeline.kernels.work import Dims, values_of

Array = npt.NDArray[np.float64]

FAMILY = "tensor_gemm"
"""Name of the cross-GPU model, and of its file under `packs/transfer`; calls are those of `gemm` and `bmm`."""

TILES = ("256x128", "128x256", "128x128", "128x64", "64x128", "64x64")
"""Tiles, columns x rows of the outputs; columns are the weight's outputs."""

STEP_BYTES = 128.0
"""Bytes of the sum's length that a block takes in one step: 64 elements of bf16, 32 of TF32."""

STEP_CYCLES = 100.0
"""Cycles that a step is quoted in; the network scales it."""

LEAST_STEPS = 8.0
"""Steps that each part of a split sum keeps."""

MISALIGNED = 2.25
"""Times as long as arithmetic takes in the kernels for other rows (`align1` in their names). Set on half of the 26 such
sizes of the A100 DLRM trace, every other one in order of size: MAPE 20 % there and 25 % on the other half, 38 and 40 without
it."""


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
