"""Sizes of embedding lookups and their gradients, for FBGEMM's fused operator and for PyTorch's operators.

Dims: B samples, T tables of E rows and width D, L lookups per sample and table. If tables differ, E and L are means
(rounded) and `attributes` contains the lists. Bytes are those of a model without a cache: every row is read from DRAM,
in sectors of 32 bytes (docs/kernels.md). Kernel models that include the L2 cache use the dims instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.graph.sizes.movement import contiguous_copy, sort_works
from pipeline.graph.sizes.vocabulary import NUMBER, Rule, Work, filled, on_device, size
from pipeline.graph.table import DTYPE_BYTES, Node, Tensor

SECTOR = 32
FEW_INDICES = 3072
"""Maximum number of indices for which embedding_dense_backward runs one kernel without sorting.

Source: ATen/native/cuda/Embedding.cu. A change to 6144 for newer GPUs was proposed, but is in no release.
"""

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
    indices = node.tensor(0)
    read = float(sum(t.bytes for t in node.tensors()))
    dims = {"B": 1, "H": indices.numel, "inputs": int(read), "outputs": 0}
    return [
        filled(NUMBER),
        Work(dims, float(indices.numel), read, 0.0, "int64", "index", "bounds_check"),
    ]


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
    key_bits = max(1, math.ceil(math.log2(sum(shape["rows"]) + 1)))
    line = {"B": 1, "H": count}
    sizes = (count * index * 1.0, count * 4.0)
    linear = Work({**line, "inputs": int(sizes[0]), "outputs": int(sum(sizes))}, 2.0 * count, sizes[0], sum(sizes),
                  "int64", "index", "linearize_index")  # fmt: skip
    counter = filled(Tensor((1,), "int32"))
    zeros = [filled(Tensor((count,), "int32")), counter]
    runs = Work({**line, "inputs": int(sizes[0]), "outputs": int(sum(sizes))}, float(count), sizes[0], sum(sizes),
                "int64", "sort", "run_length_encode")  # fmt: skip
    scan = Work({**line, "inputs": int(sizes[1]), "outputs": int(sizes[1])}, float(count), sizes[1], sizes[1], "int32",
                "sort", "scan")  # fmt: skip
    start = Work({"B": 1, "H": 1, "inputs": 0, "outputs": 128}, 0.0, 0.0, 128.0, "int32", "sort", "scan_init")
    find = Work({**line, "inputs": int(sizes[1]), "outputs": 4}, float(count), sizes[1], 4.0, "int32", "index",
                "find_long_segments")  # fmt: skip
    tables = range(shape["T"])
    long = [t for t in tables if shape["B"] * shape["lookups"][t] / shape["rows"][t] >= LONG_SEGMENT]
    short = [t for t in tables if t not in long]
    wide = {**shape, "D": shape["D"] * (1 + int(node.attributes.get("states", 0)))}
    updates = [_update(wide, long, node, "fused_sgd"), _update(wide, short, node, "fused_sgd")]
    return [linear, *sort_works(count, key_bits, index + 4.0), *zeros, start, runs, counter, start, scan,
            counter, counter, find, *updates, *contiguous_copy(gradient)]  # fmt: skip


@size("bag_forward")
def bag_forward(node: Node, rule: Rule) -> Work:
    """PyTorch's EmbeddingBag, one table: weight (E, D), indices, offsets."""
    result = node.result()
    bags = result.shape[0] if result is not None and len(result.shape) == 2 else node.tensor(2).numel
    return _lookup(_bag_shape(node.tensor(0), node.tensor(1), bags), [0], node, "bag")


@size("bag_backward")
def bag_backward(node: Node, rule: Rule) -> list[Work]:
    """EmbeddingBag's gradient: rows of the output's gradient are repeated (sparse) or summed (dense).

    Source: ATen/native/EmbeddingBag.cpp `_embedding_bag_sparse_backward`, ATen/native/cuda/EmbeddingBag.cu and
    EmbeddingBackwardKernel.cu.
    """
    gradient, indices = node.tensor(0), node.tensor(1)
    bags = gradient.shape[0]
    rows = next((v for v in node.values if isinstance(v, int) and not isinstance(v, bool)), indices.numel)
    dim, count = gradient.shape[-1], indices.numel
    if _is_sparse(node):
        moved = float(count * dim * DTYPE_BYTES.get(gradient.dtype, 4))
        shape = _bag_shape(Tensor((rows, dim), gradient.dtype), indices, bags)
        dims, lists = _dims(shape, [0])
        read = float(gradient.bytes) + 16.0 * count  # gradient rows repeat within a bag and come from the cache
        return [Work(dims, 0.0, read, moved, gradient.dtype, op="sparse", attributes=_describe(node, lists))]
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
    dims = {"B": count, "H": width, "inputs": int(read), "outputs": int(written)}
    return Work(dims, 2.0 * count * width, read, written, like.dtype)


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


def _shape(batch: int, rows: Sequence[int], lookups: Sequence[float], weight: Tensor) -> dict[str, Any]:
    """Number of samples, and rows and lookups of each table; the width and dtype of tables are those of the weight."""
    return {"B": batch, "T": len(rows), "rows": rows, "lookups": lookups, "D": weight.shape[-1],
            "element": DTYPE_BYTES.get(weight.dtype, 4), "dtype": weight.dtype}  # fmt: skip


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
    return {**lists, "distribution": node.attributes.get("distribution", "uniform"),
            "index_bytes": node.attributes.get("index_bytes", 8)}  # fmt: skip


def _lookup(shape: dict[str, Any], tables: Sequence[int], node: Node, op: str) -> Work:
    dims, lists = _dims(shape, tables)
    row, index = sectors(shape["element"] * shape["D"]), int(node.attributes.get("index_bytes", 8))
    per_output = [sectors(index * n) + n * row + 2 * SECTOR + SECTOR for n in lists["lookups"]]
    read = float(shape["B"] * sum(per_output))
    adds = float(shape["B"] * sum(lists["lookups"]) * shape["D"])
    return Work(
        dims,
        adds,
        read,
        float(shape["B"] * len(tables) * row),
        shape["dtype"],
        op=op,
        attributes=_describe(node, lists),
    )


def _update(shape: dict[str, Any], tables: Sequence[int], node: Node, op: str) -> Work:
    """Update of rows: rows are read and written.

    The output's gradient is read once per sample and table, because it is cached between lookups.
    """
    dims, lists = _dims(shape, tables)
    row = sectors(shape["element"] * shape["D"])
    uses = float(shape["B"] * sum(lists["lookups"]))
    distinct = sum(distinct_rows(rows, shape["B"] * n) for rows, n in zip(lists["rows"], lists["lookups"], strict=True))
    if not tables:  # the kernel is launched, but has no work
        empty = {"B": 1, "H": 1, "inputs": SECTOR, "outputs": 0}
        return Work(empty, 0.0, float(SECTOR), 0.0, shape["dtype"], "index", f"{op}_empty")
    gradient = float(shape["B"] * len(tables) * row)
    return Work(dims, uses * shape["D"], gradient + distinct * row + uses * 12.0, distinct * row, shape["dtype"],
                "embedding_backward", op, attributes=_describe(node, lists))  # fmt: skip


def distinct_rows(rows: int, uses: int) -> float:
    """Expected number of distinct rows among `uses` uniform draws."""
    return rows * -math.expm1(uses * math.log1p(-1.0 / rows)) if rows > 1 else 1.0


def _dense_gradient(shape: dict[str, Any], weight: Tensor, count: int, node: Node, op: str) -> list[Work]:
    """Dense gradient: fill zeros, sort indices, find segments of one row each, and sum each segment."""
    line = {"B": 1, "H": count, "inputs": 8 * count, "outputs": 8 * count}
    small = Work(line, float(count), 8.0 * count, 8.0 * count, "int64", "elementwise", "index_arithmetic")
    step = Work(line, float(count), 8.0 * count, 8.0 * count, "int64", "sort", "segments")
    key_bits = max(1, math.ceil(math.log2(weight.shape[0] + 1)))
    partial = Work({"B": count, "H": weight.shape[-1], "inputs": 0, "outputs": 0}, 0.0, float(12 * count),
                   float(4 * count), weight.dtype, "index", "segment_offsets")  # fmt: skip
    return [small, *sort_works(count, key_bits, 16.0), filled(weight), step, step, partial,
            _update(shape, [0], node, op), partial]  # fmt: skip


def _is_sparse(node: Node) -> bool:
    """The `sparse` flag of _embedding_bag_backward, an argument after scale_grad_by_freq and mode."""
    flags = [v for v in node.values if isinstance(v, bool)]
    return len(flags) > 1 and flags[1]
