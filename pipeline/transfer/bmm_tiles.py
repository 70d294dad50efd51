"""The output tiles in which cuBLAS computes batched fp32 products: arithmetic, traffic and features of each.

Kernel names and grids of the public table show the tile of every product. The grid has ceil(K / high) x ceil(M / wide)
blocks for each of B products, where K is the number of columns of the outputs. The available tiles depend on the
architecture. A P100 and a P4 run every batch in tiles of 128 x 64, an A100 in 128 x 128. The padding to whole tiles
costs the same arithmetic as real outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import Dims
from pipeline.transfer.gpu_features import alignment

Array = npt.NDArray[np.float64]

TILES = ("128x128", "128x64", "64x64", "32x128", "128x32")
"""Tiles, as columns x rows of the outputs, in the order in which a model holds them."""

AVAILABLE_TILES: dict[str, tuple[str, ...]] = {
    "pascal": ("128x64",),
    "volta": ("64x64", "32x128", "128x32"),
    "turing": ("128x64", "64x64", "128x32", "32x128"),
}
"""Available tiles by architecture. A handful of products of the public table ran in other tiles."""

NEWER_TILES = ("128x128",)
"""Tiles of Ampere and of later architectures, which run Ampere's kernels."""

STEP_DEPTH = 8
"""Elements along the sum that a tile processes in one step; the sum's length is padded to a multiple of it."""


@dataclass(frozen=True)
class TileWork:
    """Work and features of products in one tile.

    Attributes:
        flops: operations with padding, infinite where the GPU lacks the tile; shape (rows,).
        bytes: least number of bytes moved, shape (rows,).
        tile_bytes: bytes that all tiles together read, shape (rows,).
        x: features, shape (rows, features).
    """

    flops: Array
    bytes: Array
    tile_bytes: Array
    x: Array


def batched_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, TileWork]:
    """Work and features of batched products by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    traffic = 4.0 * batch * (m * n + n * k + m * k)
    deep = STEP_DEPTH * np.ceil(n / STEP_DEPTH)
    pascal = np.full(d.rows, float(gpu.architecture == "pascal"))
    found = {}
    for name in TILES:
        high, wide = (int(v) for v in name.split("x"))
        blocks = batch * np.ceil(k / high) * np.ceil(m / wide)
        waves = blocks / gpu.sms
        able = name in AVAILABLE_TILES.get(gpu.architecture, NEWER_TILES)
        panels = 4.0 * n * np.minimum(blocks, 2.0 * gpu.sms) * (high + wide) / 2.0
        x = np.column_stack([
            np.log(waves), waves / np.ceil(waves), waves / 2.0 / np.ceil(waves / 2.0),
            batch * m * k / (blocks * high * wide), n / deep, np.log(n), *(alignment(size) for size in (m, n, k)),
            np.log1p(traffic / gpu.l2_bytes), np.log1p(panels / gpu.l2_bytes),
            np.full(d.rows, np.log(high * wide / 4096.0)), np.full(d.rows, np.log(high / wide)), pascal,
        ])  # fmt: skip
        flops = 2.0 * blocks * high * wide * deep
        found[name] = TileWork(
            flops if able else np.full(d.rows, np.inf), traffic, 4.0 * blocks * (high + wide) * n, x
        )  # fmt: skip
    return found


def tiles_taken(samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Index in `TILES` of the tile that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if "kernel_name" not in samples.columns:
        return np.full(len(samples), -1, dtype=np.int64)
    name = samples["kernel_name"].astype(object).fillna("").astype(str)
    shown = name.str.extract(r"(?:sgemm|gemm_f32\w*?)_(\d+x\d+)_", expand=False)
    at = shown.map({tile: i for i, tile in enumerate(TILES)})
    return np.asarray(at.fillna(-1).to_numpy(dtype=np.int64), dtype=np.int64)
