"""Output tiles of batched fp32 products and of products on tensor cores: arithmetic, traffic and features of each.

A library computes a product in tiles of outputs and chooses the tile that suits the sizes. Every tile is one way to
compute the product (`utilisation_terms.py`), described by its padding and its waves over the SMs.

Batched products in fp32: kernel names and grids of the public table show the tile of every product. The grid has
ceil(K / high) x ceil(M / wide) blocks for each of B products, where K is the number of columns of the outputs. The
available tiles depend on the architecture: a P100 and a P4 run every batch in tiles of 128 x 64, an A100 in 128 x 128.

Products on tensor cores (bf16, fp16, TF32): one thread block, or one cluster of blocks, computes each tile. Long sums are
split over idle SMs. bf16 and fp16 run at the same rate. TF32 runs the same tiles at its own peak, on elements of twice as
many bytes.

Forward convolutions in fp32: the same for each route by which cuDNN computes them.

The routes are derived from the kernel names and grids of the public table (five GPUs, 3 x 3 windows at stride 1):

- `implicit`: a product of B H W x (C window) by (C window) x K in output tiles of 128 rows.
- `winograd`: one kernel of F(2x2, 3x3). A block computes 32 channels of 32 tiles of 2 x 2 outputs. These tiles form a
  box of images, rows and columns, which the kernel's name states (`tile148`: 1 image, 8 rows, 16 columns). Small images
  fill a box badly. The available boxes depend on the architecture.
- `transformed`: F(4x4, 3x3) with 36 products of tiles x C by C x K, whose grid has a depth of 36. Other kernels
  transform images before and outputs after them, through DRAM. The number of images is rounded up to a multiple of 16.

FFTs (1 % of the calls) have no route of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims, values_of
from pipeline.families.tensor_cores import BYTES
from pipeline.families.tensor_products import misaligned
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, sustained_gflop_per_s
from pipeline.transfer.gpu_features import Way, alignment

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

MISALIGNED_FACTOR = 2.25
"""Factor on the time of arithmetic in kernels for misaligned rows (`align1` in their names).

It was set on half of the 26 such sizes of the A100 DLRM trace, every second one in order of size. MAPE is 20 % on this
half and 25 % on the other half; without the factor it is 38 % and 40 %."""


def batched_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Way]:
    """Work and features of batched products by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    traffic = 4.0 * batch * (m * n + n * k + m * k)
    deep = STEP_DEPTH * np.ceil(n / STEP_DEPTH)
    pascal = np.full(d.rows, float(gpu.architecture == "pascal"))
    tiles = {}
    for name in TILES:
        high, wide = (int(v) for v in name.split("x"))
        blocks = batch * np.ceil(k / high) * np.ceil(m / wide)
        waves = blocks / gpu.sms
        able = name in AVAILABLE_TILES.get(gpu.architecture, NEWER_TILES)
        panels = 4.0 * n * np.minimum(blocks, 2.0 * gpu.sms) * (high + wide) / 2.0
        x = np.column_stack(
            [
                np.log(waves),
                waves / np.ceil(waves),
                waves / 2.0 / np.ceil(waves / 2.0),
                batch * m * k / (blocks * high * wide),
                n / deep,
                np.log(n),
                *(alignment(size) for size in (m, n, k)),
                np.log1p(traffic / gpu.l2_bytes),
                np.log1p(panels / gpu.l2_bytes),
                np.full(d.rows, np.log(high * wide / 4096.0)),
                np.full(d.rows, np.log(high / wide)),
                pascal,
            ]
        )
        flops = 2.0 * blocks * high * wide * deep if able else np.full(d.rows, np.inf)
        tiles[name] = Way(flops, traffic, x, tile_bytes=4.0 * blocks * (high + wide) * n)
    return tiles


def tiles_taken(samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Index in `TILES` of the tile that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if "kernel_name" not in samples.columns:
        return np.full(len(samples), -1, dtype=np.int64)
    name = samples["kernel_name"].astype(object).fillna("").astype(str)
    shown = name.str.extract(r"(?:sgemm|gemm_f32\w*?)_(\d+x\d+)_", expand=False)
    at = shown.map({tile: i for i, tile in enumerate(TILES)})
    return np.asarray(at.fillna(-1).to_numpy(dtype=np.int64), dtype=np.int64)


def tensor_tiles(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Way]:
    """Work and features of products by tile."""
    d = Dims(calls)
    batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    dtype = d.text("dtype", "bf16")
    size = values_of(dtype, BYTES, 2.0)
    rate = values_of(dtype, {name: sustained_gflop_per_s(gpu, name) for name in DTYPES}, np.nan)
    traffic = size * batch * (m * n + n * k + m * k)
    steps = np.ceil(n * size / STEP_BYTES)
    slower = np.where(misaligned(calls), MISALIGNED_FACTOR, 1.0)
    tiles = {}
    for name in TENSOR_TILES:
        high, wide = (int(v) for v in name.split("x"))
        blocks = batch * np.ceil(k / high) * np.ceil(m / wide)
        parts = np.clip(
            np.floor(gpu.sms / np.maximum(blocks, 1.0)), 1.0, np.maximum(steps / MIN_STEPS, 1.0)
        )
        part_steps = np.ceil(steps / parts)
        waves = blocks * parts / gpu.sms
        # sizes and working sets are no features: a GPU with another L2 would be outside the range of the samples
        x = np.column_stack(
            [
                np.log(waves),
                waves / np.ceil(waves),
                np.log(parts),
                np.log(part_steps),
                batch * m * k / (blocks * high * wide),
                np.full(d.rows, np.log(high * wide / 4096.0)),
                np.full(d.rows, np.log(high / wide)),
            ]
        )
        flops = 2.0 * blocks * parts * high * wide * part_steps * STEP_BYTES / size
        chain_us = STEP_CYCLES * part_steps / gpu.boost_clock_mhz
        x = np.nan_to_num(x, posinf=0.0, neginf=0.0)
        tiles[name] = Way(flops, traffic, x, us=slower * flops / rate / 1e3, chain_us=chain_us)
    return tiles


ROUTES = ("implicit", "winograd", "transformed")
"""Names of the routes, in the order in which a model holds them."""

BOXES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "pascal": ((1, 8, 16), (2, 8, 8), (2, 4, 16), (4, 2, 16), (4, 4, 8)),
    "volta": ((1, 8, 16),),
    "turing": ((1, 8, 16),),
}
"""Images, rows and columns of outputs in a block's box, for each box available on an architecture."""

NEWER_BOXES = ((1, 8, 16), (4, 8, 4))
"""Boxes of Ampere and later architectures."""

BOX_OUTPUTS, BOX_CHANNELS, BOX_DEPTH = 128, 32, 8
"""Outputs of a box in each channel, output channels of a block, and input channels of one step."""

IMAGE_MULTIPLE = 16
"""The transformed route rounds the number of images up to a multiple of this."""

TRANSFORMED_PRODUCTS = 36
"""Number of products of the transformed route: one for each element of a tile of 6 x 6 inputs."""

IMPLICIT_TILES = ((128, 128), (128, 64), (128, 32), (32, 32))
TRANSFORMED_TILES = ((128, 128), (128, 64), (64, 64), (32, 128))
"""Output tiles of the routes' products."""


def convolution_routes(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Way]:
    """Work and features of convolutions by route."""
    d = Dims(calls)
    s = ConvShape.of(d)
    images, out_channels = s.batch, s.out_channels
    channels = s.in_channels / s.groups
    outputs = images * s.out_height * s.out_width
    traffic = 4.0 * (s.inputs + s.outputs + s.weights)
    padded = BOX_DEPTH * np.ceil(channels / BOX_DEPTH)
    aligned = [alignment(channels), alignment(out_channels)]
    pascal = np.full(d.rows, float(gpu.architecture == "pascal"))
    # transforms exist for windows of 3 x 3 at stride 1
    square = (s.window == 9.0) & (d("kernel_size") == 3.0) & (s.groups == 1.0)
    able = (
        square
        & (d("stride", 1.0) == 1.0)
        & (d("stride_w", d("stride", 1.0)) == 1.0)
        & (d("dilation", 1.0) == 1.0)
    )

    flops = 2.0 * outputs * channels * s.window * out_channels
    implicit = Way(
        flops,
        traffic,
        np.column_stack(
            [
                *_tile_use(outputs, out_channels, 1.0, IMPLICIT_TILES, gpu),
                np.log(channels * s.window / 9.0),
                np.log(outputs),
                np.log(out_channels),
                *aligned,
                np.log(s.out_height),
                np.log(traffic / gpu.l2_bytes),
                np.log(4.0 * s.weights / gpu.l2_bytes),
                pascal,
            ]
        ),
        norm=2.0,
    )

    boxes = BOXES.get(gpu.architecture, NEWER_BOXES)
    filled = [
        np.ceil(images / b) * np.ceil(s.out_height / h) * np.ceil(s.out_width / w)
        for b, h, w in boxes
    ]
    blocks = np.min(filled, axis=0) * np.ceil(out_channels / BOX_CHANNELS)
    waves = blocks / gpu.sms
    winograd = Way(
        # a tile of 2 x 2 outputs takes 16 multiplications
        np.where(able, 2.0 * blocks * BOX_OUTPUTS * 4.0 * BOX_CHANNELS * padded, np.inf),
        traffic,
        np.column_stack(
            [
                np.log(waves),
                waves / np.ceil(waves),
                waves / 2.0 / np.ceil(waves / 2.0),
                np.log(channels),
                np.log(out_channels),
                np.log(images),
                np.log(s.out_height),
                *aligned,
                outputs * out_channels / (blocks * BOX_OUTPUTS * BOX_CHANNELS),
                channels / padded,
                np.log(traffic / gpu.l2_bytes),
                np.log(64.0 * channels * out_channels / gpu.l2_bytes),
                pascal,
            ]
        ),
        norm=2.0,
    )

    tiles = (
        IMAGE_MULTIPLE
        * np.ceil(images / IMAGE_MULTIPLE)
        * np.ceil(s.out_height / 4.0)
        * np.ceil(s.out_width / 4.0)
    )
    held = 4.0 * TRANSFORMED_PRODUCTS * tiles * (channels + out_channels)
    weights = 4.0 * TRANSFORMED_PRODUCTS * channels * out_channels
    transformed = Way(
        np.where(able, 2.0 * TRANSFORMED_PRODUCTS * tiles * padded * out_channels, np.inf),
        traffic + 2.0 * (held + weights),
        np.column_stack(
            [
                *_tile_use(tiles, out_channels, TRANSFORMED_PRODUCTS, TRANSFORMED_TILES, gpu),
                np.log(channels),
                np.log(tiles),
                np.log(out_channels),
                *aligned,
                np.log(s.out_height),
                outputs * padded / (16.0 * tiles * channels),
                images / (IMAGE_MULTIPLE * np.ceil(images / IMAGE_MULTIPLE)),
                np.log(held / gpu.l2_bytes),
                np.log(weights / gpu.l2_bytes),
                pascal,
            ]
        ),
        norm=1.0,  # its kernels run one after another
    )
    return dict(zip(ROUTES, (implicit, winograd, transformed), strict=True))


def _tile_use(
    rows: Array, columns: Array, batch: float, tiles: tuple[tuple[int, int], ...], gpu: GpuSpec
) -> list[Array]:
    """Waves, fullness of the last wave, and fullness of the tiles, for products with rows x columns outputs."""
    features = []
    for high, wide in tiles:
        blocks = np.ceil(rows / high) * np.ceil(columns / wide)
        waves = batch * blocks / gpu.sms
        features += [np.log(waves), waves / np.ceil(waves), rows * columns / (blocks * high * wide)]
    return features


def routes_taken(samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Index in `ROUTES` of the route that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if "kernel_name" not in samples.columns:
        return np.full(len(samples), -1, dtype=np.int64)
    name = samples["kernel_name"].astype(object).fillna("").astype(str).str.lower()
    grid = samples["grid"] if "grid" in samples.columns else pd.Series("", samples.index)
    deep = (
        grid.astype(object)
        .fillna("")
        .astype(str)
        .str.contains(rf",\s*{TRANSFORMED_PRODUCTS}\s*[\])]$")
    )
    transformed = name.str.contains("nonfused") | (name.str.contains("sgemm_") & deep)
    winograd = name.str.contains("winograd") & ~transformed
    implicit = name.str.contains("convolve_sgemm|scudnn|implicit_gemm") & ~winograd
    chosen = np.select([implicit, winograd, transformed], range(len(ROUTES)), default=-1)
    return np.asarray(chosen, dtype=np.int64)
