"""Embedding lookups and their gradients: traffic in sectors, and the share that L2 serves (times: `lookup_times.py`).

The formulas of traffic are those of Lin et al. (plain and enhanced embedding lookup models), generalised to index
distributions. A call has B samples and T tables of E rows and width D, with L lookups per sample and table. One call may
cover several tables of different heights. Its `attributes` can have:

- `rows`: E of each table.
- `lookups`: mean L of each table.
- `distribution`: `uniform`, `zipf:ALPHA`, a histogram (`pipeline.question.index_distributions`), one of them for each table, or
  `recorded` with `distinct` (distinct rows of each table).
- `index_bytes`: 4 or 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work, attributes_in, sectors
from pipeline.hardware.spec import GpuSpec
from pipeline.question.index_distributions import (
    BINS,
    UNIFORM,
    ZIPF,
    distinct_rows,
    popular_rows,
)

RESIDENT_WARPS_PER_SM = 45.0
"""Number of warps of FBGEMM's lookup kernel that run at once on one SM (Lin et al., from its register use)."""

CACHEABLE_SHARE = 0.9
"""Share of L2 that weight rows can occupy (Lin et al.)."""


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

    @property
    def skewed(self) -> bool:
        """Whether some rows are known to be looked up more often than others."""
        return self.distribution.startswith((ZIPF, BINS))

    def distinct_rows(self) -> float:
        """Expected number of different rows among the accesses."""
        if self.distinct is not None:
            return min(self.distinct, self.rows, self.accesses)
        return distinct_rows(self.rows, self.accesses, self.distribution)

    def hit_rate(self, cached_rows: float) -> float:
        """Share of row reads that L2 serves when it holds `cached_rows` of this table.

        Uniform indices use the formula of the paper. With a skewed distribution, the most popular rows stay cached. So
        every access to one of the `cached_rows` most popular rows hits, except the first.
        """
        n = max(self.accesses, 1.0)
        distinct = self.distinct_rows()
        cached = min(cached_rows, self.rows, n)
        if distinct <= cached:
            hits = 1.0 - distinct / n
        elif self.skewed:
            share, held = popular_rows(self.rows, n, self.distribution, cached)
            hits = share - held / n
        elif self.distinct is not None:
            # recorded indices: the recorded share of repeats, times the share of distinct rows that L2 can hold
            hits = (1.0 - distinct / n) * cached / distinct
        else:
            # the published formula counts no hits while L2 fills; without the bound of half of the accesses, a larger
            # cache would give a smaller hit rate
            filling = min(cached, n / 2.0)
            missed = filling + (n - filling) * (self.rows - filling) / self.rows
            hits = 1.0 - missed / n
        return min(max(hits, 0.0), 1.0)


def _tables(
    batch: float,
    width: float,
    count: int,
    height: float,
    each: float | None,
    attributes: Mapping[str, Any],
) -> list[Lookup]:
    """The tables that one call looks up; attributes that state each table come before the call's own sizes."""
    heights = attributes.get("rows") or []
    heights = heights if len(heights) == count else [height] * count
    lookups = attributes.get("lookups", 1.0)
    if not isinstance(lookups, list):
        lookups = [lookups if each is None else each] * count
    if len(lookups) != count:
        lookups = [float(np.mean(lookups))] * count
    stated = attributes.get("distribution") or UNIFORM
    distribution = stated if isinstance(stated, list) else [str(stated)] * count
    distinct = attributes.get("distinct")
    distinct = [float(n) for n in distinct] if isinstance(distinct, list) else []
    return [
        Lookup(batch, float(rows), float(n), width, kind, seen)
        for rows, n, kind, seen in zip_longest(heights, lookups, distribution, distinct[:count])
    ]


def of_each_call(
    d: Dims, count: int, values: Callable[[list[Lookup], Mapping[str, Any], float], Sequence[float]]
) -> Array:
    """`values` of the tables, the attributes and the bytes of an element of each call, shape (count, rows).

    Equal calls are computed once.
    """
    sizes = [d("B"), d("D"), np.maximum(d("T", 1.0), 1.0), d("E", 1e6), d("L", -1.0)]
    texts = d.text("attributes", "{}")
    keys = list(zip(*(size.tolist() for size in sizes), d.element_bytes(), texts, strict=True))
    found = {}
    for key in set(keys):
        batch, width, tables, height, each, element, text = key
        attributes = attributes_in(text)
        stated = each if each >= 0 else None
        looked_up = _tables(batch, width, int(tables), height, stated, attributes)
        found[key] = values(looked_up, attributes, float(element))
    rows: Array = np.array([found[key] for key in keys], float).reshape(-1, count)
    return rows.T


@dataclass(frozen=True)
class EmbeddingTraffic:
    """Traffic of calls in sectors, each array of shape (rows,).

    `fixed` is bytes that always come from DRAM; `weights` is bytes of row reads.
    """

    fixed: Array
    weights: Array
    hits: Array  # share of the weights that L2 serves
    longest: Array  # most lookups of a sample in one table (mean over samples)


def forward_traffic(d: Dims, gpu: GpuSpec | None) -> EmbeddingTraffic:
    """Traffic of a forward lookup; without a GPU, no L2 hits are counted (the plain model)."""
    fixed, weights, hits, longest = of_each_call(d, 4, partial(_call_traffic, gpu))
    return EmbeddingTraffic(fixed, weights, hits, longest)


def _call_traffic(
    gpu: GpuSpec | None, tables: list[Lookup], attributes: Mapping[str, Any], element: float
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

    def total(tables: list[Lookup], _: Mapping[str, Any], element: float) -> Sequence[float]:
        row_bytes = float(sectors(np.asarray(element * tables[0].width)))
        distinct = (n * table.distinct_rows() for table, n in Counter(tables).items())
        return (row_bytes * sum(distinct),)

    return np.asarray(of_each_call(d, 1, total)[0])


def embedding_forward(d: Dims) -> Work:
    """Traffic without L2 hits: all sectors of rows, indices, offsets and outputs come from DRAM."""
    traffic = forward_traffic(d, None)
    written = np.maximum(d("T", 1.0), 1.0) * d("B") * sectors(d.element_bytes() * d("D"))
    read = traffic.fixed + traffic.weights - written
    flops = traffic.weights / np.maximum(d.element_bytes(), 1.0)
    return Work(flops, np.maximum(read, 0.0), written)


def embedding_backward(d: Dims) -> Work:
    """Traffic of a backward pass without L2 hits; `lookup_times.lookup_us` adds the effect of L2.

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
