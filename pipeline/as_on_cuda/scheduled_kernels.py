"""Kernels that PyTorch's compiler has scheduled, as launches: what each reads, writes and computes, or the operator it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.compiler_gpu import CUDA
from pipeline.as_on_cuda.torch_names import compiler


@dataclass(frozen=True)
class Launch:
    """A kernel of Triton, or a call of a library's operator.

    Attributes:
        name: operators that a kernel computes, joined by `+`, or the operator of a library (`aten::mm`).
        phase: forward or backward.
        module: paths of the modules whose operators it computes, as the compiler names them, the most frequent first.
        read: bytes read, each tensor once.
        written: bytes written.
        rows: elements that a kernel computes, without those that are reduced.
        width: elements that are reduced to one.
        op: kind of the kernel (`pipeline.families.fused`).
        inputs: of a library's operator, in its order: tensors without data, lists of them, or plain values.
        outputs: its results.
    """

    name: str
    phase: str
    module: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    rows: int = 0
    width: int = 1
    op: str = "pointwise"
    dtype: torch.dtype = torch.float32
    inputs: Sequence[Any] | None = None
    outputs: Sequence[Any] = ()


def describe(node: Any, phase: str) -> list[Launch]:
    """The launches of one node of the scheduler; none for one that only allocates or unpacks."""
    kinds, ir = compiler("scheduler"), compiler("ir")
    if isinstance(node, kinds.NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput):
        return []
    if str(node.get_device() or CUDA) == "cpu":
        return []
    if node.is_extern() or node.is_template():
        return [_library(node, phase)]
    parts = node.snodes if isinstance(node, kinds.ForeachKernelSchedulerNode) else [node]
    read, written = (sum(sizes) for sizes in zip(*map(_bytes, parts), strict=True))
    inside = node.get_nodes()
    origins = [each for part in inside if part.node is not None for each in part.node.origins]
    rows, width = 0, 1
    for part in parts:
        _, (elements, reduced) = part.group
        rows, width = rows + _number(elements), max(width, _number(reduced))
    dtypes = [part.node.get_dtype() for part in inside if part.node is not None]
    names = dict.fromkeys(_operator(each.target).removeprefix("aten::") for each in origins)
    return [
        Launch(
            "+".join(sorted(names)),
            phase,
            _modules(origins),
            read,
            written,
            rows,
            width,
            _kind(node, inside),
            next(iter(dtypes), torch.float32),
        )
    ]


def _kind(node: Any, inside: Sequence[Any]) -> str:
    """What limits a kernel: how it reduces, and whether threads add to the same elements."""
    if any(str(each.mode).startswith("atomic") for each in node.read_writes.writes):
        return "scatter"
    if not node.is_reduction():
        return "pointwise"
    if isinstance(node, compiler("FusedMixOrderReductions")):
        return "both"
    data = [getattr(part.node, "data", None) for part in inside]
    hints = {str(getattr(each, "reduction_hint", "")).rpartition(".")[2] for each in data}
    return "columns" if {"OUTER", "OUTER_TINY"} & hints else "reduction"


def _library(node: Any, phase: str) -> Launch:
    """The call of a library's operator: the arguments are those that the graph gave it, the products' those of the lowering."""
    inner = node.get_template_node() if node.is_template() else node.node
    origins = list(inner.origins)
    overload = getattr(inner, "op_overload", None)
    if overload is not None:
        name = _operator(overload)
    else:  # such as `extern_kernels.mm`
        kernel = str(getattr(inner, "python_kernel_name", "") or "").split("::")[-1]
        kernel = kernel.removeprefix("aten.").removeprefix("extern_kernels.")
        name = f"aten::{kernel.partition('.')[0]}"
    own = next((each for each in origins if _operator(each.target) == name), None)
    modules = _modules(origins)
    if own is None or name in PRODUCTS:
        inputs = [_tensor(each) for each in inner.inputs]
        return Launch(name, phase, modules, inputs=inputs, outputs=[_tensor(inner)])
    values = torch.fx.node.map_arg(
        (own.args, own.kwargs), lambda argument: argument.meta.get("val")
    )
    result = own.meta.get("val")
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    inputs = _in_order(own.target, *values)
    layouts = [_tensor(each) for each in inner.inputs]
    inputs = _laid_out(inputs, layouts)
    return Launch(name, phase, modules, inputs=inputs, outputs=outputs)


PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
"""Operators whose operands the lowering may have changed."""


def _in_order(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments of an operator in the order of its schema, with defaults."""
    found = list(args)
    for argument in target._schema.arguments[len(args) :]:
        default = argument.default_value if argument.has_default_value() else None
        found.append(kwargs.get(argument.name, default))
    return found


def _laid_out(inputs: list[Any], layouts: Sequence[Any]) -> list[Any]:
    """The arguments of an operator with the layouts that the lowering gives its tensors, where it keeps their shapes."""
    waiting = [each for each in layouts if isinstance(each, Tensor)]
    placed = []
    for value in inputs:
        like = next(
            (each for each in waiting if isinstance(value, Tensor) and each.shape == value.shape),
            None,
        )
        if like is not None:
            waiting = [each for each in waiting if each is not like]
        placed.append(value if like is None else like)
    return placed


def _tensor(buffer: Any) -> Any:
    """A tensor without data, with the shape and strides of a buffer; None for a buffer without a layout."""
    try:
        size, stride = buffer.get_size(), buffer.get_stride()
        dtype = buffer.get_dtype()
    except (AttributeError, NotImplementedError):
        return None
    numbers = [*map(_number, size)], [*map(_number, stride)]
    with compiler("_disable_current_modes")():
        return torch.empty_strided(*numbers, dtype=dtype, device="meta")


def _operator(target: Any) -> str:
    """The name of an operator in traces (`aten::mm`); of a plain function its own."""
    schema = getattr(target, "_schema", None)
    return str(schema.name) if schema is not None else getattr(target, "__name__", str(target))


def _modules(origins: Sequence[Any]) -> tuple[str, ...]:
    """Names of the modules of operators, as the compiler has them, the most frequent first."""
    found: Counter[str] = Counter()
    for node in origins:
        if stack := node.meta.get("nn_module_stack"):
            found[str([*stack.values()][-1][0])] += 1
    return tuple(name for name, _ in found.most_common())


def _number(size: Any) -> int:
    """A size as a number; unknown ones by the compiler's guess."""
    try:
        return int(size)
    except TypeError:
        return int(compiler("V").graph.sizevars.optimization_hint(size, fallback=8192))


def _bytes(node: Any) -> tuple[int, int]:
    """Bytes that a kernel reads and writes: every buffer once, each at most its whole size.

    Of a buffer where it looks up places, an element for each that it computes: caches seldom hold what is read again.
    """
    graph = compiler("V").graph
    scheduler, inside, operations = (
        graph.scheduler,
        node.get_buffer_names(),
        node.get_operation_names(),
    )

    def moved(dependencies: Iterable[Any], writes: bool) -> int:
        touched: dict[str, int] = {}
        for each in dependencies:
            gone = each.name in graph.removed_buffers or (
                scheduler.can_buffer_be_removed_through_fusion(each.name, operations)
                if writes
                else each.name in inside
            )
            if not gone:
                before = touched.get(each.name, 0)
                touched[each.name] = _touched(each, node, graph.get_numel(each.name), before)
        return sum(count * graph.get_dtype(name).itemsize for name, count in touched.items())

    return moved(node.read_writes.reads, False), moved(node.read_writes.writes, True)


def _touched(dependency: Any, node: Any, whole: Any, before: int) -> int:
    """Elements of a buffer that a kernel reads or writes, with those of its other places in the same buffer."""
    if not isinstance(dependency, compiler("MemoryDep")):
        return _number(whole)
    if not dependency.is_indirect():
        return min(_number(whole), before + _number(dependency.get_numel()))
    _, (elements, reduced) = node.group
    return before + _number(elements) * _number(reduced)
