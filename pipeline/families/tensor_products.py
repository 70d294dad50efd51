"""Matrix products on tensor cores: which calls run there, and what misaligned rows and thin products take."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.families.dims import Dims
from pipeline.families.family import split_over
from pipeline.families.gemm import sizes, work
from pipeline.families.tensor_cores import MIN_REDUCTION, on_tensor_cores
from pipeline.hardware.spec import GpuSpec

ALIGNMENT_BYTES = 16.0
"""Alignment of a matrix's rows in memory, bytes. Kernels that copy whole vectors need rows of a multiple of this."""

ACCESSES_PER_CLOCK = 3.8
ACCESS_TILES = ((128.0, 128.0), (128.0, 64.0), (64.0, 64.0), (128.0, 32.0), (32.0, 128.0))
"""Operand loads and stores per SM and clock of half-precision kernels for misaligned rows (`align1` in their names), which
move an element at a time (two or four, if rows are a multiple of these), and their tiles. From an H100 trace: products
with 3,137 tokens reach 4.0 and 4.4."""

MISALIGNED_FACTOR, EVEN_HALF_FACTOR = 2.25, 1.8
"""Factors on the time of arithmetic in kernels for misaligned rows (`align1` in their names), and for those of half precision whose
rows hold two or four elements (`align2`).

The first was set on half of the 26 such sizes of the A100 DLRM trace, every second one in order of size. MAPE is 20 % on this
half and 25 % on the other half; without the factor it is 38 % and 40 %. The second was set on every second of 32 products of an
A100 with even vocabularies from 51,138 to 51,220 (EleutherAI's cookbook, sizing/results). The other half is 0.8 % off, and 85
products with 66 to 246 columns or of attention 11 %; with the first factor they were 24 and 26 % off.
"""

PADDING_GAIN = 1.1
"""How much faster a padded product must be (torch/_inductor/fx_passes/pad_mm.py of PyTorch 2.13)."""

THIN_EDGE, THIN_BLOCK_CLOCKS, THIN_STEP_CLOCKS = 16.0, 170.0, 1.5
"""Edge of the tile of batches of thin products (`wmma ... 16x16`), cycles of an SM for a block, and for each element of its
sum. From an H100 trace, 37,632 products of 8 tokens; with any number of rows, checked on steps of CaiT and ConViT."""


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


def _elements_at_once(d: Dims) -> Ints:
    """Elements of half precision that an access to the rows of all matrices may move: 1, 2, 4 or 8."""
    rows = np.nan_to_num(np.stack(_rows_in_memory(d))).astype(np.int64)
    return np.asarray(np.gcd(rows, 8).min(axis=0))


def misaligned_factor(products: pd.DataFrame) -> Array:
    """Factor on the time of arithmetic of each product for rows that are misaligned, else 1; shape (rows,)."""
    d = Dims(products)
    even = (d.element_bytes("bf16") == 2.0) & (_elements_at_once(d) > 1)
    factor = np.where(even, EVEN_HALF_FACTOR, MISALIGNED_FACTOR)
    return np.where(misaligned(products), factor, 1.0)


def by_element_us(products: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Least time of half-precision products with misaligned rows, whose operands move element by element, us; else 0.

    A long sum is split over idle SMs.
    """
    d = Dims(products)
    m, n, k, batch = sizes(d)
    vector, times = _elements_at_once(d), []
    for high, wide in ACCESS_TILES:
        blocks = batch * np.ceil(m / high) * np.ceil(k / wide)
        split = split_over(gpu.sms, blocks, n, MIN_REDUCTION)
        moved = ((high + wide) * n / split + high * wide) / vector
        times.append(np.ceil(blocks * split / gpu.sms) * moved)
    us = np.min(times, axis=0) / ACCESSES_PER_CLOCK / gpu.clock_mhz
    return np.where((d.element_bytes("bf16") == 2.0) & misaligned(products), us, 0.0)


def padding_pays(products: pd.DataFrame, gpu: GpuSpec, copied_bytes: float) -> bool:
    """Whether a product is faster with sizes of whole vectors, copies of its operands included.

    It answers where PyTorch's compiler measures, and only for the products that it would measure: those that arithmetic bounds.
    Times are those of arithmetic at the peak, of single elements, and of traffic.

    Args:
        products: the product as it is, and padded: two rows.
        gpu: the GPU.
        copied_bytes: what the copies read and write.
    """
    d = Dims(products)
    sized, by_peak = work(d), 1e3 * gpu.peak_gflop_per_s(str(d.dtype[0]))
    arithmetic_us, bytes_us = sized.flops / by_peak, 1e3 * gpu.peak_dram_gb_per_s()
    moved_us = sized.bytes / bytes_us
    slower = misaligned_factor(products)
    plain_us, padded_us = np.maximum.reduce(
        [arithmetic_us * slower, by_element_us(products, gpu), moved_us]
    )
    measured = on_tensor_cores(d, gpu) & (arithmetic_us > moved_us / d.element_bytes())
    return bool(measured[0] and plain_us > PADDING_GAIN * (padded_us + copied_bytes / bytes_us))


def thin_products_us(d: Dims, gpu: GpuSpec) -> Array:
    """Time of many thin half-precision products, a block for each 16 x 16 outputs, us; NaN for other products.

    A thin product has few columns (or rows) and a short sum. No sample has such sizes: learned models are far too long.
    """
    m, n, k, batch = sizes(d)
    blocks = batch * np.ceil(m / THIN_EDGE) * np.ceil(k / THIN_EDGE)
    us = blocks / gpu.sms * (THIN_BLOCK_CLOCKS + THIN_STEP_CLOCKS * n) / gpu.clock_mhz
    moved_us = 2.0 * batch * (m * n + n * k + m * k) / (1e3 * gpu.peak_dram_gb_per_s())
    thin = (np.minimum(m, k) <= THIN_EDGE) & (n <= 4 * THIN_EDGE) & (blocks > 8 * gpu.sms)
    return np.where(thin & (d.element_bytes("bf16") == 2.0), np.maximum(us, moved_us), np.nan)
