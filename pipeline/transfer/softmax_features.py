"""Features of softmax calls that determine how much of the bandwidth they reach; they mean the same on every GPU.

PyTorch keeps a row of up to 1,024 elements in the registers of a warp, padded to a power of two. A block reads a longer
row three times (for its largest element, its sum and its outputs). Each thread reads vectors of four elements where
they are aligned and fill the block, and single elements before and after them. The kernel names and blocks of the
public table show both.

The model is linear in these features. Networks with more features learned to tell the GPUs apart, and their errors on a
new GPU were larger (docs/notes/transfer.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.features import MAX_WARP_ROW
from pipeline.kernels.work import Dims

Array = npt.NDArray[np.float64]

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

PARTIAL_SECTOR_ARCHITECTURES = ("volta", "turing")
"""Architectures on which partly written sectors cost bandwidth: 6 to 18 % on V100 and T4.

P100, P4 and A100 lose only 0 to 8 %."""


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
    rounds = np.where(by_block, block_rounds(width, threads) * threads / width, 0.0)
    filled = np.where(by_block, 1.0, width / 2.0 ** np.ceil(np.log2(width)))
    within = np.where(width % SECTOR_ELEMENTS == 0, 0.0, np.where(width % VECTOR == 0, PARTIAL_SECTOR_COST, 1.0))
    costs = float(gpu.architecture in PARTIAL_SECTOR_ARCHITECTURES)
    short = np.log1p(gpu.sms * gpu.max_threads_per_sm / (rows * threads))
    return np.column_stack([by_block.astype(float), filled, rounds, np.where(by_block, 0.0, costs * within), short])


def block_threads(width: Array) -> Array:
    """Threads of the block that computes a row of a width above `MAX_WARP_ROW` elements, shape (rows,).

    It is a power of two, large enough that at least half of the row's vectors have a thread, up to the largest block
    (`SoftMax_getBlockSize` of PyTorch).
    """
    wanted = np.maximum(np.minimum(np.floor(width / VECTOR), MAX_THREADS) / 2.0, 1.0)
    return np.asarray(np.maximum(2.0 ** np.ceil(np.log2(np.floor(wanted))), WARP))


def block_rounds(width: Array, threads: Array) -> Array:
    """Consecutive loads of a thread in one pass over a row, averaged over the alignments of rows; shape (rows,).

    Rows are stored one after another. With a width of a multiple of 4 every row is aligned, with another even width
    every second row, and with an odd width every fourth row.
    """
    aligned, within_2, within_1, within_3 = (_rounds(width, threads, shift) for shift in (0, 2, 1, 3))
    even, odd = (aligned + within_2) / 2.0, (aligned + within_1 + within_2 + within_3) / 4.0
    return np.where(width % VECTOR == 0, aligned, np.where(width % 2 == 0, even, odd))


def _rounds(width: Array, threads: Array, shift: int) -> Array:
    """`block_rounds` of rows that begin `shift` elements after an aligned address; single elements are loaded first."""
    left = np.maximum(width - threads + shift, 0.0) if shift else width
    vectors = np.floor(left / (VECTOR * threads))
    singles = np.ceil((left - vectors * VECTOR * threads) / threads)
    return np.asarray(vectors + singles + (1.0 if shift else 0.0))
