"""Routes by which cuDNN computes forward convolutions in fp32: arithmetic, traffic and features of each.

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

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims
from pipeline.hardware.spec import GpuSpec
from pipeline.transfer.gpu_features import Algorithm, Tiling, alignment, last_wave, side_by_side

ROUTES = ("implicit", "winograd", "transformed")
"""Names of the routes, in the order in which a model holds them."""

BOX_OUTPUTS, BOX_CHANNELS, BOX_DEPTH = 128, 32, 8
"""Outputs of a box in each channel, output channels of a block, and input channels of one step."""

IMAGE_MULTIPLE = 16
"""The transformed route rounds the number of images up to a multiple of this."""

TRANSFORMED_PRODUCTS = 36
"""Number of products of the transformed route: one for each element of a tile of 6 x 6 inputs."""

IMPLICIT_TILES = (
    (128, 128),
    (128, 64),
    (128, 32),
    (32, 32),
)
TRANSFORMED_TILES = (
    (128, 128),
    (128, 64),
    (64, 64),
    (32, 128),
)
"""Output tiles of the routes' products."""


@dataclass(frozen=True)
class _Convolutions:
    """Sizes that all routes use, each of shape (rows,)."""

    shape: ConvShape
    gpu: GpuSpec
    channels: Array
    outputs: Array
    padded: Array
    traffic: Array
    small: Flags

    @classmethod
    def of(cls, d: Dims, gpu: GpuSpec) -> _Convolutions:
        s = ConvShape.of(d)
        channels = s.in_channels / s.groups
        stride = d("stride", 1.0)
        square = (s.window == 9.0) & (d("kernel_size") == 3.0) & (s.groups == 1.0)
        unit = (stride == 1.0) & (d("stride_w", stride) == 1.0) & (d("dilation", 1.0) == 1.0)
        return cls(
            s,
            gpu,
            channels,
            s.batch * s.out_height * s.out_width,
            BOX_DEPTH * np.ceil(channels / BOX_DEPTH),
            4.0 * (s.inputs + s.outputs + s.weights),
            square & unit,
        )

    @property
    def aligned(self) -> tuple[Array, Array]:
        """Alignment of input and output channels."""
        return alignment(self.channels), alignment(self.shape.out_channels)

    @property
    def pascal(self) -> float:
        """Whether the GPU runs the kernels of Pascal, as a feature."""
        return float(self.gpu.generation.pascal_kernels)

    def per_l2(self, size: Array) -> Array:
        """Logarithm of bytes over the L2 size."""
        return np.log(size / self.gpu.l2_bytes)


def convolution_routes(calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Algorithm]:
    """Work and features of convolutions by route; `winograd` and `transformed` exist for 3 x 3 windows at stride 1."""
    c = _Convolutions.of(Dims(calls), gpu)
    return {"implicit": _implicit(c), "winograd": _winograd(c), "transformed": _transformed(c)}


def _implicit(c: _Convolutions) -> Algorithm:
    s = c.shape
    x = side_by_side(
        *_tile_use(c.outputs, s.out_channels, 1.0, IMPLICIT_TILES, c.gpu),
        np.log(c.channels * s.window / 9.0),
        np.log(c.outputs),
        np.log(s.out_channels),
        *c.aligned,
        np.log(s.out_height),
        c.per_l2(c.traffic),
        c.per_l2(4.0 * s.weights),
        c.pascal,
    )
    flops = 2.0 * c.outputs * c.channels * s.window * s.out_channels
    return Algorithm(flops, c.traffic, x, norm=2.0)


def _winograd(c: _Convolutions) -> Algorithm:
    s = c.shape
    boxes = [
        np.ceil(s.batch / images) * np.ceil(s.out_height / high) * np.ceil(s.out_width / wide)
        for images, high, wide in c.gpu.generation.boxes
    ]
    blocks = np.min(boxes, axis=0) * np.ceil(s.out_channels / BOX_CHANNELS)
    waves = blocks / c.gpu.sms
    x = side_by_side(
        np.log(waves),
        last_wave(waves),
        last_wave(waves / 2.0),
        np.log(c.channels),
        np.log(s.out_channels),
        np.log(s.batch),
        np.log(s.out_height),
        *c.aligned,
        c.outputs * s.out_channels / (blocks * BOX_OUTPUTS * BOX_CHANNELS),
        c.channels / c.padded,
        c.per_l2(c.traffic),
        c.per_l2(64.0 * c.channels * s.out_channels),
        c.pascal,
    )
    # a tile of 2 x 2 outputs takes 16 multiplications
    flops = 2.0 * blocks * BOX_OUTPUTS * 4.0 * BOX_CHANNELS * c.padded
    return Algorithm(
        np.where(c.small, flops, np.inf),
        c.traffic,
        x,
    )


def _transformed(c: _Convolutions) -> Algorithm:
    s = c.shape
    images = IMAGE_MULTIPLE * np.ceil(s.batch / IMAGE_MULTIPLE)
    tiles = images * np.ceil(s.out_height / 4.0) * np.ceil(s.out_width / 4.0)
    held = 4.0 * TRANSFORMED_PRODUCTS * tiles * (c.channels + s.out_channels)
    weights = 4.0 * TRANSFORMED_PRODUCTS * c.channels * s.out_channels
    x = side_by_side(
        *_tile_use(tiles, s.out_channels, TRANSFORMED_PRODUCTS, TRANSFORMED_TILES, c.gpu),
        np.log(c.channels),
        np.log(tiles),
        np.log(s.out_channels),
        *c.aligned,
        np.log(s.out_height),
        c.outputs * c.padded / (16.0 * tiles * c.channels),
        s.batch / images,
        c.per_l2(held),
        c.per_l2(weights),
        c.pascal,
    )
    flops = 2.0 * TRANSFORMED_PRODUCTS * tiles * c.padded * s.out_channels
    flops = np.where(c.small, flops, np.inf)
    # its kernels run one after another
    return Algorithm(
        flops,
        c.traffic + 2.0 * (held + weights),
        x,
        norm=1.0,
    )


def _tile_use(
    rows: Array, columns: Array, batch: float, tiles: tuple[tuple[int, int], ...], gpu: GpuSpec
) -> list[Array]:
    """Waves, fullness of the last wave, and fullness of the tiles, for products with rows x columns outputs."""
    tilings = [Tiling.of(rows, columns, tile, gpu, batch) for tile in tiles]
    return [f for each in tilings for f in (np.log(each.waves), each.last_wave, each.filled)]


def routes_of_kernels(samples: pd.DataFrame) -> Ints:
    """Index in `ROUTES` of the route that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    texts = samples.reindex(columns=["kernel_name", "grid"]).astype(object).fillna("").astype(str)
    name = texts["kernel_name"].str.lower()
    deep = texts["grid"].str.contains(rf",\s*{TRANSFORMED_PRODUCTS}\s*[\])]$")
    transformed = name.str.contains("nonfused") | (name.str.contains("sgemm_") & deep)
    winograd = name.str.contains("winograd") & ~transformed
    implicit = name.str.contains("convolve_sgemm|scudnn|implicit_gemm") & ~winograd
    route = np.select(
        [implicit, winograd, transformed],
        range(len(ROUTES)),
        default=-1,
    )
    return np.asarray(route, dtype=np.int64)
