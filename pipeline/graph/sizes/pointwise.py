"""Sizes of kernels that touch each element once: elementwise operators, fills, copies, reductions, losses."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.graph.sizes.reduce import blocks_share_outputs
from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    filled,
    main_dtype,
    on_device,
    plain_result,
    read_bytes,
    rows_width,
    size,
)
from pipeline.graph.table import Node, Tensor, contiguous_strides

KERNEL = "cudaLaunchKernel"


@size("elementwise")
def elementwise(node: Node, rule: Rule) -> Work | None:
    """One kernel over the result; option `scalar` is the op if the second operand is a plain number."""
    result = _largest(node)
    if not result.numel:
        return None
    inputs = on_device(node.tensors())
    written = sum(t.bytes for t in node.results()) or result.bytes
    read = read_bytes(inputs)
    op = rule.op
    if "scalar" in rule.options and sum(t.numel > 1 or not t.host for t in node.tensors()) < 2:
        op = str(rule.options["scalar"])
    dims = {**rows_width(result), "inputs": int(read), "outputs": int(written)}
    return Work(dims, float(result.numel) * float(rule.options.get("flops", 1)), read, float(written), main_dtype(node),
                rule.family, op)  # fmt: skip


@size("unary_in_turn")
def unary_in_turn(node: Node, rule: Rule) -> list[Work] | None:
    """`count` kernels in sequence; each reads and writes the elements of the result once."""
    one = elementwise(node, rule)
    return None if one is None else [one] * int(rule.options["count"])


@size("fill")
def fill(node: Node, rule: Rule) -> Work | None:
    """Writes a constant."""
    result = plain_result(node)
    if not result.numel or result.host:
        return None
    dims = {**rows_width(result), "inputs": 0, "outputs": result.bytes}
    return Work(dims, 0.0, 0.0, float(result.bytes), result.dtype)


@size("diagonal")
def diagonal(node: Node, rule: Rule) -> Work | None:
    """Writes a constant to the diagonal of the result (`eye`)."""
    result = plain_result(node)
    if not result.numel or result.host:
        return None
    each = result.bytes // result.numel * min(result.shape[-2:])
    return Work(
        {"B": 1, "H": min(result.shape[-2:]), "inputs": 0, "outputs": each}, 0.0, 0.0, float(each), result.dtype
    )


@size("fill_input")
def fill_input(node: Node, rule: Rule) -> Work | None:
    """Zeros in the shape of the second input: the gradient to which a scatter then writes."""
    return filled(node.tensor(1))


@size("copy")
def copy(node: Node, rule: Rule) -> Work | None:
    """copy_ and operators that copy: a memory copy if both sides have the same layout, else an elementwise kernel.

    Inputs are (target, source) for `copy_`, and (source,) for clone, contiguous and similar operators.
    """
    tensors = node.tensors()
    if not tensors:
        raise LookupError(f"{node.name}: its shapes are unknown")
    source = tensors[1] if node.name == "aten::copy_" and len(tensors) > 1 else tensors[0]
    target = tensors[0] if node.name == "aten::copy_" else (node.result() or source)
    if not target.numel:
        return None
    if source.host and target.host:
        return None
    if source.host or target.host:
        return _host_device_copy(source, target, node)
    moved = float(source.stored_bytes)
    attributes = {"shape": list(source.shape), "strides": list(source.strides or ())}
    same = source.dtype == target.dtype and _same_layout(source, target)
    if same and not _expanded(source):
        return Work({"bytes": target.bytes}, 0.0, moved, float(target.bytes), source.dtype, "memcpy_d2d", "memcpy",
                    "cudaMemcpyAsync")  # fmt: skip
    dims = {**rows_width(target), "bytes": target.bytes, "inputs": int(moved), "outputs": target.bytes}
    if source.dtype != target.dtype:
        return Work(dims, 0.0, moved, float(target.bytes), main_dtype(node), "elementwise", "cast", KERNEL)
    if source.contiguous and target.contiguous:
        return Work(dims, 0.0, moved, float(target.bytes), source.dtype, "elementwise", "copy", KERNEL)
    return Work(dims, 0.0, moved, float(target.bytes), source.dtype, "copy", "transpose", KERNEL, attributes=attributes)


@size("clone")
def clone(node: Node, rule: Rule) -> Work | None:
    """A copy to a new tensor; the layout is kept unless `memory_format` (a number; 0 is contiguous) sets another."""
    source = node.tensors()[0]
    kept = all(value in (None, 1) for value in node.values[1:]) and source.dense
    target = Tensor(
        source.shape, source.dtype, source.strides if kept else contiguous_strides(source.shape), source.host
    )
    return copy(replace(node, name="aten::copy_", inputs=(target, source), outputs=()), rule)


@size("reduction")
def reduction(node: Node, rule: Rule) -> list[Work] | Work | None:
    """sum, mean and similar: B rows of width H in the layout of the input; the op's suffix is the reduced side.

    Option `dim`: position of the dimensions among the arguments (default 1).
    """
    source = on_device(node.tensors())[0] if on_device(node.tensors()) else node.tensors()[0]
    dims, side = _reduced(node, source, int(rule.options.get("dim", 1)))
    if not source.numel:
        return None
    written = math.prod(size for i, size in enumerate(source.shape) if i not in dims)
    element = source.bytes // source.numel
    rows, width = _split(source.shape, dims, side)
    read = float(source.stored_bytes)
    main = Work({"B": rows, "H": width, "inputs": int(read), "outputs": written * element}, float(source.numel), read,
                float(written * element), source.dtype, op=f"{rule.op}_{side}")  # fmt: skip
    if not _across_blocks(rows, width, side, rule.sms):
        return main
    zeroed = Work({"bytes": 4 * written}, 0.0, 0.0, 4.0 * written, "int32", "memset", "semaphores", "cudaMemsetAsync")
    return [zeroed, main]


@size("extremum")
def extremum(node: Node, rule: Rule) -> list[Work] | Work | None:
    """max and min: elementwise for two tensors; for one tensor, along a dimension or over all elements."""
    if len(node.tensors()) > 1:
        return elementwise(node, replace(rule, family="elementwise", op=f"{rule.op}imum"))
    return reduction(node, rule)


@size("loss")
def loss(node: Node, rule: Rule) -> list[Work]:
    """An elementwise loss, followed by a mean or a sum unless the loss is not reduced."""
    x = node.tensor(0)
    read = read_bytes(node.tensors())
    dims = {**rows_width(x), "inputs": int(read), "outputs": x.bytes}
    works = [Work(dims, 4.0 * x.numel, read, float(x.bytes), x.dtype)]
    if node.value(int(rule.options.get("reduction", 2)), 1) != 0:
        all_dims = {**rows_width(x), "inputs": x.bytes, "outputs": 4}
        works.append(Work(all_dims, float(x.numel), float(x.bytes), 4.0, x.dtype, "reduction", "mean_all"))
    return works


def _host_device_copy(source: Tensor, target: Tensor, node: Node) -> Work:
    """A copy between host and device.

    It blocks the host unless it is non-blocking; host memory is then assumed to be pinned.
    """
    kind = "h2d" if source.host else "d2h"
    waits = not bool(node.value(2, False))
    dims = {"bytes": max(source.bytes, target.bytes)}
    return Work(dims, 0.0, float(source.bytes), float(target.bytes), target.dtype, f"memcpy_{kind}",
                "pageable" if waits else "pinned", "cudaMemcpyAsync", waits)  # fmt: skip


def _largest(node: Node) -> Tensor:
    """The tensor that a kernel runs over: the result, or the largest input if the trace has no result."""
    result = node.result()
    if result is not None and not result.host:
        return result
    inputs = on_device(node.tensors())
    return max(inputs, key=lambda tensor: tensor.numel, default=result or Tensor((), "fp32"))


def _same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors store their elements in the same order without gaps (unknown strides count as contiguous)."""
    if not a.strides or not b.strides or a.shape != b.shape:
        return a.contiguous and b.contiguous and a.numel == b.numel
    matters = [i for i, size in enumerate(a.shape) if size != 1]
    return a.dense and b.dense and all(a.strides[i] == b.strides[i] for i in matters)


def _expanded(tensor: Tensor) -> bool:
    return tensor.stored_bytes != tensor.bytes


def _reduced(node: Node, source: Tensor, at: int) -> tuple[set[int], str]:
    """Reduced dimensions (argument `at`) and the reduced side: rows, columns or all."""
    given = next(
        (
            v
            for v in node.values[at : at + 1]
            if isinstance(v, list) or (isinstance(v, int) and not isinstance(v, bool))
        ),
        None,
    )
    axes = [given] if isinstance(given, int) else given
    rank = len(source.shape)
    every = set(range(rank))
    dims = {axis % rank for axis in axes} if axes and rank else every
    if {i for i in every - dims if source.shape[i] > 1} == set():
        return every, "all"
    return dims, "columns" if rank - 1 in dims else "rows"


def _across_blocks(rows: int, width: int, side: str, sms: int) -> bool:
    """Whether several blocks share one output, so that a memset clears semaphores first."""
    if side == "all":
        return blocks_share_outputs(1, rows * width, True, sms)
    columns = side == "columns"
    return blocks_share_outputs(rows if columns else width, width if columns else rows, columns, sms)


def _split(shape: tuple[int, ...], dims: set[int], side: str) -> tuple[int, int]:
    reduced = math.prod(size for i, size in enumerate(shape) if i in dims)
    kept = math.prod(size for i, size in enumerate(shape) if i not in dims)
    if side == "all":
        return math.prod(shape[:-1]), shape[-1] if shape else 1
    return (kept, reduced) if side == "columns" else (reduced, kept)
