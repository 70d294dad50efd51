"""Sizes of embedding lookups and their gradients, dense and sparse, for FBGEMM's fused operator and for PyTorch's.

Dims: B samples, T tables of E rows and width D, L lookups per sample and table. If tables differ, E and L are means
(rounded) and `attributes` contains the lists. Bytes are those of a model without a cache: every row is read from DRAM,
in sectors of 32 bytes (docs/kernels.md). Kernel models that include the L2 cache use the dims instead.

A node of a sparse gradient has two attributes: `sparse_rows` is the number of rows in the sparse tensor, and
`distinct_rows` is their number after coalescing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.graph.sizes.movement import contiguous_copy, sort_works
from pipeline.graph.sizes.vocabulary import (
    NUMBER,
    Rule,
    Work,
    filled,
    on_device,
    over,
    read_by_host,
    size,
)
from pipeline.graph.table import DTYPE_BYTES, Node, Tensor

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


@size("fused_forward")
def fused_forward(node: Node, rule: Rule) -> Work:
    """FBGEMM's lookup of all tables: weight (rows, D), indices, offsets; rows and lookups from the attributes."""
    shape = _fused_shape(node, node.tensor(0))
    return _lookup(shape, list(range(shape["T"])), node, "fused")


@size("bounds_check")
def bounds_check(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's check of indices and offsets; before it, the counter of warnings is set to zero."""
    count, read = node.tensor(0).numel, sum(t.bytes for t in node.tensors())
    return [filled(NUMBER), over((1, count), count, read, 0, "int64", "index", "bounds_check")]


@size("fused_backward")
def fused_backward(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's backward pass with the optimizer inside: 14 launches, as in the trace `v100x8_dlrm` (with Adagrad).

    Indices are converted to linear indices over all tables, sorted, and split into segments of one row. A warp updates
    a row with few uses, a block updates a row with many uses.
    """
    gradient, weight = node.tensor(0), node.tensor(1)
    shape = _fused_shape(node, weight)
    count = int(sum(shape["B"] * lookups for lookups in shape["lookups"]))
    index = int(node.attributes.get("index_bytes", 8))
    indices, counts = count * index, count * 4
    line, one = (1, count), (1, 1)
    linear = over(line, 2 * count, indices, indices + counts, "int64", "index", "linearize_index")
    counter = filled(Tensor((1,), "int32"))
    zeros = [filled(Tensor((count,), "int32")), counter]
    runs = over(line, count, indices, indices + counts, "int64", "sort", "run_length_encode")
    scan = over(line, count, counts, counts, "int32", "sort", "scan")
    start = over(one, 0, 0, 128, "int32", "sort", "scan_init")
    find = over(line, count, counts, 4, "int32", "index", "find_long_segments")
    tables = range(shape["T"])
    long = [
        t for t in tables if shape["B"] * shape["lookups"][t] / shape["rows"][t] >= LONG_SEGMENT
    ]
    short = [t for t in tables if t not in long]
    wide = {**shape, "D": shape["D"] * (1 + int(node.attributes.get("states", 0)))}
    updates = [_update(wide, long, node, "fused_sgd"), _update(wide, short, node, "fused_sgd")]
    sorted_ = sort_works(count, _key_bits(sum(shape["rows"])), index + 4.0)
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
    return _lookup(_bag_shape(node.tensor(0), node.tensor(1), bags), [0], node, "bag")


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
    if _is_sparse(node):
        moved = float(count * dim * DTYPE_BYTES.get(gradient.dtype, 4))
        shape = _bag_shape(Tensor((rows, dim), gradient.dtype), indices, bags)
        dims, lists = _dims(shape, [0])
        read = (
            gradient.bytes + 16.0 * count
        )  # gradient rows repeat within a bag and come from the cache
        repeated = Work(
            dims, 0.0, read, moved, gradient.dtype, op="sparse", attributes=_describe(node, lists)
        )
        numbers = len(node.inputs) > BAG_WEIGHTS and isinstance(node.inputs[BAG_WEIGHTS], Tensor)
        scaled = over(
            (count, dim),
            count * dim,
            moved + 4 * count,
            moved,
            gradient.dtype,
            "elementwise",
            "mul",
        )
        mean = over(
            (count, dim),
            count * dim,
            moved + 8 * count,
            moved,
            gradient.dtype,
            "elementwise",
            "div",
        )
        return [repeated, *[mean] * (node.value(BAG_MODE) == MEAN), *[scaled] * numbers]
    weight = Tensor((rows, dim), gradient.dtype)
    return _dense_gradient(_bag_shape(weight, indices, bags), weight, count, node, "dense")


@size("lookup_rows")
def lookup_rows(node: Node, rule: Rule) -> Work:
    """aten::embedding: one row per index, by index_select."""
    weight, indices = node.tensor(0), node.tensor(1)
    shape = _shape(indices.numel, [weight.shape[0]], [1], weight)
    return _lookup(shape, [0], node, "gather")


@size("rows_backward")
def rows_backward(node: Node, rule: Rule) -> list[Work]:
    """embedding_dense_backward(grad, indices, num_weights, ..).

    For few indices it fills zeros and runs one kernel, otherwise it sorts the indices (ATen/native/cuda/Embedding.cu).
    """
    gradient, indices = node.tensor(0), node.tensor(1)
    weight = Tensor((int(node.value(2, indices.numel)), gradient.shape[-1]), gradient.dtype)
    shape = _shape(indices.numel, [weight.shape[0]], [1], weight)
    if indices.numel <= FEW_INDICES:
        update = _update(shape, [0], node, "dense")
        return [filled(weight), replace(update, attributes={**update.attributes, "sorted": False})]
    return _dense_gradient(shape, weight, indices.numel, node, "dense")


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
    row = width * DTYPE_BYTES.get(like.dtype, 4)
    read = float(reads * count * row + 8 * count)
    written = float(count * row if writes else count * DTYPE_BYTES.get(like.dtype, 4))
    return over((count, width), 2 * count * width, read, written, like.dtype)


def _fused_shape(node: Node, weight: Tensor) -> dict[str, Any]:
    rows, lookups = node.attributes["rows"], node.attributes["lookups"]
    offsets = next(t for t in reversed(on_device(node.tensors())) if len(t.shape) == 1)
    return _shape(offsets.numel // len(rows), rows, lookups, weight)


def _bag_shape(weight: Tensor, indices: Tensor, bags: int) -> dict[str, Any]:
    """Shape of a lookup in bags; the number of lookups is the mean length of a bag.

    The mean is used because bags may differ in length, and because offsets may also contain the end of the last bag.
    """
    batch = max(1, bags)
    mean = indices.numel / batch
    return _shape(batch, [weight.shape[0]], [int(mean) if mean.is_integer() else mean], weight)


def _shape(
    batch: int, rows: Sequence[int], lookups: Sequence[float], weight: Tensor
) -> dict[str, Any]:
    """Number of samples, and rows and lookups of each table; the width and dtype of tables are those of the weight."""
    return {
        "B": batch,
        "T": len(rows),
        "rows": rows,
        "lookups": lookups,
        "D": weight.shape[-1],
        "element": DTYPE_BYTES.get(weight.dtype, 4),
        "dtype": weight.dtype,
    }


def _dims(shape: dict[str, Any], tables: Sequence[int]) -> tuple[dict[str, int], dict[str, Any]]:
    rows, lookups = [shape["rows"][t] for t in tables], [shape["lookups"][t] for t in tables]
    count = max(1, len(tables))
    dims = {
        "B": shape["B"],
        "T": len(tables),
        "E": round(sum(rows) / count),
        "L": max(1, round(sum(lookups) / count)),
        "D": shape["D"],
    }
    return dims, {"rows": rows, "lookups": lookups}


def _describe(node: Node, lists: dict[str, Any]) -> dict[str, Any]:
    return {
        **lists,
        "distribution": node.attributes.get("distribution", "uniform"),
        "index_bytes": node.attributes.get("index_bytes", 8),
    }


def _lookup(shape: dict[str, Any], tables: Sequence[int], node: Node, op: str) -> Work:
    dims, lists = _dims(shape, tables)
    row, index = sectors(shape["element"] * shape["D"]), int(node.attributes.get("index_bytes", 8))
    per_output = [sectors(index * n) + n * row + 2 * SECTOR + SECTOR for n in lists["lookups"]]
    read = float(shape["B"] * sum(per_output))
    adds = float(shape["B"] * sum(lists["lookups"]) * shape["D"])
    written = shape["B"] * len(tables) * row
    return Work(dims, adds, read, written, shape["dtype"], op=op, attributes=_describe(node, lists))


def _update(shape: dict[str, Any], tables: Sequence[int], node: Node, op: str) -> Work:
    """Update of rows: rows are read and written.

    The output's gradient is read once per sample and table, because it is cached between lookups.
    """
    dims, lists = _dims(shape, tables)
    row = sectors(shape["element"] * shape["D"])
    uses = float(shape["B"] * sum(lists["lookups"]))
    distinct = sum(
        distinct_rows(rows, shape["B"] * n)
        for rows, n in zip(lists["rows"], lists["lookups"], strict=True)
    )
    if not tables:  # the kernel is launched, but has no work
        return over((1, 1), 0, SECTOR, 0, shape["dtype"], "index", f"{op}_empty")
    gradient = float(shape["B"] * len(tables) * row)
    return Work(
        dims,
        uses * shape["D"],
        gradient + distinct * row + uses * 12.0,
        distinct * row,
        shape["dtype"],
        "embedding_backward",
        op,
        attributes=_describe(node, lists),
    )


def distinct_rows(rows: int, uses: int) -> float:
    """Expected number of distinct rows among `uses` uniform draws."""
    return rows * -math.expm1(uses * math.log1p(-1.0 / rows)) if rows > 1 else 1.0


def _dense_gradient(
    shape: dict[str, Any], weight: Tensor, count: int, node: Node, op: str
) -> list[Work]:
    """Dense gradient: fill zeros, sort indices, find segments of one row each, and sum each segment."""
    small = over(
        (1, count), count, 8 * count, 8 * count, "int64", "elementwise", "index_arithmetic"
    )
    step = over((1, count), count, 8 * count, 8 * count, "int64", "sort", "segments")
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
        _update(shape, [0], node, op),
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
    dim, row = weight.shape[-1], sectors(weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4))
    joined = "distinct_rows" in node.attributes
    moved = count * row
    updated = moved if joined else distinct_rows(weight.shape[0], count) * row
    dims = {"B": count, "H": dim, "inputs": int(moved + updated), "outputs": int(updated)}
    add = Work(
        dims,
        count * dim,
        moved + updated + 8.0 * count,
        updated,
        weight.dtype,
        "index",
        "index_add",
    )
    return (
        [add]
        if joined
        else [
            over((count, dim), count * dim, moved, moved, weight.dtype, "elementwise", "mulu"),
            add,
        ]
    )


@size("sparse_join")
def sparse_join(node: Node, rule: Rule) -> list[Work]:
    """The sum of two sparse gradients: their indices and values are concatenated.

    Source: `add_out_sparse_cuda` in ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    parts = ((8, 1), (weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4), weight.shape[-1]))
    sizes = [(count * size_, width) for size_, width in parts]
    dtypes = ("int64", weight.dtype)
    return [
        Work({"bytes": int(moved), "tensors": 2, "B": count, "H": width}, 0.0, moved, moved, dtype)
        for (moved, width), dtype in zip(sizes, dtypes, strict=True)
    ]


@size("coalesce")
def coalesce(node: Node, rule: Rule) -> list[Work]:
    """coalesce(): indices are numbered and sorted, equal indices form a segment, and the rows of a segment are summed.

    The host waits for the number of segments. Source: ATen/native/sparse/cuda/SparseCUDATensor.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    used, dim = int(node.attributes["distinct_rows"]), weight.shape[-1]
    row = sectors(dim * DTYPE_BYTES.get(weight.dtype, 4))
    line = {"B": 1, "H": count, "inputs": 16 * count, "outputs": 8 * count}
    number = over((1, count), count, 0, 8 * count, "int64", "elementwise", "arange")
    runs = Work(line, count, 16.0 * count, 16.0 * count, "int64", "sort", "unique")
    read, written = float(count * row + 16 * count), used * row
    summed = over((count, dim), count * dim, read, written, weight.dtype, "index", "coalesce")
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
    moved = float(count * sectors(weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4)))
    dims = {
        "B": count,
        "H": weight.shape[-1],
        "inputs": int(moved + 8 * count),
        "outputs": int(moved),
    }
    return Work(dims, 0.0, moved + 8.0 * count, moved, weight.dtype, "index", "index_select")
