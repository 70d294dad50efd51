"""Memory traffic of embedding lookups and their backward passes, in sectors, and the share of it that L2 serves.

The formulas are those of Lin et al. (plain and enhanced embedding lookup models), generalised to index distributions. A
call has B samples and T tables of E rows and width D, with L lookups per sample and table. One call may cover several
tables of different heights. Its `attributes` can have:

- `rows`: E of each table.
- `lookups`: mean L of each table.
- `distribution`: `uniform`, `zipf:ALPHA`, or `recorded` with `distinct` (distinct rows of each table).
- `index_bytes`: 4 or 8.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import Array, Dims, Work, sectors

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
        return float(-self.rows * np.expm1(self.accesses * np.log1p(-1.0 / max(self.rows, 1.0 + 1e-9))))

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
    edges = np.unique(np.floor(np.geomspace(HARMONIC_TERMS + 1, rows + 1, 400))) if rows > HARMONIC_TERMS else head[:0]
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
    heights = [float(e) for e in listed] if len(listed) == count else [float(d("E", 1e6)[row])] * count
    fallback = attributes.get("lookups", 1.0)
    lookups = fallback if isinstance(fallback, list) else [float(d("L", float(fallback))[row])] * count
    if len(lookups) != count:
        lookups = [float(np.mean(lookups))] * count
    distinct = attributes.get("distinct")
    return [
        Lookup(batch, height, float(n), width, str(attributes.get("distribution") or "uniform"),
               float(distinct[i]) if isinstance(distinct, list) and i < len(distinct) else None)
        for i, (height, n) in enumerate(zip(heights, lookups, strict=True))
    ]  # fmt: skip


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
    keys = list(zip(*(d(name, -1.0) for name in ("B", "D", "T", "L", "E")), d.text("attributes"), size, strict=True))
    for row, (key, attributes) in enumerate(zip(keys, attributes_of(d), strict=True)):
        if key not in memo:
            memo[key] = _call_traffic(tables_of(d, row, attributes), attributes, float(size[row]), gpu)
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
    hits = sum(count * table.hit_rate(cached) * table.accesses for table, count in Counter(tables).items())
    return fixed, weights, hits / max(sum(table.accesses for table in tables), 1.0), float(counts.max())


def distinct_weight_bytes(d: Dims) -> Array:
    """Bytes of the distinct rows that each call reads, in sectors; a fused or sparse update rewrites these rows."""
    size = d.element_bytes()
    found = np.zeros(d.rows)
    for row, attributes in enumerate(attributes_of(d)):
        tables = tables_of(d, row, attributes)
        row_bytes = float(sectors(np.asarray(size[row] * tables[0].width)))
        found[row] = row_bytes * sum(count * table.distinct_rows() for table, count in Counter(tables).items())
    return found


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
    """Traffic of a backward pass without L2 hits; `lookup_time.lookup_us` adds the effect of L2.

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
