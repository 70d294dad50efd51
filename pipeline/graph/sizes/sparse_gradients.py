"""Sizes for sparse gradients: coalescing repeated rows, adding rows to a dense tensor, picking rows of a dense tensor.

A node has two attributes: `sparse_rows` is the number of rows in the sparse tensor, and `distinct_rows` is their number
after coalescing.
"""

from __future__ import annotations

import math

from pipeline.graph.sizes.embedding import distinct_rows, sectors
from pipeline.graph.sizes.movement import sort_works
from pipeline.graph.sizes.vocabulary import NUMBER, Rule, Work, read_by_host, size
from pipeline.graph.table import DTYPE_BYTES, Node


@size("sparse_add")
def sparse_add(node: Node, rule: Rule) -> list[Work]:
    """param.add_(sparse gradient, alpha): values are scaled unless coalesced, then added row by row.

    Source: ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    dim, row = weight.shape[-1], sectors(weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4))
    joined = "distinct_rows" in node.attributes
    moved = float(count * row)
    places = moved if joined else distinct_rows(weight.shape[0], count) * row
    scale = {"B": count, "H": dim, "inputs": int(moved), "outputs": int(moved)}
    dims = {"B": count, "H": dim, "inputs": int(moved + places), "outputs": int(places)}
    add = Work(dims, float(count * dim), moved + places + 8.0 * count, places, weight.dtype, "index", "index_add")
    scaled = Work(scale, float(count * dim), moved, moved, weight.dtype, "elementwise", "mulu")
    return [add] if joined else [scaled, add]


@size("sparse_join")
def sparse_join(node: Node, rule: Rule) -> list[Work]:
    """The sum of two sparse gradients: their indices and values are concatenated.

    Source: `add_out_sparse_cuda` in ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    parts = ((8, 1), (weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4), weight.shape[-1]))
    sizes = [(float(count * size_), width) for size_, width in parts]
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
    line = {"B": 1, "H": count, "inputs": 0, "outputs": 8 * count}
    number = Work(line, float(count), 0.0, 8.0 * count, "int64", "elementwise", "arange")
    runs = Work({**line, "inputs": 16 * count}, float(count), 16.0 * count, 16.0 * count, "int64", "sort", "unique")
    read, written = float(count * row + 16 * count), float(used * row)
    dims = {"B": count, "H": dim, "inputs": int(read), "outputs": int(written)}
    summed = Work(dims, float(count * dim), read, written, weight.dtype, "index", "coalesce")
    key_bits = max(1, math.ceil(math.log2(weight.shape[0] + 1)))
    return [number, number, *sort_works(count, key_bits, 16.0), runs, read_by_host(NUMBER), summed]


@size("sparse_mask")
def sparse_mask(node: Node, rule: Rule) -> Work:
    """dense.sparse_mask(sparse): picks the rows of the dense tensor at the indices of the sparse tensor."""
    weight, count = node.tensor(0), int(node.attributes["sparse_rows"])
    moved = float(count * sectors(weight.shape[-1] * DTYPE_BYTES.get(weight.dtype, 4)))
    dims = {"B": count, "H": weight.shape[-1], "inputs": int(moved + 8 * count), "outputs": int(moved)}
    return Work(dims, 0.0, moved + 8.0 * count, moved, weight.dtype, "index", "index_select")
