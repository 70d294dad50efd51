"""Running one operator of a graph by itself, on tensors of the very shapes, strides and dtypes that it had.

Builders know kernel families; this knows the operator that a CPU runs for a call, whatever its family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.collect.cases import Case, Maker, Spec, UnsupportedCallError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from pipeline.graph.table import Node
    from pipeline.graph.table import Tensor as TensorInfo

PRODUCED = {"aten::addmm": (1,), "aten::baddbmm": (1, 2), "aten::linear": (0,), "aten::bmm": (0, 1)}
"""Positions of the inputs that the op before has just written; the first tensor for every other operator."""

FIXED_VALUES = ("add_", "sub_", "zero_", "fill_", "copy_", "_foreach_add_", "_foreach_zero_")
"""In-place operators that may be repeated without driving values to infinity or to denormals."""


class Replayer:
    """The operators of one graph as cases.

    Args:
        graph: table of the `graph` schema.
    """

    def __init__(self, graph: pd.DataFrame) -> None:
        from pipeline.graph.table import read_nodes

        self._nodes: Mapping[int, Node] = {node.node_id: node for node in read_nodes(graph)}

    def build(self, spec: Spec, node_id: int, make: Maker) -> Case:
        """The case of one node.

        Raises:
            UnsupportedCallError: the node's operator cannot run on made-up values (indices), or does not exist here.
        """
        node = self._nodes.get(node_id)
        if node is None:
            raise UnsupportedCallError(f"{spec.family} {spec.op}: node {node_id} is not in the graph")
        operator = _operator(node.name)
        arguments = [self._argument(node, i, make) for i in range(max(len(node.inputs), len(node.values)))]
        produced = _tensors([arguments[i] for i in PRODUCED.get(node.name, ())]) or _tensors(arguments[:1])
        prepare = None
        if node.name.endswith("_") and not node.name.endswith(FIXED_VALUES):
            changed = _tensors(arguments[:1])
            kept = [tensor.clone() for tensor in changed]

            def prepare() -> None:
                for tensor, value in zip(changed, kept, strict=True):
                    tensor.copy_(value)

        try:
            operator(*arguments)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedCallError(f"{node.name}: {str(error).splitlines()[0][:120]}") from None
        return Case(spec, lambda: operator(*arguments), tuple(produced), prepare)

    def _argument(self, node: Node, index: int, make: Maker) -> Any:
        given = node.inputs[index] if index < len(node.inputs) else None
        if given is None:
            return node.values[index] if index < len(node.values) else None
        if isinstance(given, tuple):
            return [_tensor(one, make, node.name) for one in given]
        return _tensor(given, make, node.name)


def _tensor(info: TensorInfo, make: Maker, operator: str) -> Tensor:
    import torch

    from pipeline.collect.device import torch_dtype

    dtype = torch_dtype(info.dtype)
    if not dtype.is_floating_point and operator not in ("aten::copy_", "aten::clone", "aten::cat", "aten::zero_"):
        raise UnsupportedCallError(f"{operator}: {info.dtype} operands mean something, made-up ones do not")
    if info.contiguous or not info.strides:
        return make.tensor(*info.shape, dtype=info.dtype)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(info.shape, info.strides, strict=True))
    return torch.as_strided(make.tensor(max(reach, 1), dtype=info.dtype), info.shape, info.strides)


def _operator(name: str) -> Any:
    import torch

    namespace, _, plain = name.partition("::")
    try:
        return getattr(getattr(torch.ops, namespace), plain.split(".")[0])
    except (AttributeError, RuntimeError):
        raise UnsupportedCallError(f"{name}: this torch has no such operator") from None


def _tensors(arguments: list[Any]) -> list[Tensor]:
    flat = [item for argument in arguments for item in (argument if isinstance(argument, list) else [argument])]
    return [item for item in flat if hasattr(item, "is_floating_point")]
