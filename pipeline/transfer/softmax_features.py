"""What decides how far a softmax stays below its bandwidth, in few features that mean the same on every GPU.

PyTorch keeps a row of up to 1,024 elements in the registers of a warp, padded to a power of two. A longer row is read
three times by a block (largest, sum, outputs): vectors of four elements a thread where they are aligned and fill the
block, single elements for what is left before and after them. Names and blocks of the public table show both.

The model is linear in these features: networks on more of them told the GPUs apart and missed a new one by more
(docs/notes/transfer.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.features import WARP_WIDTH
from pipeline.kernels.work import Dims

Array = npt.NDArray[np.float64]

WARP = 32
"""Threads of a warp."""

VECTOR = 4
"""fp32 elements that a thread of a block reads at once (16 bytes)."""

MOST_THREADS = 1024
"""Largest block that PyTorch starts from; a vectorised one takes at most half of it."""

WHOLE_SECTORS = 8
"""fp32 elements of a 32-byte sector: rows of a multiple of it begin and end with whole sectors."""

PARTLY = 0.7
"""What rows of a multiple of 4 elements, every other of which begins within a sector, cost of what others do: on a T4 and
a V100 they lose 4 to 12 % of the bandwidth where those lose 6 to 18 %."""

PARTIAL_SECTORS = ("volta", "turing")
"""Architectures that pay for partly written sectors: 6 to 18 % of the bandwidth on V100 and T4, 0 to 8 % on P100, P4 and A100."""


def softmax_features(calls: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Features of softmax calls on a GPU, shape (rows, 5), none of them infinite.

    In turn: whether a block computes a row; how much of a warp's padded row is there; how many rounds a block's threads
    take per element of theirs; rows that begin within a sector, where that costs; how far the threads fall short of those
    that the device keeps resident.
    """
    d = Dims(calls)
    rows, width = np.maximum(d("B", 1.0), 1.0), np.maximum(d("H"), 1.0)
    by_block = width > WARP_WIDTH
    threads = np.where(by_block, block_threads(width), float(WARP))
    rounds = np.where(by_block, block_rounds(width, threads) * threads / width, 0.0)
    filled = np.where(by_block, 1.0, width / 2.0 ** np.ceil(np.log2(width)))
    within = np.where(width % WHOLE_SECTORS == 0, 0.0, np.where(width % VECTOR == 0, PARTLY, 1.0))
    costs = float(gpu.architecture in PARTIAL_SECTORS)
    short = np.log1p(gpu.sms * gpu.max_threads_per_sm / (rows * threads))
    return np.column_stack([by_block.astype(float), filled, rounds, np.where(by_block, 0.0, costs * within), short])


def block_threads(width: Array) -> Array:
    """Threads of the block that computes a row of a width above `WARP_WIDTH` elements, shape (rows,).

    A power of two: at least half of the row's vectors have a thread (`SoftMax_getBlockSize` of PyTorch).
    """
    wanted = np.maximum(np.minimum(np.floor(width / VECTOR), MOST_THREADS) / 2.0, 1.0)
    return np.asarray(np.maximum(2.0 ** np.ceil(np.log2(np.floor(wanted))), WARP))


def block_rounds(width: Array, threads: Array) -> Array:
    """Loads that a thread makes one after another in a pass over a row, mean over the alignments of rows; shape (rows,).

    Rows lie one behind another, so that a width of a multiple of 4 is always aligned, an even one every other time and
    an odd one every fourth.
    """
    aligned, within_2, within_1, within_3 = (_rounds(width, threads, shift) for shift in (0, 2, 1, 3))
    even, odd = (aligned + within_2) / 2.0, (aligned + within_1 + within_2 + within_3) / 4.0
    return np.where(width % VECTOR == 0, aligned, np.where(width % 2 == 0, even, odd))


def _rounds(width: Array, threads: Array, shift: int) -> Array:
    """The same for rows that begin `shift` elements behind an aligned address: a round of single elements comes first."""
    left = np.maximum(width - threads + shift, 0.0) if shift else width
    vectors = np.floor(left / (VECTOR * threads))
    singles = np.ceil((left - vectors * VECTOR * threads) / threads)
    return np.asarray(vectors + singles + (1.0 if shift else 0.0))
