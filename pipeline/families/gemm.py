"""Matrix products, single and batched: `gemm` and `bmm`. `tensor_products.py` has what tensor cores add.

A product is (B x) M x N and N x K, where N is the reduction length.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array, Flags
from pipeline.families.dims import Dims, Work
from pipeline.families.family import (
    Calls,
    Columns,
    Family,
    Law,
    Product,
    alignment,
    product_us,
    wave_columns,
)
from pipeline.families.tensor_cores import MIN_REDUCTION

MIN_PRODUCT_REDUCTION = 128.0
"""Minimum reduction length of one block of a matrix product, whose blocks are sliced as well (V100 DLRM trace)."""

PRODUCT_TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32), (64, 32))
"""Tiles (along K, along M) in the names of the cuBLAS fp32 kernels that the public samples ran."""

SMALL_EDGE, SMALL_PEAK_SHARE, SMALL_BLOCK_CLOCKS = 64.0, 0.6, 350.0
"""Largest edge of a small product: two tiles of 32, the smallest of the library. Such tiles reach this share of the peak, and
each block takes this many cycles of an SM beside its arithmetic (measured on an H100)."""

NARROWEST = 32.0
"""Smallest edge of a tile of the library."""


def sizes(d: Dims) -> Product:
    """M, N, K and the number of products, each of shape (rows,)."""
    return d("M"), d("N"), d("K"), d("B", 1.0)


def work(d: Dims) -> Work:
    """Both operands are read and the result is written; `linear` adds a bias of K elements."""
    (m, n, k, b), size = sizes(d), d.element_bytes()
    bias = np.where(d.op_in(("linear", "addmm")), k, 0.0)
    return Work(2.0 * b * m * n * k, size * (b * (m * n + n * k) + bias), size * b * m * k)


def computed_us(c: Calls, shortest: float = MIN_REDUCTION) -> Array:
    """Time of products by waves of tiles. cuBLAS multiplies matrices in fp64 on tensor cores that can."""
    dtype = np.where(c.dtype == "fp64", "fp64_tensor", c.dtype)
    return product_us(c, c.chip.flop_per_us(dtype), shortest)


def added_us(c: Calls) -> Array:
    """Time of fp32 products at the rates of the chip, us, without starts and partly filled waves; NaN on tensor cores.

    On tensor cores, published steps with a million rows agree with times in proportion to the rows.
    """
    m, n, k, b = sizes(c.d)
    outputs = b * np.ceil(m / NARROWEST) * np.ceil(k / NARROWEST) * NARROWEST**2
    bytes_us = c.work.bytes / (1e3 * c.chip.gpu.peak_dram_gb_per_s())
    us = np.maximum(2.0 * outputs * n / c.chip.flop_per_us(c.dtype), bytes_us)
    return np.where(c.dtype == "fp32", us, np.nan)


def gemm_us(c: Calls) -> Array:
    """Time of single products."""
    return computed_us(c, MIN_PRODUCT_REDUCTION)


def bmm_us(c: Calls) -> Array:
    """Time of batches, in small tiles where that is shorter."""
    return np.fmin(gemm_us(c), in_small_tiles_us(c))


def in_small_tiles_us(c: Calls) -> Array:
    """Time of many small fp32 products, us, shape (rows,), in tiles of 32 x 32 and sums in multiples of eight; NaN for others."""
    (m, n, k, b), sms = sizes(c.d), c.chip.sms
    waves = np.ceil(b * np.ceil(m / 32.0) * np.ceil(k / 32.0) / sms)
    peak = SMALL_PEAK_SHARE * c.chip.flop_per_us(c.dtype) / sms
    tile_us = 2.0 * 32.0**2 * np.ceil(n / 8.0) * 8.0 / peak + SMALL_BLOCK_CLOCKS / c.chip.mhz
    us = c.start + np.maximum(waves * tile_us, c.chip.moving_us(c.work.bytes))
    return np.where((c.dtype == "fp32") & (not c.chip.is_cpu), us, np.nan)


def bmm_limit(c: Calls, kernel_us: Array, inside: Flags, transferred: bool) -> tuple[Array, float]:
    """Factor on a model's times: that of small tiles where it is shorter.

    Models of the chip's own samples are replaced only for small products outside of the samples' range.
    """
    small_us = in_small_tiles_us(c)
    far = (np.maximum(c.d("M"), c.d("K")) <= SMALL_EDGE) & ~inside
    return np.where((far | transferred) & (small_us < kernel_us), small_us / kernel_us, 1.0), 1.0


def columns(to: Columns, c: Calls) -> None:
    """Sizes, tiles and waves of the fp32 kernels."""
    (m, n, k, b), sms = sizes(c.d), c.chip.sms
    to.log(b, m, n, k)
    blocks = {
        (wide, high): b * np.ceil(k / wide) * np.ceil(m / high) for wide, high in PRODUCT_TILES
    }
    for tile in PRODUCT_TILES:
        useful = b * k * m / (blocks[tile] * tile[0] * tile[1])
        wave_columns(to, blocks[tile], useful, sms)
    # two to four blocks with large tiles fit on an SM, so that a wave has two to four times as many
    for tile in PRODUCT_TILES[:3]:
        for resident in (2.0, 4.0):
            waves = blocks[tile] / (sms * resident)
            to.add(waves / np.ceil(waves))
    to.add(*map(alignment, (m, n, k)))
    to.log(k / m)
    # a step of the reduction is 8 wide (16 in sliced kernels); the last step may be partly empty
    steps = np.ceil(n / 8.0)
    to.log(steps)
    to.add(n / (8.0 * steps))
    for tile in ((128, 128), (64, 64)):
        to.log(np.ceil(blocks[tile] / sms) * (steps + 4.0))


FAMILIES = (
    Family(
        "gemm", ("M", "N", "K"), Law.COMPUTE, work, ("linear", "mm"), ("B", "trans_a", "trans_b"),
        start=(5.0, 4.5), time=gemm_us, reference=product_us, product=sizes, columns=columns,
        added=added_us, outside_spread=0.06, colour="#0B5FA5", any_phase=True,
    ),
    Family(
        "bmm", ("B", "M", "N", "K"), Law.COMPUTE, work, ("bmm",), ("trans_a", "trans_b"),
        start=(5.0, 3.0), time=bmm_us, reference=product_us, product=sizes, columns=columns,
        limit=bmm_limit, outside_spread=0.08, colour="#63B3E4", any_phase=True,
    ),
)  # fmt: skip
