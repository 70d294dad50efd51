"""Embedding lookups and their gradients: traffic in sectors, the share that L2 serves, and the time on a GPU.

The formulas of traffic are those of Lin et al. (plain and enhanced embedding lookup models), generalised to index
distributions. A call has B samples and T tables of E rows and width D, with L lookups per sample and table. One call may
cover several tables of different heights. Its `attributes` can have:

- `rows`: E of each table.
- `lookups`: mean L of each table.
- `distribution`: `uniform`, `zipf:ALPHA`, or `recorded` with `distinct` (distinct rows of each table).
- `index_bytes`: 4 or 8.

A lookup reads rows from random addresses, each after the index of the row. Its kernel is limited either by bandwidth or
by the latency of dependent loads (loads that must follow one another), whichever is slower. The times of bytes from
DRAM and of rows that hit L2 add up, because both pass through L2. The number of dependent loads, and the number of loads
in flight on a GPU, follow from the kernels' sources:

- FBGEMM: `codegen/training/backward`
- PyTorch: `ATen/native/cuda/Embedding.cu` and `EmbeddingBackwardKernel.cu`

`ROW_LATENCY_US` is the only constant that is fitted to a measurement. `benchmarks/kernels/lookups.py` compares this
model with measurements.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.families.dims import Array, Dims, Work, sectors
from pipeline.hardware.spec import GpuSpec

RESIDENT_WARPS_PER_SM = 45.0
"""Number of warps of FBGEMM's lookup kernel that run at once on one SM (Lin et al., from its register use)."""

CACHEABLE_SHARE = 0.9
"""Share of L2 that weight rows can occupy (Lin et al.)."""

SMALL_WIDTH_FACTORS = ((32, 1.55), (64, 1.1))
"""Empirical slowdown of narrow rows, as (largest D, factor); wider rows have factor 1 (Lin et al.)."""

ROW_LATENCY_US = 0.5
"""Memory latency per row that a warp adds up, us. A warp adds the rows of its sample one after another, so a call with
few samples and many lookups is bound by latency. From the V100 DLRM trace (128 samples, 2 to 35 lookups:
7 to 66 us)."""

HARMONIC_TERMS = 4096
"""Number of Zipf ranks that are summed one by one; higher ranks are summed in logarithmic bins."""


@dataclass(frozen=True)
class Lookup:
    """One table of one call: its sizes, and the distribution of its indices."""

    batch: float
    rows: float
    lookups: float
    width: float
    distribution: str = "uniform"
    distinct: float | None = None

    @property
    def accesses(self) -> float:
        """Rows read in one call."""
        return self.batch * self.lookups

    def distinct_rows(self) -> float:
        """Expected number of different rows among the accesses."""
        if self.distinct is not None:
            return min(self.distinct, self.rows, self.accesses)
        if self.distribution.startswith("zipf"):
            alpha = float(self.distribution.partition(":")[2] or 1.05)
            return _zipf_distinct(int(self.rows), round(self.accesses), alpha)
        return float(
            -self.rows * np.expm1(self.accesses * np.log1p(-1.0 / max(self.rows, 1.0 + 1e-9)))
        )

    def hit_rate(self, cached_rows: float) -> float:
        """Share of row reads that L2 serves when it holds `cached_rows` of this table.

        Uniform indices use the formula of the paper. With a skewed distribution, the most popular rows stay cached. So
        every access to one of the `cached_rows` most popular rows hits, except the first.
        """
        n = max(self.accesses, 1.0)
        distinct = self.distinct_rows()
        cached = min(cached_rows, self.rows, n)
        if distinct <= cached:
            return float(np.clip(1.0 - distinct / n, 0.0, 1.0))
        if self.distribution.startswith("zipf"):
            alpha = float(self.distribution.partition(":")[2] or 1.05)
            share, held = _zipf_head(int(self.rows), n, alpha, cached)
            return float(np.clip(share - held / n, 0.0, 1.0))
        if self.distinct is not None:
            # recorded indices: the recorded share of repeats, times the share of distinct rows that L2 can hold
            return float(np.clip((1.0 - distinct / n) * cached / distinct, 0.0, 1.0))
        # the published formula counts no hits while L2 fills; without the bound of half of the accesses, a larger cache
        # would give a smaller hit rate
        filling = min(cached, n / 2.0)
        missed = filling + (n - filling) * (self.rows - filling) / self.rows
        return float(np.clip(1.0 - missed / n, 0.0, 1.0))


@lru_cache(maxsize=256)
def _zipf_bins(rows: int, alpha: float) -> tuple[Array, Array, Array]:
    """Bins of ranks: (first rank, ranks per bin, probability of one rank in the bin); probabilities sum to 1."""
    head = np.arange(1, min(rows, HARMONIC_TERMS) + 1, dtype=np.float64)
    edges = (
        np.unique(np.floor(np.geomspace(HARMONIC_TERMS + 1, rows + 1, 400)))
        if rows > HARMONIC_TERMS
        else head[:0]
    )
    first = np.concatenate([head, edges[:-1]])
    count = np.concatenate([np.ones_like(head), np.diff(edges)])
    weight = (first + (count - 1.0) / 2.0) ** -alpha
    return first, count, weight / float((weight * count).sum())


@lru_cache(maxsize=1024)
def _zipf_distinct(rows: int, accesses: int, alpha: float) -> float:
    _, count, share = _zipf_bins(rows, alpha)
    return float((count * -np.expm1(accesses * np.log1p(-np.minimum(share, 1.0 - 1e-12)))).sum())


def _zipf_head(rows: int, accesses: float, alpha: float, cached: float) -> tuple[float, float]:
    """Share of accesses to the `cached` most popular rows, and the expected number of these rows that are accessed."""
    first, count, share = _zipf_bins(rows, alpha)
    inside = np.clip(cached - (first - 1.0), 0.0, count)
    touched = inside * -np.expm1(accesses * np.log1p(-np.minimum(share, 1.0 - 1e-12)))
    return float((inside * share).sum()), float(touched.sum())


def tables_of(d: Dims, row: int, attributes: dict[str, Any]) -> list[Lookup]:
    """The tables that one call looks up."""
    batch, width = float(d("B")[row]), float(d("D")[row])
    count = int(max(d("T", 1.0)[row], 1.0))
    listed = attributes.get("rows") or []
    heights = (
        [float(e) for e in listed] if len(listed) == count else [float(d("E", 1e6)[row])] * count
    )
    fallback = attributes.get("lookups", 1.0)
    lookups = (
        fallback if isinstance(fallback, list) else [float(d("L", float(fallback))[row])] * count
    )
    if len(lookups) != count:
        lookups = [float(np.mean(lookups))] * count
    distinct = attributes.get("distinct")
    return [
        Lookup(
            batch,
            height,
            float(n),
            width,
            str(attributes.get("distribution") or "uniform"),
            float(distinct[i]) if isinstance(distinct, list) and i < len(distinct) else None,
        )
        for i, (height, n) in enumerate(zip(heights, lookups, strict=True))
    ]


def attributes_of(d: Dims) -> list[dict[str, Any]]:
    """Parse the `attributes` column; a row without JSON, or with damaged JSON, gives an empty dict."""
    parsed: dict[str, dict[str, Any]] = {}
    for text in set(d.text("attributes", "{}")):
        try:
            value = json.loads(text)
        except (ValueError, TypeError):
            value = {}
        parsed[text] = value if isinstance(value, dict) else {}
    return [parsed[text] for text in d.text("attributes", "{}")]


@dataclass(frozen=True)
class EmbeddingTraffic:
    """Traffic of calls in sectors, each array of shape (rows,).

    `fixed` is bytes that always come from DRAM; `weights` is bytes of row reads.
    """

    fixed: Array
    weights: Array
    hits: Array  # share of the weights that L2 serves
    width: Array
    longest: Array  # most lookups of a sample in one table (mean over samples)


def forward_traffic(d: Dims, gpu: GpuSpec | None) -> EmbeddingTraffic:
    """Traffic of a forward lookup; without a GPU, no L2 hits are counted (the plain model)."""
    size = d.element_bytes()
    fixed, weights, hits, longest = (np.zeros(d.rows) for _ in range(4))
    memo: dict[tuple[Any, ...], tuple[float, float, float, float]] = {}
    keys = list(
        zip(
            *(d(name, -1.0) for name in ("B", "D", "T", "L", "E")),
            d.text("attributes"),
            size,
            strict=True,
        )
    )
    for row, (key, attributes) in enumerate(zip(keys, attributes_of(d), strict=True)):
        if key not in memo:
            memo[key] = _call_traffic(
                tables_of(d, row, attributes), attributes, float(size[row]), gpu
            )
        fixed[row], weights[row], hits[row], longest[row] = memo[key]
    return EmbeddingTraffic(fixed, weights, hits, d("D"), longest)


def _call_traffic(
    tables: list[Lookup], attributes: dict[str, Any], element: float, gpu: GpuSpec | None
) -> tuple[float, float, float, float]:
    index_bytes = float(attributes.get("index_bytes", 8))
    batch, width = tables[0].batch, tables[0].width
    row_bytes = float(sectors(np.asarray(element * width)))
    counts = np.array([table.lookups for table in tables])
    index_sectors = sectors(index_bytes * counts)
    fixed = float(batch * (32.0 + 64.0 + index_sectors + row_bytes).sum())
    weights = float(batch * row_bytes * counts.sum())
    if gpu is None or weights <= 0:
        return fixed, weights, 0.0, float(counts.max())
    at_once = min(len(tables), int(np.ceil(gpu.sms * RESIDENT_WARPS_PER_SM / max(batch, 1.0))))
    cached = CACHEABLE_SHARE * gpu.l2_bytes / (max(at_once, 1) * element * width)
    hits = sum(
        count * table.hit_rate(cached) * table.accesses for table, count in Counter(tables).items()
    )
    return (
        fixed,
        weights,
        hits / max(sum(table.accesses for table in tables), 1.0),
        float(counts.max()),
    )


def distinct_weight_bytes(d: Dims) -> Array:
    """Bytes of the distinct rows that each call reads, in sectors; a fused or sparse update rewrites these rows."""
    size = d.element_bytes()
    total = np.zeros(d.rows)
    for row, attributes in enumerate(attributes_of(d)):
        tables = tables_of(d, row, attributes)
        row_bytes = float(sectors(np.asarray(size[row] * tables[0].width)))
        total[row] = row_bytes * sum(
            count * table.distinct_rows() for table, count in Counter(tables).items()
        )
    return total


def small_width_factor(width: Array) -> Array:
    """Slowdown factor of narrow rows (`SMALL_WIDTH_FACTORS`), shape (rows,)."""
    factor = np.ones_like(width)
    for limit, value in reversed(SMALL_WIDTH_FACTORS):
        factor = np.where(width <= limit, value, factor)
    return factor


def embedding_forward(d: Dims) -> Work:
    """Traffic without L2 hits: all sectors of rows, indices, offsets and outputs come from DRAM."""
    traffic = forward_traffic(d, None)
    written = np.maximum(d("T", 1.0), 1.0) * d("B") * sectors(d.element_bytes() * d("D"))
    read = traffic.fixed + traffic.weights - written
    flops = traffic.weights / np.maximum(d.element_bytes(), 1.0)
    return Work(flops, np.maximum(read, 0.0), written)


def embedding_backward(d: Dims) -> Work:
    """Traffic of a backward pass without L2 hits; `lookup_us` adds the effect of L2.

    The traffic depends on the op:

    - `fused_sgd` reads and writes each looked-up row, and reads the output gradient once.
    - `sparse` writes one gradient row per lookup.
    - `dense` scatters into a gradient of the whole table. A separate memset call clears that gradient.
    """
    traffic = forward_traffic(d, None)
    gradient = np.maximum(d("T", 1.0), 1.0) * d("B") * sectors(d.element_bytes() * d("D"))
    reads_rows = ~d.op_in(("sparse",))
    indices = np.maximum(traffic.fixed - gradient, 0.0)
    read = gradient + indices + np.where(reads_rows, traffic.weights, 0.0)
    return Work(2.0 * traffic.weights / np.maximum(d.element_bytes(), 1.0), read, traffic.weights)


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
    narrow = small_width_factor(traffic.width)

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
    counts = np.zeros((6, d.rows))
    memo: dict[tuple[Any, ...], tuple[float, ...]] = {}
    keys = zip(
        *(d(name, -1.0) for name in ("B", "D", "T", "L", "E")), d.text("attributes"), strict=True
    )
    for row, (key, attributes) in enumerate(zip(keys, attributes_of(d), strict=True)):
        if key not in memo:
            memo[key] = _repeats_of(tables_of(d, row, attributes), gpu)
        counts[:, row] = memo[key]
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
