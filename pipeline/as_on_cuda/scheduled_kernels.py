"""Kernels that PyTorch's compiler has scheduled, as launches: what each reads, writes and computes, or the operator it calls."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.compiler_gpu import CUDA
from pipeline.as_on_cuda.torch_names import compiler, tree_leaves


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
    read, written = map(sum, zip(*map(_bytes, parts), strict=True))
    inside = [part.node for part in node.get_nodes() if part.node is not None]
    origins = [each for part in inside for each in part.origins]
    sizes = [[_number(size) for size in part.group[1]] for part in parts]
    names = {_operator(each.target).removeprefix("aten::") for each in origins}
    launch = Launch(
        "+".join(sorted(names)),
        phase,
        module_names(origins),
        read,
        written,
        sum(elements for elements, _ in sizes),
        max(1, *(reduced for _, reduced in sizes)),
        _kind(node, inside),
        inside[0].get_dtype() if inside else torch.float32,
    )
    return [launch]


def _kind(node: Any, inside: Sequence[Any]) -> str:
    """What limits a kernel: how it reduces, and whether threads add to the same elements."""
    if any(str(each.mode).startswith("atomic") for each in node.read_writes.writes):
        return "scatter"
    if not node.is_reduction():
        return "pointwise"
    if isinstance(node, compiler("FusedMixOrderReductions")):
        return "both"
    hints = {str(getattr(getattr(each, "data", None), "reduction_hint", "")) for each in inside}
    return "columns" if any("OUTER" in hint for hint in hints) else "reduction"


def _library(node: Any, phase: str) -> Launch:
    """The call of a library's operator: the arguments are those that the graph gave it, the products' those of the lowering."""
    inner = node.get_template_node() if node.is_template() else node.node
    overload = getattr(inner, "op_overload", None)
    if overload is not None:
        name = _operator(overload)
    else:  # such as `extern_kernels.mm`
        kernel = str(getattr(inner, "python_kernel_name", ""))
        kernel = re.sub(r"^(\w+::)*((aten|extern_kernels)\.)?", "", kernel)
        name = f"aten::{kernel.partition('.')[0]}"
    own = next((each for each in inner.origins if _operator(each.target) == name), None)
    inputs, outputs = [_tensor(each) for each in inner.inputs], [_tensor(inner)]
    if own is not None and name not in PRODUCTS:
        inputs = _laid_out(_arguments(own), inputs)
        outputs = tree_leaves(own.meta.get("val"))
    return Launch(name, phase, module_names(inner.origins), inputs=inputs, outputs=outputs)


PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
"""Operators whose operands the lowering may have changed."""


def _arguments(call: Any) -> list[Any]:
    """All arguments of an operator in the order of its schema, with defaults."""
    args, kwargs = torch.fx.node.map_arg(
        (call.args, call.kwargs), lambda argument: argument.meta.get("val")
    )
    others = call.target._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(each.name, each.default_value) for each in others)]


def _laid_out(inputs: list[Any], layouts: Sequence[Any]) -> list[Any]:
    """The arguments of an operator with the layouts that the lowering gives its tensors, where it keeps their shapes."""
    waiting: dict[Any, list[Tensor]] = {}
    for each in layouts:
        waiting.setdefault(getattr(each, "shape", None), []).append(each)

    def placed(value: Any) -> Any:
        same = waiting.get(getattr(value, "shape", 0))
        return same.pop(0) if same else value

    return [placed(each) for each in inputs]


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


def module_names(origins: Iterable[Any]) -> tuple[str, ...]:
    """Names of the modules of operators, as the compiler has them, the most frequent first."""
    stacks = (node.meta.get("nn_module_stack") for node in origins)
    found = Counter(str([*stack.values()][-1][0]) for stack in stacks if stack)
    return tuple(name for name, _ in found.most_common())


def _number(size: Any) -> int:
    """A size as a number; unknown ones by the compiler's guess."""
    try:
        return int(size)
    except TypeError:
        return int(compiler("V").graph.sizevars.optimization_hint(size, fallback=8192))


def _bytes(node: Any) -> list[int]:
    """Bytes that a kernel reads and writes: every buffer once, each at most its whole size.

    Of a buffer where it looks up places, an element for each that it computes: caches seldom hold what is read again.
    """
    graph, inside, operations = (
        compiler("V").graph,
        node.get_buffer_names(),
        node.get_operation_names(),
    )

    def is_fused(name: str) -> bool:
        return bool(graph.scheduler.can_buffer_be_removed_through_fusion(name, operations))

    moved = []
    for dependencies, is_gone in (
        (node.read_writes.reads, inside.__contains__),
        (node.read_writes.writes, is_fused),
    ):
        touched: Counter[str] = Counter()
        for each in dependencies:
            if each.name not in graph.removed_buffers and not is_gone(each.name):
                whole = _number(graph.get_numel(each.name))
                touched[each.name] = _touched(each, node, whole, touched[each.name])
        moved.append(sum(n * graph.get_dtype(name).itemsize for name, n in touched.items()))
    return moved


def _touched(dependency: Any, node: Any, whole: int, before: int) -> int:
    """Elements of a buffer that a kernel reads or writes, with those of its other places in the same buffer."""
    if not isinstance(dependency, compiler("MemoryDep")):
        return whole
    if not dependency.is_indirect():
        return min(whole, before + _number(dependency.get_numel()))
    return before + math.prod(map(_number, node.group[1]))
