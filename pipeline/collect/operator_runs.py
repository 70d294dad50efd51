"""Run one operator of a graph by itself, on tensors with the same shapes, strides and dtypes as in the graph.

The builders in `pipeline.collect.cases` are made for kernel families. This module runs the operator that a CPU runs for
a call, for any family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.collect.cases import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.device import torch_dtype
from pipeline.graph.table import Node, read_nodes
from pipeline.graph.table import Tensor as TensorInfo

if TYPE_CHECKING:
    import pandas as pd

PRODUCED_INPUTS = {
    "aten::addmm": (1,),
    "aten::baddbmm": (1, 2),
    "aten::linear": (0,),
    "aten::bmm": (0, 1),
}
"""Positions of the inputs that the previous op has just written; for other operators it is the first tensor."""

REPEATABLE_OPERATORS = (
    "add_",
    "sub_",
    "zero_",
    "fill_",
    "copy_",
    "_foreach_add_",
    "_foreach_zero_",
)
"""In-place operators that can be repeated without values becoming infinite or denormal."""


class Replayer:
    """The operators of one graph as cases.

    Args:
        graph: table of the `graph` schema.
    """

    def __init__(self, graph: pd.DataFrame) -> None:
        self._nodes: Mapping[int, Node] = {node.node_id: node for node in read_nodes(graph)}

    def build(self, spec: Spec, node_id: int, make: Maker) -> Case:
        """The case of one node.

        Raises:
            UnsupportedCallError: the operator cannot run on random values (indices), or this torch does not have it.
        """
        node = self._nodes.get(node_id)
        if node is None:
            raise UnsupportedCallError(
                f"{spec.family} {spec.op}: node {node_id} is not in the graph"
            )
        operator = _operator(node.name)
        arguments = [
            self._argument(node, i, make) for i in range(max(len(node.inputs), len(node.values)))
        ]
        call, tensors = _bind_overload(operator, node.name, arguments)
        produced = _tensors([arguments[i] for i in PRODUCED_INPUTS.get(node.name, ())]) or _tensors(
            arguments[:1]
        )
        if node.phase == "optimizer":  # parameters, gradients and state were not written recently
            produced = []
        if not node.name.endswith("_") or node.name.endswith(REPEATABLE_OPERATORS):
            return Case(spec, call, tuple(produced))
        kept = [tensor.clone() for tensor in tensors[:1]]

        def restore() -> None:
            for tensor, value in zip(tensors, kept, strict=False):
                tensor.copy_(value)

        return Case(spec, call, tuple(produced), restore)

    def _argument(self, node: Node, index: int, make: Maker) -> Any:
        tensor = node.inputs[index] if index < len(node.inputs) else None
        if tensor is None:
            return node.values[index] if index < len(node.values) else None
        if isinstance(tensor, tuple):
            return [_tensor(info, make, node.name) for info in tensor]
        return _tensor(tensor, make, node.name)


def _tensor(info: TensorInfo, make: Maker, operator: str) -> Tensor:
    dtype = torch_dtype(info.dtype)
    if not dtype.is_floating_point and operator not in (
        "aten::copy_",
        "aten::clone",
        "aten::cat",
        "aten::zero_",
    ):
        raise UnsupportedCallError(f"{operator}: it cannot run on random {info.dtype} operands")
    if info.contiguous or not info.strides:
        return make.tensor(*info.shape, dtype=info.dtype)
    reach = 1 + sum(
        (size - 1) * stride for size, stride in zip(info.shape, info.strides, strict=True)
    )
    return torch.as_strided(make.tensor(max(reach, 1), dtype=info.dtype), info.shape, info.strides)


def _operator(name: str) -> Any:
    namespace, _, plain = name.partition("::")
    try:
        return getattr(getattr(torch.ops, namespace), plain.split(".")[0])
    except (AttributeError, RuntimeError):
        raise UnsupportedCallError(
            f"{name}: this version of torch does not have the operator"
        ) from None


def _bind_overload(
    operator: Any, name: str, arguments: list[Any]
) -> tuple[Callable[[], Any], list[Tensor]]:
    """The call of the overload that accepts these arguments, in the order of traces (keyword-only arguments last)."""
    reason = "no overload takes its recorded arguments"
    for overload in operator.overloads():
        chosen = getattr(operator, overload)
        declared = chosen._schema.arguments
        if len(arguments) > len(declared) or overload.endswith("out"):
            continue
        positional = [v for v, a in zip(arguments, declared, strict=False) if not a.kwarg_only]
        named = {
            a.name: v
            for v, a in zip(arguments, declared, strict=False)
            if a.kwarg_only and v is not None
        }
        call = partial(chosen, *positional, **named)
        try:
            call()
            return call, _tensors(arguments)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = (str(error).splitlines() or [reason])[0][:120]
    raise UnsupportedCallError(f"{name}: {reason}")


def _tensors(arguments: list[Any]) -> list[Tensor]:
    flat = [
        item
        for argument in arguments
        for item in (argument if isinstance(argument, list) else [argument])
    ]
    return [item for item in flat if hasattr(item, "is_floating_point")]
