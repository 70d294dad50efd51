"""Matrix products, single and batched: `gemm` and `bmm`, outside tensor cores and on them.

A product is (B x) M x N and N x K, where N is the reduction length.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.families.columns import Columns, alignment, wave_columns
from pipeline.families.dims import Array, Dims, Flags, Work
from pipeline.families.family import Calls, Family, Law, Product, product_us, split_over
from pipeline.families.tensor_cores import MIN_REDUCTION, on_tensor_cores
from pipeline.hardware.spec import GpuSpec

MIN_PRODUCT_REDUCTION = 128.0
"""Minimum reduction length of one block of a matrix product, whose blocks are sliced as well (V100 DLRM trace)."""

PRODUCT_TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32), (64, 32))
"""Tiles (along K, along M) in the names of the cuBLAS fp32 kernels that the public samples ran."""

SMALL_EDGE, SMALL_PEAK_SHARE, SMALL_BLOCK_CLOCKS = 64.0, 0.6, 350.0
"""Largest edge of a small product: two tiles of 32, the smallest of the library. Such tiles reach this share of the peak, and
each block takes this many cycles of an SM beside its arithmetic (measured on an H100)."""

ALIGNMENT_BYTES = 16.0
"""Alignment of a matrix's rows in memory, bytes. Kernels that copy whole vectors need rows of a multiple of this."""

ACCESSES_PER_CLOCK = 3.8
ACCESS_TILES = ((128.0, 128.0), (128.0, 64.0), (64.0, 64.0), (128.0, 32.0), (32.0, 128.0))
"""Operand loads and stores per SM and clock of half-precision kernels for misaligned rows (`align1` in their names), which
move an element at a time (two or four, if rows are a multiple of these), and their tiles. From an H100 trace: products
with 3,137 tokens reach 4.0 and 4.4."""

THIN_EDGE, THIN_BLOCK_CLOCKS, THIN_STEP_CLOCKS = 16.0, 170.0, 1.5
"""Edge of the tile of batches of thin products (`wmma ... 16x16`), cycles of an SM for a block, and for each element of its
sum. From an H100 trace, 37,632 products of 8 tokens; with any number of rows, checked on steps of CaiT and ConViT."""


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
    to.logs(B=b, M=m, N=n, K=k)
    blocks = {
        (wide, high): b * np.ceil(k / wide) * np.ceil(m / high) for wide, high in PRODUCT_TILES
    }
    labels = {tile: f"{tile[0]}x{tile[1]}" for tile in PRODUCT_TILES}
    for tile, label in labels.items():
        useful = b * k * m / (blocks[tile] * tile[0] * tile[1])
        wave_columns(to, label, blocks[tile], useful, sms)
    # two to four blocks with large tiles fit on an SM, so that a wave has two to four times as many
    for tile in PRODUCT_TILES[:3]:
        for resident in (2.0, 4.0):
            waves = blocks[tile] / (sms * resident)
            label = f"wave efficiency {labels[tile]} {resident:.0f} resident"
            to.add(label, waves / np.ceil(waves))
    for name, values in (("M", m), ("N", n), ("K", k)):
        to.add(f"alignment {name}", alignment(values))
    to.log("aspect", k / m)
    # a step of the reduction is 8 wide (16 in sliced kernels); the last step may be partly empty
    steps = np.ceil(n / 8.0)
    to.log("steps", steps)
    to.add("step efficiency", n / (8.0 * steps))
    for tile in ((128, 128), (64, 64)):
        to.log(f"time {labels[tile]}", np.ceil(blocks[tile] / sms) * (steps + 4.0))


def on_tensor_cores_with_dims(products: pd.DataFrame, gpu: GpuSpec) -> Flags:
    """Whether the GPU's tensor cores compute each matrix product and all its dims are known, shape (rows,)."""
    d = Dims(products)
    return on_tensor_cores(d, gpu) & np.isfinite(d("M") + d("N") + d("K"))


def _rows_in_memory(d: Dims) -> tuple[Array, Array, Array]:
    """Length of the rows of both operands and the result as they are stored.

    `trans_a` and `trans_b` say whether operands are stored transposed. Without these columns, they are taken to be stored as in a
    linear layer: the first as it is, and the second transposed.
    """
    m, n, k, _ = sizes(d)
    first, second = np.where(d("trans_a", 0.0) > 0, m, n), np.where(d("trans_b", 1.0) > 0, n, k)
    return first, second, k


def misaligned(products: pd.DataFrame) -> Flags:
    """Whether a matrix of each product has rows that are not a multiple of `ALIGNMENT_BYTES` in memory, shape (rows,).

    For gradients of which no columns say how operands are stored, both ways are checked.
    """
    d = Dims(products)
    size = d.element_bytes("bf16")
    rows = np.stack([*_rows_in_memory(d), d("M"), d("N")])
    uneven = np.mod(rows * size, ALIGNMENT_BYTES) != 0
    either_way = ~np.isfinite(d("trans_a")) & d.backward()
    return np.asarray(uneven[:3].any(axis=0) | (either_way & uneven[3:].any(axis=0)))


def by_element_us(products: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Least time of half-precision products with misaligned rows, whose operands move element by element, us; else 0.

    A long sum is split over idle SMs.
    """
    d = Dims(products)
    m, n, k, batch = sizes(d)
    rows = np.nan_to_num(np.stack(_rows_in_memory(d))).astype(np.int64)
    vector = np.gcd(rows, 8).min(axis=0)
    times = []
    for high, wide in ACCESS_TILES:
        blocks = batch * np.ceil(m / high) * np.ceil(k / wide)
        split = split_over(gpu.sms, blocks, n, MIN_REDUCTION)
        moved = ((high + wide) * n / split + high * wide) / vector
        times.append(np.ceil(blocks * split / gpu.sms) * moved)
    us = np.min(times, axis=0) / ACCESSES_PER_CLOCK / gpu.boost_clock_mhz
    return np.where((d.element_bytes("bf16") == 2.0) & misaligned(products), us, 0.0)


def thin_products_us(d: Dims, gpu: GpuSpec) -> Array:
    """Time of many thin half-precision products, a block for each 16 x 16 outputs, us; NaN for other products.

    A thin product has few columns (or rows) and a short sum. No sample has such sizes: learned models are far too long.
    """
    m, n, k, batch = sizes(d)
    blocks = batch * np.ceil(m / THIN_EDGE) * np.ceil(k / THIN_EDGE)
    us = blocks / gpu.sms * (THIN_BLOCK_CLOCKS + THIN_STEP_CLOCKS * n) / gpu.boost_clock_mhz
    moved_us = 2.0 * batch * (m * n + n * k + m * k) / (1e3 * gpu.peak_dram_gb_per_s())
    thin = (np.minimum(m, k) <= THIN_EDGE) & (n <= 4 * THIN_EDGE) & (blocks > 8 * gpu.sms)
    return np.where(thin & (d.element_bytes("bf16") == 2.0), np.maximum(us, moved_us), np.nan)


FAMILIES = (
    Family(
        "gemm", ("M", "N", "K"), Law.COMPUTE, work, ("linear", "mm"), ("B", "trans_a", "trans_b"),
        start=(5.0, 4.5), time=gemm_us, reference=product_us, product=sizes, columns=columns,
        outside_spread=0.06, colour="#0B5FA5", any_phase=True,
    ),
    Family(
        "bmm", ("B", "M", "N", "K"), Law.COMPUTE, work, ("bmm",), ("trans_a", "trans_b"),
        start=(5.0, 3.0), time=bmm_us, reference=product_us, product=sizes, columns=columns,
        limit=bmm_limit, outside_spread=0.08, colour="#63B3E4", any_phase=True,
    ),
)  # fmt: skip
