"""Device-normalised features of kernel calls: quantities that carry over to other GPUs.

Sizes appear as waves (tiles over SMs), as padding and alignment, and as working sets over the L2 size. Bandwidths and
clocks do not appear. They scale the prediction itself (`utilisation.py`), which keeps it monotone in them.

Softmax has features of its own, which determine how much of the bandwidth it reaches. PyTorch keeps a row of up to 1,024
elements in the registers of a warp, padded to a power of two. A block reads a longer row three times (for its largest
element, its sum and its outputs). Each thread reads vectors of four elements where they are aligned and fill the block,
and single elements before and after them. The kernel names and blocks of the public table show both. Softmax models are
linear in these features: networks with more features had larger errors on a new GPU (docs/notes/transfer.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families import work_of
from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims
from pipeline.families.family import MAX_WARP_ROW
from pipeline.hardware.spec import GpuSpec

TILES = (
    (128, 128),
    (128, 64),
    (64, 64),
    (32, 128),
    (128, 32),
    (32, 32),
)
"""Output tiles of the fp32 matrix kernels from which cuBLAS and cuDNN choose (kernel names in the public table)."""

COVERED_FAMILIES = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Families with cross-GPU models; for other families the caller uses its roofline."""

COMPUTE_FAMILIES = ("gemm", "bmm", "conv2d_forward")
"""Families with a compute term; the others move bytes only."""

WARP = 32
"""Threads of a warp."""

VECTOR = 4
"""Number of fp32 elements that a thread of a block reads at once (16 bytes)."""

MAX_THREADS = 1024
"""Threads of the largest block that PyTorch starts from; a vectorised block has at most half as many."""

SECTOR_ELEMENTS = 8
"""Number of fp32 elements of a 32-byte sector: rows of a multiple of it begin and end with whole sectors."""

PARTIAL_SECTOR_COST = 0.7
"""Relative cost of rows of a multiple of 4 elements, of which every second one begins within a sector.

The unit is the cost of rows of other lengths. On a T4 and a V100 these rows lose 4 to 12 % of the bandwidth, rows of
other lengths 6 to 18 %."""


@dataclass(frozen=True)
class Algorithm:
    """Work and features of calls that are computed by one of several algorithms: a route of cuDNN, or an output tile.

    Attributes:
        flops: operations with padding, infinite where the algorithm cannot compute a call; shape (rows,).
        bytes: least number of bytes moved, shape (rows,).
        x: features, shape (rows, features).
        us: time of the arithmetic in µs; that of `flops` in fp32 if None.
        tile_bytes: bytes that all tiles together read, shape (rows,); 0 for algorithms without this time.
        chain_us: time in µs of consecutive steps, shape (rows,); 0 for algorithms without this time.
        norm: exponent of the norm over arithmetic and memory times; None for the exponent of the family.
    """

    flops: Array
    bytes: Array
    x: Array
    us: Array | None = None
    tile_bytes: Array | float = 0.0
    chain_us: Array | float = 0.0
    norm: float | None = None


@dataclass(frozen=True)
class Tiling:
    """Outputs of products in tiles: blocks, waves over the SMs, fullness of the last wave, fullness of tiles; (rows,)."""

    blocks: Array
    waves: Array
    last_wave: Array
    filled: Array

    @classmethod
    def of(
        cls, rows: Array, columns: Array, tile: tuple[int, int], gpu: GpuSpec, batch: Array | float
    ) -> Tiling:
        """Cut `batch` matrices of rows x columns outputs into tiles."""
        high, wide = tile
        blocks = np.ceil(rows / high) * np.ceil(columns / wide)
        waves = batch * blocks / gpu.sms
        return cls(
            batch * blocks,
            waves,
            last_wave(waves),
            rows * columns / (blocks * high * wide),
        )


def last_wave(waves: Array) -> Array:
    """Fullness of the last wave of blocks, shape (rows,)."""
    return waves / np.ceil(waves)


def side_by_side(*features: Array | float) -> Array:
    """Features of shape (rows,), and numbers that count for all rows, as one array of shape (rows, features)."""
    return np.column_stack(np.broadcast_arrays(*features))


def call_features(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Array]:
    """Features by name of calls of one covered family on a GPU, each of shape (rows,)."""
    d, traffic = Dims(calls), work_of(family, calls, own_columns=False).bytes
    if family in COMPUTE_FAMILIES:
        return _products(family, d, gpu, traffic)
    return _rows(d, gpu, traffic)


def _products(family: str, d: Dims, gpu: GpuSpec, traffic: Array) -> dict[str, Array]:
    """Features of matrix products (B x) M x N times N x K, and of convolutions as implicit products.

    For convolutions these features serve only as a measure of similarity of calls (`probes.py`). Their models use
    features of each route instead.
    """
    if family == "conv2d_forward":
        shape = ConvShape.of(d)
        batch, m = np.ones(d.rows), shape.batch * shape.out_height * shape.out_width
        n, k = shape.in_channels / shape.groups * shape.window, shape.out_channels
    else:
        batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    f = {
        "log_m": np.log(m),
        "log_n": np.log(n),
        "log_k": np.log(k),
        "log_batch": np.log(batch),
    }
    for high, wide in TILES:
        tiling = Tiling.of(m, k, (high, wide), gpu, batch)
        f[f"waves_{high}x{wide}"] = np.log(tiling.waves)
        f[f"tail_{high}x{wide}"] = tiling.last_wave
        f[f"padding_{high}x{wide}"] = tiling.filled
    for name, size in (("m", m), ("n", n), ("k", k)):
        f[f"align_{name}"] = alignment(size)
    # bytes that one wave of blocks reads together, over the L2 size; the logarithm of 1 + x is nearly 0 where they fit.
    # A GPU with much more L2 than the GPUs with samples therefore has features within the range of the samples.
    f["operands_per_l2"] = np.log1p(traffic / gpu.l2_bytes)
    blocks = np.minimum(
        Tiling.of(m, k, (64, 64), gpu, batch).blocks,
        2.0 * gpu.sms,
    )
    f["panels_per_l2"] = np.log1p(4.0 * 64.0 * n * blocks / gpu.l2_bytes)
    f["smaller_panel_per_l2"] = np.log1p(4.0 * n * np.minimum(m, k) / gpu.l2_bytes)
    f["squareness"] = np.log(m / k)
    f["pascal"] = np.full(
        d.rows,
        float(gpu.generation.pascal_kernels),
    )
    if family == "conv2d_forward":
        f |= _image(d, shape, gpu)
    return f


def _image(d: Dims, shape: ConvShape, gpu: GpuSpec) -> dict[str, Array]:
    """Features on which the choice of Winograd, implicit products or FFT depends.

    They are the image size, channels, the window, and padding to Winograd tiles of 2 x 2, 4 x 4 and 6 x 6.
    """
    out = shape.out_height
    f = {
        "log_images": np.log(shape.batch),
        "log_image": np.log(out),
        "log_in": np.log(shape.in_channels),
    }
    for edge in (2, 4, 6):
        f[f"winograd_padding_{edge}"] = out / (edge * np.ceil(out / edge))
    winograd = shape.batch * np.ceil(shape.out_height / 2) * np.ceil(shape.out_width / 2)
    waves = np.ceil(winograd / 128) * np.ceil(shape.out_channels / 128) / gpu.sms
    f["winograd_waves"] = np.log(waves)
    f["winograd_tail"] = last_wave(waves)
    f["align_in"] = alignment(shape.in_channels)
    f["window"] = np.log(shape.window)
    f["stride"] = d("stride", 1.0)
    return f


def _rows(d: Dims, gpu: GpuSpec, traffic: Array) -> dict[str, Array]:
    """Features of families that work on rows: rows per SM, their width, and their size over the L2 size."""
    rows, width = d("B", 1.0), d("H")
    threads, blocks = gpu.sms * gpu.max_threads_per_sm, rows / (gpu.sms * 8.0)
    return {
        "log_width": np.log(width),
        "rows_per_sm": np.log(rows / gpu.sms),
        "elements_per_thread": np.log(rows * width / threads),
        "row_power": width / 2.0 ** np.ceil(np.log2(width)),
        "wide": (width > 1024.0).astype(float),
        "align_width": alignment(width),
        "bytes_per_l2": np.log(traffic / gpu.l2_bytes),
        "warps_per_wave": np.log1p(rows / (gpu.sms * gpu.max_warps_per_sm)),
        "block_wave_tail": blocks / np.maximum(np.ceil(blocks), 1.0),
    }


def alignment(size: Array) -> Array:
    """Base-2 logarithm of the largest power of two up to 32 that divides a size, over 5: 0 for odd sizes, 1 for 32."""
    powers = sum((np.mod(size, 2.0**step) == 0).astype(float) for step in range(1, 6))
    return np.asarray(powers) / 5.0


def softmax_features(calls: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Features of softmax calls on a GPU, shape (rows, 5); all are finite.

    The columns are:
    1. Whether a block computes a row (1) or a warp (0).
    2. The share of a warp's padded row that holds elements; 1 for blocks.
    3. The rounds of a block's threads per element of each thread; 0 for warps.
    4. The cost of rows that begin within a sector, on architectures where they cost bandwidth.
    5. log(1 + resident threads of the device / threads of the call).
    """
    d = Dims(calls)
    rows, width = np.maximum(d("B", 1.0), 1.0), np.maximum(d("H"), 1.0)
    by_block = width > MAX_WARP_ROW
    threads = np.where(by_block, block_threads(width), float(WARP))
    rounds = np.where(
        by_block,
        block_rounds(width, threads) * threads / width,
        0.0,
    )
    filled = np.where(
        by_block,
        1.0,
        width / 2.0 ** np.ceil(np.log2(width)),
    )
    within = np.where(
        width % SECTOR_ELEMENTS == 0, 0.0, np.where(width % VECTOR == 0, PARTIAL_SECTOR_COST, 1.0)
    )
    costs = float(gpu.generation.partial_sectors)
    short = np.log1p(gpu.sms * gpu.max_threads_per_sm / (rows * threads))
    return np.column_stack(
        [
            by_block.astype(float),
            filled,
            rounds,
            np.where(by_block, 0.0, costs * within),
            short,
        ]
    )


def block_threads(width: Array) -> Array:
    """Threads of the block that computes a row of a width above `MAX_WARP_ROW` elements, shape (rows,).

    It is a power of two, large enough that at least half of the row's vectors have a thread, up to the largest block
    (`SoftMax_getBlockSize` of PyTorch).
    """
    wanted = np.maximum(
        np.minimum(np.floor(width / VECTOR), MAX_THREADS) / 2.0,
        1.0,
    )
    return np.maximum(
        2.0 ** np.ceil(np.log2(np.floor(wanted))),
        WARP,
    )


def block_rounds(width: Array, threads: Array) -> Array:
    """Consecutive loads of a thread in one pass over a row, averaged over the alignments of rows; shape (rows,).

    Rows are stored one after another. With a width of a multiple of 4 every row is aligned, with another even width
    every second row, and with an odd width every fourth row.
    """
    aligned, within_2, within_1, within_3 = (
        _rounds(width, threads, shift) for shift in (0, 2, 1, 3)
    )
    even, odd = (aligned + within_2) / 2.0, (aligned + within_1 + within_2 + within_3) / 4.0
    return np.where(
        width % VECTOR == 0,
        aligned,
        np.where(width % 2 == 0, even, odd),
    )


def _rounds(width: Array, threads: Array, shift: int) -> Array:
    """`block_rounds` of rows that begin `shift` elements after an aligned address; single elements are loaded first."""
    left = np.maximum(width - threads + shift, 0.0) if shift else width
    vectors = np.floor(left / (VECTOR * threads))
    singles = np.ceil((left - vectors * VECTOR * threads) / threads)
    return vectors + singles + (1.0 if shift else 0.0)
