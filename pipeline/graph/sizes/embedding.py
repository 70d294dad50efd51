"""Sizes of embedding lookups and their gradients, dense and sparse, for FBGEMM's fused operator and for PyTorch's.

Dims: B samples, T tables of E rows and width D, L lookups per sample and table. If tables differ, E and L are means
(rounded) and `attributes` contains the lists. Bytes are those of a model without a cache: every row is read from DRAM,
in sectors of 32 bytes (docs/kernels.md). Kernel models that include the L2 cache use the dims instead.

A node of a sparse gradient has two attributes: `sparse_rows` is the number of rows in the sparse tensor, and
`distinct_rows` is their number after coalescing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from pipeline.graph.sizes.movement import contiguous_copy, sort_works
from pipeline.graph.sizes.vocabulary import (
    NUMBER,
    Rule,
    Work,
    element_bytes,
    filled,
    on_device,
    over,
    read_by_host,
    size,
)
from pipeline.graph.table import Node, Tensor

SECTOR = 32
FEW_INDICES = 3072
"""Maximum number of indices for which embedding_dense_backward runs one kernel without sorting.

Source: ATen/native/cuda/Embedding.cu. A change to 6144 for newer GPUs was proposed, but is in no release.
"""

BAG_MODE, BAG_WEIGHTS, MEAN = 8, 10, 1
"""Positions of the mode and of the weights per sample among the arguments of _embedding_bag_backward; the mode `mean`."""

LONG_SEGMENT = 32
"""Number of uses of one row from which FBGEMM updates it by a block, not by a warp (`max_segment_length_per_warp`)."""


def sectors(bytes_: float) -> int:
    """Round bytes up to whole sectors of 32 bytes."""
    return math.ceil(bytes_ / SECTOR) * SECTOR


def _row_bytes(weight: Tensor) -> int:
    """Bytes of a row of a table, in sectors."""
    return sectors(weight.shape[-1] * element_bytes(weight))


@size("fused_forward")
def fused_forward(node: Node, rule: Rule) -> Work:
    """FBGEMM's lookup of all tables: weight (rows, D), indices, offsets; rows and lookups from the attributes."""
    return _lookup(_fused_tables(node, node.tensor(0)), node, "fused")


@size("bounds_check")
def bounds_check(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's check of indices and offsets; before it, the counter of warnings is set to zero."""
    count, read = node.tensor(0).numel, sum(t.bytes for t in node.tensors())
    return [filled(NUMBER), over((1, count), count, read, 0, "index", "bounds_check", "int64")]


@size("fused_backward")
def fused_backward(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's backward pass with the optimizer inside: 14 launches, as in the trace `v100x8_dlrm` (with Adagrad).

    Indices are converted to linear indices over all tables, sorted, and split into segments of one row. A warp updates
    a row with few uses, a block updates a row with many uses.
    """
    gradient, weight = node.tensor(0), node.tensor(1)
    tables = _fused_tables(node, weight)
    count = int(sum(tables.batch * lookups for lookups in tables.lookups))
    index = int(node.attributes.get("index_bytes", 8))
    indices, counts = count * index, count * 4
    line, one = (1, count), (1, 1)
    linear = over(line, 2 * count, indices, indices + counts, "index", "linearize_index", "int64")
    counter = filled(Tensor((1,), "int32"))
    zeros = [filled(Tensor((count,), "int32")), counter]
    runs = over(line, count, indices, indices + counts, "sort", "run_length_encode", "int64")
    scan = over(line, count, counts, counts, "sort", "scan", "int32")
    start = over(one, 0, 0, 128, "sort", "scan_init", "int32")
    find = over(line, count, counts, 4, "index", "find_long_segments", "int32")
    wide = replace(tables, width=tables.width * (1 + int(node.attributes.get("states", 0))))
    uses = [tables.batch * n / rows for n, rows in zip(tables.lookups, tables.heights, strict=True)]
    updates = [
        _update(wide.only([(use >= LONG_SEGMENT) == long for use in uses]), node, "fused_sgd")
        for long in (True, False)
    ]
    sorted_ = sort_works(count, _key_bits(sum(tables.heights)), index + 4.0)
    return [
        linear,
        *sorted_,
        *zeros,
        start,
        runs,
        counter,
        start,
        scan,
        counter,
        counter,
        find,
        *updates,
        *contiguous_copy(gradient),
    ]


@size("bag_forward")
def bag_forward(node: Node, rule: Rule) -> Work:
    """PyTorch's EmbeddingBag, one table: weight (E, D), indices, offsets."""
    result = node.result()
    bags = (
        result.shape[0] if result is not None and len(result.shape) == 2 else node.tensor(2).numel
    )
    return _lookup(_bags(node.tensor(0), node.tensor(1), bags), node, "bag")


@size("bag_backward")
def bag_backward(node: Node, rule: Rule) -> list[Work]:
    """EmbeddingBag's gradient: rows of the output's gradient are repeated (sparse) or summed (dense).

    Repeated rows are then divided by the size of their bag (mode `mean`), or multiplied by the weights of samples.

    Source: ATen/native/EmbeddingBag.cpp `_embedding_bag_sparse_backward`, ATen/native/cuda/EmbeddingBag.cu and
    EmbeddingBackwardKernel.cu.
    """
    gradient, indices = node.tensor(0), node.tensor(1)
    bags = gradient.shape[0]
    rows = next(
        (v for v in node.values if isinstance(v, int) and not isinstance(v, bool)), indices.numel
    )
    dim, count = gradient.shape[-1], indices.numel
    tables = _bags(Tensor((rows, dim), gradient.dtype), indices, bags)
    if _is_sparse(node):
        moved = float(count * dim * element_bytes(gradient))
        # gradient rows repeat within a bag and come from the cache
        read, said = gradient.bytes + 16.0 * count, tables.attributes(node)
        repeated = Work(tables.dims, 0.0, read, moved, gradient.dtype, op="sparse", attributes=said)
        numbers = len(node.inputs) > BAG_WEIGHTS and isinstance(node.inputs[BAG_WEIGHTS], Tensor)
        divided, scaled = (
            over((count, dim), count * dim, moved + more, moved, "elementwise", op, gradient.dtype)
            for op, more in (("div", 8 * count), ("mul", 4 * count))
        )
        return [repeated, *[divided] * (node.value(BAG_MODE) == MEAN), *[scaled] * numbers]
    return _dense_gradient(tables, count, node)


@size("lookup_rows")
def lookup_rows(node: Node, rule: Rule) -> Work:
    """aten::embedding: one row per index, by index_select."""
    weight, indices = node.tensor(0), node.tensor(1)
    return _lookup(Tables.like(weight, indices.numel, 1), node, "gather")


@size("rows_backward")
def rows_backward(node: Node, rule: Rule) -> list[Work]:
    """embedding_dense_backward(grad, indices, num_weights, ..).

    For few indices it fills zeros and runs one kernel, otherwise it sorts the indices (ATen/native/cuda/Embedding.cu).
    """
    gradient, indices = node.tensor(0), node.tensor(1)
    weight = Tensor((int(node.value(2, indices.numel)), gradient.shape[-1]), gradient.dtype)
    tables = Tables.like(weight, indices.numel, 1)
    if indices.numel <= FEW_INDICES:
        update = _update(tables, node, "dense")
        return [filled(weight), replace(update, attributes={**update.attributes, "sorted": False})]
    return _dense_gradient(tables, indices.numel, node)


@size("bag_weights_backward")
def bag_weights_backward(node: Node, rule: Rule) -> Work:
    """The gradient of EmbeddingBag's weights per sample.

    For every lookup it is the product of a row of the output's gradient and a row of the table
    (ATen/native/cuda/EmbeddingBag.cu).
    """
    return _looked_up(node.tensor(0), node.tensor(2).numel, reads=2, writes=False)


@size("renormed_rows")
def renormed_rows(node: Node, rule: Rule) -> Work:
    """embedding_renorm_: reads the looked-up rows and writes those with a too large norm.

    Source: ATen/native/cuda/Embedding.cu.
    """
    return _looked_up(node.tensor(0), node.tensor(1).numel, reads=1, writes=True)


def _looked_up(like: Tensor, count: int, reads: int, writes: bool) -> Work:
    width = like.shape[-1]
    row = width * element_bytes(like)
    read = float(reads * count * row + 8 * count)
    written = float(count * row if writes else count * element_bytes(like))
    return over((count, width), 2 * count * width, read, written, dtype=like.dtype)


@dataclass(frozen=True)
class Tables:
    """What a call looks up: heights of tables and lookups of a sample in each; all have one width and dtype."""

    batch: int
    heights: list[int]
    lookups: list[float]
    width: int
    dtype: str

    @classmethod
    def like(cls, weight: Tensor, batch: int, lookups: float) -> Tables:
        """One table, of the weight's size."""
        return cls(batch, [weight.shape[0]], [lookups], weight.shape[-1], weight.dtype)

    def only(self, kept: list[bool]) -> Tables:
        """Some of the tables."""
        heights, lookups = compress(self.heights, kept), compress(self.lookups, kept)
        return replace(self, heights=[*heights], lookups=[*lookups])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, in sectors."""
        return _row_bytes(Tensor((self.width,), self.dtype))

    @property
    def dims(self) -> dict[str, int]:
        """Dims of the call; heights and lookups are means."""
        count = max(1, len(self.heights))
        height, lookups = (round(sum(each) / count) for each in (self.heights, self.lookups))
        tables = len(self.heights)
        return {"B": self.batch, "T": tables, "E": height, "L": max(1, lookups), "D": self.width}

    def attributes(self, node: Node) -> dict[str, Any]:
        """Both lists, and how indices are distributed and stored."""
        return {
            "rows": self.heights,
            "lookups": self.lookups,
            "distribution": node.attributes.get("distribution", "uniform"),
            "index_bytes": node.attributes.get("index_bytes", 8),
        }


def _fused_tables(node: Node, weight: Tensor) -> Tables:
    heights, lookups = ([*node.attributes[key]] for key in ("rows", "lookups"))
    offsets = next(t for t in reversed(on_device(node.tensors())) if len(t.shape) == 1)
    batch = offsets.numel // len(heights)
    return Tables(batch, heights, lookups, weight.shape[-1], weight.dtype)


def _bags(weight: Tensor, indices: Tensor, bags: int) -> Tables:
    """A lookup in bags; the number of lookups is the mean length of a bag.

    The mean is used because bags may differ in length, and because offsets may also contain the end of the last bag.
    """
    batch = max(1, bags)
    mean = indices.numel / batch
    return Tables.like(weight, batch, int(mean) if mean.is_integer() else mean)


def _lookup(tables: Tables, node: Node, op: str) -> Work:
    row, said = tables.row_bytes, tables.attributes(node)
    index = int(said["index_bytes"])
    per_output = [sectors(index * n) + n * row + 3 * SECTOR for n in tables.lookups]
    read = float(tables.batch * sum(per_output))
    adds = float(tables.batch * sum(tables.lookups) * tables.width)
    written = tables.batch * len(tables.heights) * row
    return Work(tables.dims, adds, read, written, tables.dtype, op=op, attributes=said)


def _update(tables: Tables, node: Node, op: str) -> Work:
    """Update of rows: rows are read and written.

    The output's gradient is read once per sample and table, because it is cached between lookups.
    """
    if not tables.heights:  # the kernel is launched, but has no work
        return over((1, 1), 0, SECTOR, 0, "index", f"{op}_empty", tables.dtype)
    row, batch = tables.row_bytes, tables.batch
    uses = float(batch * sum(tables.lookups))
    pairs = zip(tables.heights, tables.lookups, strict=True)
    rewritten = sum(distinct_rows(rows, batch * n) for rows, n in pairs) * row
    read = float(batch * len(tables.heights) * row) + rewritten + uses * 12.0
    work = Work(tables.dims, uses * tables.width, read, rewritten, tables.dtype)
    said = tables.attributes(node)
    return replace(work, family="embedding_backward", op=op, attributes=said)


def distinct_rows(rows: int, uses: float) -> float:
    """Expected number of distinct rows among `uses` uniform draws."""
    return rows * -math.expm1(uses * math.log1p(-1.0 / rows)) if rows > 1 else 1.0


def _dense_gradient(tables: Tables, count: int, node: Node) -> list[Work]:
    """Dense gradient of one table: fill zeros, sort indices, find segments of one row each, and sum each segment."""
    weight = Tensor((tables.heights[0], tables.width), tables.dtype)
    small = over(
        (1, count), count, 8 * count, 8 * count, "elementwise", "index_arithmetic", "int64"
    )
    step = over((1, count), count, 8 * count, 8 * count, "sort", "segments", "int64")
    offsets = {"B": count, "H": weight.shape[-1], "inputs": 0, "outputs": 0}
    partial = Work(offsets, 0, 12 * count, 4 * count, weight.dtype, "index", "segment_offsets")
    sorted_ = sort_works(count, _key_bits(weight.shape[0]), 16.0)
    return [
        small,
        *sorted_,
        filled(weight),
        step,
        step,
        partial,
        _update(tables, node, "dense"),
        partial,
    ]


def _key_bits(rows: int) -> int:
    """Bits of the index of a row, by which indices are sorted."""
    return max(1, math.ceil(math.log2(rows + 1)))


def _is_sparse(node: Node) -> bool:
    """The `sparse` flag of _embedding_bag_backward, an argument after scale_grad_by_freq and mode."""
    flags = [value for value in node.values if isinstance(value, bool)]
    return len(flags) > 1 and flags[1]


@size("sparse_add")
def sparse_add(node: Node, rule: Rule) -> list[Work]:
    """param.add_(sparse gradient, alpha): values are scaled unless coalesced, then added row by row.

    Source: ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    dim, row = weight.shape[-1], _row_bytes(weight)
    joined = "distinct_rows" in node.attributes
    moved = count * row
    updated = moved if joined else distinct_rows(weight.shape[0], count) * row
    dims = {"B": count, "H": dim, "inputs": int(moved + updated), "outputs": int(updated)}
    read = moved + updated + 8.0 * count
    add = Work(dims, count * dim, read, updated, weight.dtype, "index", "index_add")
    scaled = over((count, dim), count * dim, moved, moved, "elementwise", "mulu", weight.dtype)
    return [add] if joined else [scaled, add]


@size("sparse_join")
def sparse_join(node: Node, rule: Rule) -> list[Work]:
    """The sum of two sparse gradients: their indices and values are concatenated.

    Source: `add_out_sparse_cuda` in ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    parts = (Tensor((count, 1), "int64"), Tensor((count, weight.shape[-1]), weight.dtype))
    return [
        Work(
            {"bytes": t.bytes, "tensors": 2, "B": count, "H": t.shape[1]},
            0.0,
            t.bytes,
            t.bytes,
            t.dtype,
        )
        for t in parts
    ]


@size("coalesce")
def coalesce(node: Node, rule: Rule) -> list[Work]:
    """coalesce(): indices are numbered and sorted, equal indices form a segment, and the rows of a segment are summed.

    The host waits for the number of segments. Source: ATen/native/sparse/cuda/SparseCUDATensor.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    used, row = int(node.attributes["distinct_rows"]), _row_bytes(weight)
    line = {"B": 1, "H": count, "inputs": 16 * count, "outputs": 8 * count}
    number = over((1, count), count, 0, 8 * count, "elementwise", "arange", "int64")
    runs = Work(line, count, 16.0 * count, 16.0 * count, "int64", "sort", "unique")
    read, written = float(count * row + 16 * count), used * row
    rows = Tensor((count, weight.shape[-1]), weight.dtype)
    summed = over(rows, rows.numel, read, written, "index", "coalesce")
    return [
        number,
        number,
        *sort_works(count, _key_bits(weight.shape[0]), 16.0),
        runs,
        read_by_host(NUMBER),
        summed,
    ]


@size("sparse_mask")
def sparse_mask(node: Node, rule: Rule) -> Work:
    """dense.sparse_mask(sparse): picks the rows of the dense tensor at the indices of the sparse tensor."""
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    moved, rows = float(count * _row_bytes(weight)), (count, weight.shape[-1])
    return over(rows, 0.0, moved + 8.0 * count, moved, "index", "index_select", weight.dtype)
