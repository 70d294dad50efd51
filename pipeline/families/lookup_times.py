"""Times of embedding lookups and their gradients on a GPU.

A lookup reads rows from random addresses, each after the index of the row. Its kernel is limited either by bandwidth or
by the latency of dependent loads (loads that must follow one another), whichever is slower. The times of bytes from
DRAM and of rows that hit L2 add up, because both pass through L2. The number of dependent loads, and the number of loads
in flight on a GPU, follow from the kernels' sources:

- FBGEMM: `codegen/training/backward`
- PyTorch: `ATen/native/cuda/Embedding.cu` and `EmbeddingBackwardKernel.cu`

`ROW_LATENCY_US` is the only constant that is fitted to a measurement. docs/notes/kernels.md compares this
model with measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, attributes_of, sectors
from pipeline.families.embedding_lookups import (
    CACHEABLE_SHARE,
    RESIDENT_WARPS_PER_SM,
    Lookup,
    forward_traffic,
    of_each_call,
)
from pipeline.hardware.spec import GpuSpec
from pipeline.question.table_times import small_width_factor

ROW_LATENCY_US = 0.5
"""Memory latency per row that a warp adds up, us. A warp adds the rows of its sample one after another, so a call with
few samples and many lookups is bound by latency. From the V100 DLRM trace (128 samples, 2 to 35 lookups:
7 to 66 us)."""

WARP = 32

FLOATS_PER_LANE = 4
"""Elements that one lane of FBGEMM's kernels loads at once. A row of up to 32 elements uses 8 lanes, one of up to 64
uses 16."""

BLOCK_ROWS = 32
"""Lookups of one row that a thread block adds up in parallel. A row with fewer lookups is handled by a single warp."""

BLOCK_REGISTERS = 42
"""Registers per thread of the kernel with one block for each row (A100 trace, launch parameters). With 42, one block
fits on an SM."""

MAX_BLOCK_RUN = 1024
"""Maximum number of lookups that one block adds up (`max_segment_length_per_cta`). More lookups are split over
blocks."""

UPDATE_LOADS = 7.0
"""Dependent loads when FBGEMM updates a row, not counting the loads of its gradients. They are: the run's number, its
ends, its first entry, the table's width and start, the entries, the address of the weight, and the row."""

SUM_ROWS = 10.0
"""Gradient rows that one thread of PyTorch's dense gradient adds up (`NROWS_PER_THREAD`). A second kernel adds these
partial sums."""

FEW_INDICES_PER_BLOCK = 16.0
"""Indices that a block of PyTorch's kernel for few indices handles at once (`BLOCKDIMY`). The block takes the next
indices when these are done. Each index costs two dependent loads: a gradient row, then the row to which it is added."""

FEW_INDICES_BLOCKS_PER_SM = 4.0
"""Blocks of PyTorch's kernel for few indices on one SM. A block has 512 threads and handles 32 columns."""


@dataclass(frozen=True)
class Repeats:
    """Counts of repeated rows in calls, each of shape (rows,), summed over a call's tables."""

    accesses: Array
    distinct: Array
    sums: Array  # partial sums of PyTorch's dense gradient
    sum_loads: Array  # dependent loads of all partial sums
    update_us: Array  # FBGEMM's update: load latency only
    slice_bytes: Array  # output gradient of one table, mean over tables


def lookup_us(
    name: str, d: Dims, gpu: GpuSpec, dram_us: Callable[[Array], Array], l2_gb_per_s: float
) -> Array:
    """Time of lookups or their gradients without the kernel's start, us, shape (rows,); NaN where sizes are unknown."""
    traffic = forward_traffic(d, gpu)
    narrow = small_width_factor(d("D"))

    def moving_us(cold: Array, warm: Array) -> Array:
        return (dram_us(cold) + warm / (1e3 * l2_gb_per_s)) * narrow

    if name == "embedding_forward":
        hits = traffic.hits * traffic.weights
        moved = moving_us(traffic.fixed + traffic.weights - hits, hits)
        return np.maximum(moved, ROW_LATENCY_US * traffic.longest)
    return _gradient_us(d, gpu, moving_us, traffic.fixed, traffic.weights)


def _gradient_us(
    d: Dims, gpu: GpuSpec, moving_us: Callable[[Array, Array], Array], fixed: Array, weights: Array
) -> Array:
    """Time of lookup gradients, us, shape (rows,).

    The op selects the kernel: FBGEMM's fused update, PyTorch's dense gradient (of many or of few rows), or PyTorch's
    sparse gradient, which only writes rows.
    """
    repeats = _repeats(d, gpu)
    row = sectors(d.element_bytes() * d("D"))
    again = np.maximum(
        weights - row * d("B") * np.maximum(d("T", 1.0), 1.0), 0.0
    )  # repeated reads of gradient rows
    held = np.minimum(1.0, CACHEABLE_SHARE * gpu.l2_bytes / np.maximum(repeats.slice_bytes, 1.0))
    fixed, warm = fixed + (1.0 - held) * again, held * again
    fused = np.maximum(moving_us(fixed + 2.0 * repeats.distinct * row, warm), repeats.update_us)

    summed = repeats.sums * sectors(4.0 * d("D"))  # written and read again, in fp32
    threads = max(gpu.sms, 1) * gpu.max_threads_per_sm
    columns = WARP * np.ceil(d("D") / WARP)
    loads = repeats.sum_loads + 2.0 * repeats.distinct + repeats.sums
    dense = (
        moving_us(fixed + 2.0 * summed + repeats.distinct * row, warm)
        + ROW_LATENCY_US * loads * columns / threads
    )

    turns = np.ceil(repeats.accesses / FEW_INDICES_PER_BLOCK)
    waves = np.ceil(np.ceil(d("D") / WARP) / (FEW_INDICES_BLOCKS_PER_SM * max(gpu.sms, 1)))
    few = np.maximum(
        moving_us(fixed + 2.0 * repeats.distinct * row, warm), 2.0 * ROW_LATENCY_US * turns * waves
    )

    unsorted = np.array(
        [attributes.get("sorted") is False for attributes in attributes_of(d)], dtype=bool
    )
    sorted_or_few = np.where(d.op_in(("dense",)), np.where(unsorted, few, dense), fused)
    sparse = moving_us(fixed - (1.0 - held) * again + weights, weights)
    return np.where(d.op_in(("sparse",)), sparse, sorted_or_few)


def _repeats(d: Dims, gpu: GpuSpec) -> Repeats:
    """Counts of repeated rows in each call, and the loads and times that follow from them."""
    counts = of_each_call(d, 6, lambda tables, *_: _repeats_of(tables, gpu))
    counts[5] *= d.element_bytes()
    return Repeats(*counts)


def _repeats_of(tables: list[Lookup], gpu: GpuSpec) -> tuple[float, ...]:
    """(accesses, distinct rows, partial sums, their loads, update time in us, elements of one table's gradient)."""
    accesses = distinct = sums = loads = blocks = block_loads = warp_loads = 0.0
    for table, count in Counter(tables).items():
        rows = max(table.distinct_rows(), 1.0)
        uses = max(table.accesses / rows, 1.0)
        accesses, distinct = accesses + count * table.accesses, distinct + count * rows
        parts = rows * max(uses / SUM_ROWS, 1.0)
        sums, loads = sums + count * parts, loads + count * (2.0 * parts + 2.0 * rows * uses)
        if uses < BLOCK_ROWS:
            warp_loads += count * rows * (UPDATE_LOADS + uses)
        else:
            pieces = np.ceil(uses / MAX_BLOCK_RUN)
            blocks += count * rows * pieces
            block_loads += (
                count * rows * pieces * (UPDATE_LOADS + np.ceil(uses / pieces / BLOCK_ROWS))
            )
    lanes = _lanes(tables[0].width)
    sms = max(gpu.sms, 1)
    resident = max(gpu.registers_per_sm // (BLOCK_REGISTERS * BLOCK_ROWS * lanes), 1)
    side_by_side = min(
        sms * resident, max(np.ceil(accesses / MAX_BLOCK_RUN), 1.0), max(blocks, 1.0)
    )
    waits = block_loads / side_by_side + warp_loads / (sms * RESIDENT_WARPS_PER_SM * WARP / lanes)
    slice_elements = float(np.mean([table.batch * table.width for table in tables]))
    return accesses, distinct, sums, loads, ROW_LATENCY_US * float(waits), slice_elements


def _lanes(width: float) -> int:
    """Lanes of a warp that FBGEMM's kernels use for one row."""
    return 8 if width <= 8 * FLOATS_PER_LANE else 16 if width <= 16 * FLOATS_PER_LANE else WARP
