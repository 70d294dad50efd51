"""Sizes of kernels that move or arrange data: concatenation, gathers and scatters, sorting, DLRM's interaction."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.graph.sizes.vocabulary import (
    NUMBER,
    Rule,
    Work,
    copied,
    element_bytes,
    filled,
    main_dtype,
    on_device,
    over,
    plain_result,
    read_by_host,
    read_bytes,
    rows_width,
    scattered,
    size,
)
from pipeline.graph.table import Node, Tensor

CAT_BATCH = 128
"""Maximum number of tensors in one launch of CatArrayBatchedCopy (ATen/native/cuda/Shape.cu)."""

SINGLE_TILE_SORT = 4096
"""Maximum number of elements that CUB's radix sort handles in one kernel with one block (about 256 threads x 16)."""

RADIX_BITS = 8
"""Number of key bits that one pass of CUB's onesweep radix sort handles."""


@size("concat")
def concat(node: Node, rule: Rule) -> list[Work] | None:
    """cat: every element is read and written once; long lists need several launches."""
    if not node.tensors():
        raise LookupError(f"{node.name}: its shapes are unknown")
    parts = [t for t in on_device(node.tensors()) if t.numel]
    if not parts:
        return None
    result = node.result()
    if len(parts) == 1:
        return [copied(parts[0], "memcpy_d2d", "memcpy")]
    works = []
    for start in range(0, len(parts), CAT_BATCH):
        group = parts[start : start + CAT_BATCH]
        total = sum(t.bytes for t in group)
        dims = {"bytes": total, "tensors": len(group)}
        rows = _rows_joined(parts, result)
        if result is not None and start == 0:
            dims |= {"B": rows, "H": result.numel // rows}
        attributes = {
            "widths": [part.numel // rows for part in group[:16]],
            "strided": not all(t.contiguous for t in group),
            "scattered": any(
                scattered(t, Tensor(t.shape, t.dtype)) and 2 * t.bytes > total for t in group
            ),
        }
        works.append(Work(dims, 0, total, total, group[0].dtype, attributes=attributes))
    return works


@size("slice_backward")
def slice_backward(node: Node, rule: Rule) -> list[Work]:
    """slice_backward and select_backward: fill the whole tensor with zeros, then copy the part."""
    part = node.tensor(0)
    whole = node.result() or part
    if whole.numel == part.numel:
        copy = replace(_moved(part, "memcpy_d2d", "memcpy"), api="cudaMemcpyAsync")
    else:
        copy = replace(_moved(part, "copy", "transpose"), api="cudaLaunchKernel")
    return [filled(whole), copy]


def _moved(tensor: Tensor, family: str | None, op: str) -> Work:
    """A kernel that copies a tensor element by element."""
    size = tensor.bytes
    dims = {**rows_width(tensor), "bytes": size, "inputs": size, "outputs": size}
    return Work(dims, 0, size, size, tensor.dtype, family, op)


@size("gather")
def gather(node: Node, rule: Rule) -> Work | None:
    """Rows or elements picked by an index: reads the index and as many bytes as it writes."""
    result = plain_result(node)
    if not result.numel:
        return None
    indices = sum(t.bytes for t in on_device(node.tensors()) if t.dtype in ("int64", "int32"))
    read = float(result.bytes + indices)
    return over(result, 0, read, result.bytes, dtype=main_dtype(node))


@size("scatter")
def scatter(node: Node, rule: Rule) -> Work | None:
    """Elements written (or added) at the positions of an index: reads the values, reads and writes their targets."""
    values = max(on_device(node.tensors())[1:] or node.tensors(), key=lambda t: t.bytes)
    if not values.numel:
        return None
    read = read_bytes(t for t in node.tensors()[1:]) + values.bytes
    return over(values, values.numel, read, values.bytes, dtype=main_dtype(node))


@size("index")
def index(node: Node, rule: Rule) -> Work | None:
    """index with tensors of indices; the lower triangle of DLRM's interaction has its own family."""
    work = gather(node, rule)
    features = _triangle(node.tensor(0), node.results()[:1])
    if work is not None and features:
        work.dims = {"B": node.tensor(0).shape[0], "F": features}
        work.family, work.op = "tril_index_forward", "index"
    return work


@size("nonzero")
def nonzero(node: Node, rule: Rule) -> list[Work]:
    """nonzero, in four steps.

    1. CUB counts the true elements.
    2. The host waits for the count and reads it.
    3. CUB writes the positions of the true elements to a list (two kernels).
    4. One kernel converts each position to an index per dimension.
    """
    mask, result = node.tensor(0), node.result()
    return positions(mask, result.shape[0] if result and result.shape else mask.numel)


@size("nonzero_of_masks")
def nonzero_of_masks(node: Node, rule: Rule) -> list[Work]:
    """`nonzero` of each mask among the indices, which runs before an index.

    Source: `expandTensors` in ATen/native/IndexingUtils.h.
    """
    masks = [
        t for t in node.tensors()[1:] if t.dtype in ("bool", "uint8") and not t.host and t.shape
    ]
    picked = (
        node.tensors()[-1]
        if node.name.startswith(("aten::index_put", "aten::_index_put"))
        else node.result()
    )
    masks = masks if picked not in masks or len(masks) > 1 else []
    rest = math.prod(node.tensor(0).shape[len(masks[0].shape) :]) if masks else 1
    count = max(1, picked.numel // max(rest, 1)) if picked else 1
    return [work for mask in masks for work in positions(mask, count)]


def positions(mask: Tensor, count: int) -> list[Work]:
    """The steps of `nonzero` for a mask of which `count` elements are true."""
    line, position_bytes = (1, mask.numel), 8 * count
    counted = over(line, mask.numel, mask.bytes, 8, "reduction", "sum_all", mask.dtype)
    listed = over(line, mask.numel, mask.bytes, position_bytes, dtype=mask.dtype)
    split = over(
        (1, count),
        count,
        position_bytes,
        position_bytes * len(mask.shape),
        "elementwise",
        "index_arithmetic",
        "int64",
    )
    return [counted, read_by_host(NUMBER), filled(NUMBER), listed, split]


@size("index_put")
def index_put(node: Node, rule: Rule) -> list[Work] | None:
    """index_put: without accumulation one kernel; with accumulation the steps below.

    Positions are wrapped, converted to linear indices and sorted. Then values are added segment by segment. The calls
    are those in the trace `v100x8_dlrm`. In that trace the indices are on the host, so their arithmetic is no device
    call.
    """
    target = node.tensor(0)
    tensors = [t for t in node.tensors()[1:] if not (t.host and not t.shape)]
    values = tensors[-1]
    indices = tensors[:-1]
    if not values.numel:
        return None
    main = scatter_into(values, indices)
    if not any(value is True for value in node.values):
        return [main]
    features = _triangle(target, [values])
    if features:
        main.dims = {"B": target.shape[0], "F": features}
        main.family, main.op = "tril_index_backward", "index_put"
    count = max(
        (values.shape[0] if t.dtype == "bool" and values.shape else t.numel for t in indices),
        default=1,
    )
    one = over((1, count), count, 8 * count, 8 * count, "elementwise", "index_arithmetic", "int64")
    arithmetic = 3 * len(on_device(indices))  # remainder, multiply, add per index tensor
    return [
        *[one] * arithmetic,
        *contiguous_copy(values),
        one,
        one,
        *sort_works(count, 64, 16.0),
        main,
    ]


def scatter_into(values: Tensor, indices: list[Tensor]) -> Work:
    """Add values to elements of a tensor: reads the values, reads and writes their targets."""
    read = 2.0 * values.bytes + sum(t.bytes for t in indices)
    return over(values, values.numel, read, values.bytes, "index", "index_put")


def sort_works(count: int, key_bits: int, pair_bytes: float) -> list[Work]:
    """CUB's radix sort of pairs: one kernel if small, else a histogram, a scan and one pass per 8 bits of the key."""
    dims = {"B": 1, "H": count, "bytes": int(count * pair_bytes)}
    moved = count * pair_bytes
    if count <= SINGLE_TILE_SORT:
        return [Work(dims, 0.0, moved, moved, "int64", "sort", "radix_sort_single_tile")]
    passes = math.ceil(key_bits / RADIX_BITS)
    keys = count * 8.0
    bins = {"B": 1, "H": 256 * passes, "bytes": 1024 * passes}
    return [
        Work(dims, 0.0, keys, 0.0, "int64", "sort", "radix_sort_histogram"),
        Work(bins, 0.0, 1024.0 * passes, 1024.0 * passes, "int32", "sort", "radix_sort_scan"),
        *[Work(dims, 0.0, moved, moved, "int64", "sort", "radix_sort_pass") for _ in range(passes)],
    ]


@size("sort")
def sort(node: Node, rule: Rule) -> list[Work]:
    """sort, unique, topk: a radix sort of the input."""
    x = node.tensor(0)
    return sort_works(x.numel, 8 * element_bytes(x), element_bytes(x) + 8.0)


@size("nothing_known")
def nothing_known(node: Node, rule: Rule) -> Work | None:
    """An operator without a rule: only its bytes are known; it is counted as not modelled."""
    result = plain_result(node)
    read, written = (read_bytes(node.tensors()), sum(t.bytes for t in on_device(node.results())))
    if not read + written:
        return None
    dims = {**rows_width(result), "bytes": int(read + written)}
    return Work(dims, 0.0, read, float(written), main_dtype(node))


def _triangle(square: Tensor, picked: list[Tensor]) -> int:
    """F if this is the index of DLRM's interaction, else 0.

    That index picks F(F-1)/2 elements per sample from a (B, F, F) tensor.
    """
    if len(square.shape) != 3 or square.shape[1] != square.shape[2] or not picked:
        return 0
    features = square.shape[1]
    return features if picked[0].shape[-1] == features * (features - 1) // 2 else 0


def _rows_joined(parts: list[Tensor], result: Tensor | None) -> int:
    """Rows of a concatenation: elements before the dimension in which the parts differ from the result, at least one."""
    first, whole = parts[0].shape, (result or parts[0]).shape
    joined = next(
        (at for at, (part, size) in enumerate(zip(first, whole, strict=False)) if part != size),
        len(whole) - 1,
    )
    return max(math.prod(whole[: max(joined, 0)]), 1)


def contiguous_copy(values: Tensor) -> list[Work]:
    """The copy that makes a tensor contiguous; none if it already is."""
    if values.contiguous:
        return []
    return [_moved(values, "copy", "transpose")]


@size("item")
def item(node: Node, rule: Rule) -> Work | None:
    """`.item()`: a copy of a few bytes to pageable host memory; the host waits for it."""
    x = node.tensors()[0]
    return None if x.host else read_by_host(x)


@size("number")
def number(node: Node, rule: Rule) -> Work:
    """The host reads one number that the operator needs, such as the largest value of its input."""
    return read_by_host(NUMBER)


@size("collective")
def collective(node: Node, rule: Rule) -> Work:
    """A collective of several ranks: reads what this rank sends and writes what it receives."""
    sent, received = (float(sum(tensor.bytes for tensor in node.tensor_list(i))) for i in (0, 1))
    dims = {"bytes": int(max(sent, received)), "ranks": int(node.attributes["ranks"])}
    axis = {"axis": node.attributes["axis"]}
    return Work(dims, 0.0, sent, received, main_dtype(node), attributes=axis)


@size("joined_parts")
def joined_parts(node: Node, rule: Rule) -> Work:
    """FSDP2's copies of weights and gradients into one buffer and out of it, with a cast: one kernel for all parts."""
    parts = node.tensor_list(0) if isinstance(node.inputs[0], tuple) else [node.tensor(0)]
    source, target = parts[0], node.tensors()[-1]
    read = float(sum(part.bytes for part in parts))
    written = read / element_bytes(source) * element_bytes(target)
    dims = {"bytes": int(read + written) // 2, "inputs": int(read), "outputs": int(written)}
    return Work(dims, 0.0, read, written, source.dtype)


@size("index_put_nested")
def index_put_nested(node: Node, rule: Rule) -> list[Work] | None:
    """_index_put_impl_ in a trace: only sort and addition, because arithmetic and copies are child operators."""
    works = index_put(node, rule)
    return works and [w for w in works if w.family in ("sort", "index", "tril_index_backward")]


@size("pad")
def pad(node: Node, rule: Rule) -> Work:
    """constant_pad_nd: copies the input into the middle of the filled result."""
    return _moved(node.tensor(0), None, "transpose")


@size("interaction")
def interaction(node: Node, rule: Rule) -> Work:
    """DLRM's dot products as one kernel: reads vectors (B, F, D), writes one joined row per sample."""
    return _interaction(node, node.tensor(0), read_bytes([node.tensor(0)]), back=1.0)


@size("interaction_backward")
def interaction_backward(node: Node, rule: Rule) -> Work:
    """Gradient of `interaction`: reads the gradient of the joined rows and the vectors.

    It writes the gradient of the vectors and that of the first vector (the bottom MLP's output).
    """
    return _interaction(node, node.tensor(1), read_bytes(node.tensors()), back=2.0)


def _interaction(node: Node, vectors: Tensor, read: float, back: float) -> Work:
    batch, features, dim = vectors.shape
    written = float(sum(t.bytes for t in node.results()))
    flops = back * batch * features * (features - 1) * dim
    return Work({"B": batch, "F": features, "D": dim}, flops, read, written, vectors.dtype)
