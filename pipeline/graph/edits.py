"""Edits of an operator graph as pure functions: none changes its argument, each returns a new graph.

rescale     compute the graph at another batch size from captures at two other batch sizes.
remove      remove operators and their children.
substitute  replace one operator by others.
fuse        replace consecutive operators by one elementwise kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pipeline.errors import InputError
from pipeline.graph.normalise import renumber
from pipeline.graph.table import Argument, Graph, Memory, Node, write_nodes

FUSED = "fused::"
"""Prefix of the names of fused operators; the operator map treats each as one elementwise kernel."""

_TEXT_COLUMNS = ("input_shapes", "output_shapes", "attributes")
_SAME_COLUMNS = ("name", "thread", "phase", "input_dtypes", "is_top_level")


def rescale(one: Graph, other: Graph, batch_size: int) -> Graph:
    """Compute the graph at a third batch size without a capture.

    Sizes, strides and plain arguments depend on the batch size as a + b·batch. Two graphs determine a and b of each
    number. One graph is not enough: a dimension can equal the batch size by coincidence.

    Args:
        one: a graph with its `batch_size`.
        other: the same step at another batch size.
        batch_size: the batch size of the result.

    Raises:
        InputError: the graphs have equal batch sizes or differ in more than numbers.
    """
    if one.batch_size == other.batch_size:
        raise InputError(f"rescale: both graphs have batch size {one.batch_size}; capture the step at a second size")
    if len(one.table) != len(other.table) or any(
        list(one.table[name]) != list(other.table[name]) for name in _SAME_COLUMNS
    ):
        raise InputError(
            "rescale: the graphs have different operators, so sizes cannot be interpolated; capture the step at this "
            "size"
        )
    place = Fraction(batch_size - one.batch_size, other.batch_size - one.batch_size)
    cache: dict[tuple[str, str], str] = {}

    def text(first: str, second: str) -> str:
        if first == second:
            return first
        if (first, second) not in cache:
            between = _interpolate(json.loads(first), json.loads(second), place)
            cache[first, second] = json.dumps(between, separators=(",", ":"))
        return cache[first, second]

    table = one.table.copy()
    for name in _TEXT_COLUMNS:
        table[name] = [text(a, b) for a, b in zip(one.table[name], other.table[name], strict=True)]
    parts = {
        name: _number(getattr(one.memory, name), getattr(other.memory, name), place)
        for name in ("parameters", "gradients", "optimizer", "activations", "inputs")
    }
    return Graph(table, Memory(**parts), one.device, one.model, batch_size)


def remove(graph: Graph, wanted: Callable[[Node], bool]) -> Graph:
    """Return the graph without the operators for which `wanted` is true and without their children."""
    gone: set[int] = set()
    kept: list[Node] = []
    for node in graph.nodes():
        if node.parent_id in gone or wanted(node):
            gone.add(node.node_id)
        else:
            kept.append(node)
    return _with(graph, kept)


def substitute(graph: Graph, node_id: int, nodes: Sequence[Node]) -> Graph:
    """Return the graph with `nodes` in place of one operator and its children.

    The new nodes take the parent, thread and phase of the operator.

    Raises:
        InputError: the graph has no such operator.
    """
    found: list[Node] = []
    gone: set[int] = set()
    fresh = 1 + max((node.node_id for node in graph.nodes()), default=0)
    for node in graph.nodes():
        if node.node_id == node_id:
            gone.add(node_id)
            for i, new in enumerate(nodes):
                found.append(
                    replace(new, node_id=fresh + i, parent_id=node.parent_id, thread=node.thread, phase=node.phase)
                )
        elif node.parent_id in gone:
            gone.add(node.node_id)
        else:
            found.append(node)
    if not gone:
        raise InputError(f"substitute: the graph has no operator {node_id}")
    return _with(graph, found)


def fuse(graph: Graph, node_ids: Sequence[int]) -> Graph:
    """Return the graph with consecutive operators replaced by one kernel that does not store intermediate results.

    The fused operator reads the inputs of the first operator and the other operands of every later operator. The first
    tensor of a later operator is assumed to be the result of the operator before it. The fused operator writes the
    outputs of the last operator.

    Raises:
        InputError: there are fewer than two operators, an operator is unknown, or their parents differ.
    """
    chosen = [node for node in graph.nodes() if node.node_id in set(node_ids)]
    if len(chosen) < 2 or len(chosen) != len(set(node_ids)):
        raise InputError(f"fuse: needs two or more operators of the graph, got {list(node_ids)}")
    if len({(node.parent_id, node.thread) for node in chosen}) > 1:
        raise InputError("fuse: the operators have different parents")
    inputs: list[Argument] = list(chosen[0].inputs)
    for node in chosen[1:]:
        later = [argument for argument in node.inputs if argument is not None]
        inputs += later[1:]
    name = FUSED + "+".join(node.name.removeprefix("aten::") for node in chosen)
    blank = replace(chosen[0], attributes={}, values=(None,) * len(inputs))
    fused = replace(blank, name=name, inputs=tuple(inputs), outputs=chosen[-1].outputs)
    others = {node.node_id for node in chosen[1:]}
    return substitute(remove(graph, lambda node: node.node_id in others), _new_id(graph, chosen[0], others), [fused])


def _new_id(graph: Graph, node: Node, gone: set[int]) -> int:
    """The id of an operator after `gone` and their children are removed and the rest is renumbered."""
    lost, before = set(gone), 0
    for each in graph.nodes():
        if each.node_id == node.node_id:
            return before
        if each.parent_id in lost or each.node_id in lost:
            lost.add(each.node_id)
        else:
            before += 1
    raise InputError(f"fuse: the graph has no operator {node.node_id}")


def _with(graph: Graph, nodes: Sequence[Node]) -> Graph:
    return Graph(write_nodes(renumber(nodes)), graph.memory, graph.device, graph.model, graph.batch_size)


def _interpolate(a: Any, b: Any, place: Fraction) -> Any:
    """Interpolate (or extrapolate) every number linearly between two structures of the same form."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [_interpolate(x, y, place) for x, y in zip(a, b, strict=True)]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {key: _interpolate(a[key], b[key], place) for key in a}
    if a == b:
        return a
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        raise InputError(
            f"rescale: {a!r} and {b!r} are not numbers: the step does something else at another batch size"
        )
    return _number(a, b, place)


def _number(a: float, b: float, place: Fraction) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        exact = a + (b - a) * place
        if exact.denominator != 1:
            raise InputError(f"rescale: {a} and {b} do not grow linearly with the batch size")
        return int(exact)
    return a + (b - a) * float(place)
