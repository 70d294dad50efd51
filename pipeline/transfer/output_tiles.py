"""Output tiles of batched fp32 products and of products on tensor cores: arithmetic, traffic and features of each.

A library computes a product in tiles of outputs and chooses the tile that suits the sizes. Every tile is one algorithm for
the product (`utilisation_terms.py`), described by its padding and its waves over the SMs.

Batched products in fp32: kernel names and grids of the public table show the tile of every product. The grid has
ceil(K / high) x ceil(M / wide) blocks for each of B products, where K is the number of columns of the outputs. The
available tiles depend on the architecture: a P100 and a P4 run every batch in tiles of 128 x 64, an A100 in 128 x 128.

Products on tensor cores (bf16, fp16, TF32): one thread block, or one cluster of blocks, computes each tile. Long sums are
split over idle SMs. bf16 and fp16 run at the same rate. TF32 runs the same tiles at its own peak, on elements of twice as
many bytes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Ints
from pipeline.families.dims import Dims, values_of
from pipeline.families.tensor_cores import BYTES
from pipeline.families.tensor_products import misaligned_factor
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, sustained_gflop_per_s
from pipeline.transfer.gpu_features import Algorithm, Tiling, alignment, last_wave, side_by_side

TILES = ("128x128", "128x64", "64x64", "32x128", "128x32")
"""Tiles, as columns x rows of the outputs, in the order in which a model holds them."""

STEP_DEPTH = 8
"""Elements along the sum that a tile processes in one step; the sum's length is padded to a multiple of it."""

FAMILY = "tensor_gemm"
"""Name of the cross-GPU model, and of its file under `packs/transfer`; calls are those of `gemm` and `bmm`."""

TENSOR_TILES = ("256x128", "128x256", "128x128", "128x64", "64x128", "64x64")
"""Tiles, as columns x rows of the output matrix; its columns are the output features of the weight."""

STEP_BYTES = 128.0
"""Bytes along the sum that a block processes in one step: 64 elements of bf16 or 32 of TF32."""

STEP_CYCLES = 100.0
"""Nominal cycles of one step; the network scales it."""

MIN_STEPS = 8.0
"""Smallest number of steps of each part of a split sum."""


def batched_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Algorithm]:
    """Work and features of batched products by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    traffic = 4.0 * batch * (m * n + n * k + m * k)
    deep = STEP_DEPTH * np.ceil(n / STEP_DEPTH)
    tiles = {}
    for name in TILES:
        high, wide = tile = _sides(name)
        tiling = Tiling.of(k, m, tile, gpu, batch)
        able = name in gpu.generation.tiles
        panels = 4.0 * n * np.minimum(tiling.blocks, 2.0 * gpu.sms) * (high + wide) / 2.0
        x = side_by_side(
            np.log(tiling.waves),
            tiling.last_wave,
            last_wave(tiling.waves / 2.0),
            tiling.filled,
            n / deep,
            np.log(n),
            *(alignment(size) for size in (m, n, k)),
            np.log1p(traffic / gpu.l2_bytes),
            np.log1p(panels / gpu.l2_bytes),
            *_tile_shape(tile),
            float(gpu.generation.pascal_kernels),
        )
        flops = 2.0 * tiling.blocks * high * wide * deep if able else np.full(d.rows, np.inf)
        tiles[name] = Algorithm(
            flops, traffic, x, tile_bytes=4.0 * tiling.blocks * (high + wide) * n
        )
    return tiles


def tiles_of_kernels(samples: pd.DataFrame) -> Ints:
    """Index in `TILES` of the tile that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if "kernel_name" not in samples.columns:
        return np.full(len(samples), -1, dtype=np.int64)
    name = samples["kernel_name"].astype(object).fillna("").astype(str)
    tile = name.str.extract(r"(?:sgemm|gemm_f32\w*?)_(\d+x\d+)_", expand=False)
    return np.asarray(
        pd.Index(TILES).get_indexer(pd.Index(tile)),
        dtype=np.int64,
    )


def tensor_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Algorithm]:
    """Work and features of products on tensor cores by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    dtype = d.text("dtype", "bf16")
    size = values_of(dtype, BYTES, 2.0)
    rate = values_of(
        dtype,
        {name: sustained_gflop_per_s(gpu, name) for name in DTYPES},
        np.nan,
    )
    traffic = size * batch * (m * n + n * k + m * k)
    steps = np.ceil(n * size / STEP_BYTES)
    slower = misaligned_factor(calls)
    tiles = {}
    for name in TENSOR_TILES:
        high, wide = tile = _sides(name)
        tiling = Tiling.of(k, m, tile, gpu, batch)
        idle = np.floor(gpu.sms / np.maximum(tiling.blocks, 1.0))
        parts = np.clip(
            idle,
            1.0,
            np.maximum(steps / MIN_STEPS, 1.0),
        )
        part_steps = np.ceil(steps / parts)
        waves = tiling.waves * parts
        # sizes and working sets are no features: a GPU with another L2 would be outside the range of the samples
        x = side_by_side(
            np.log(waves),
            last_wave(waves),
            np.log(parts),
            np.log(part_steps),
            tiling.filled,
            *_tile_shape(tile),
        )
        flops = 2.0 * tiling.blocks * parts * high * wide * part_steps * STEP_BYTES / size
        tiles[name] = Algorithm(
            flops,
            traffic,
            np.nan_to_num(x, posinf=0.0, neginf=0.0),
            us=slower * flops / rate / 1e3,
            chain_us=STEP_CYCLES * part_steps / gpu.clock_mhz,
        )
    return tiles


def _sides(name: str) -> tuple[int, int]:
    high, _, wide = name.partition("x")
    return int(high), int(wide)


def _tile_shape(tile: tuple[int, int]) -> tuple[float, float]:
    """Features of a tile itself: logarithms of its size, over 64 x 64 outputs, and of its aspect."""
    high, wide = tile
    return float(np.log(high * wide / 4096.0)), float(np.log(high / wide))
