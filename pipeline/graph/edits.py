"""Edits of an operator graph as pure functions: none changes its argument, each returns a new graph.

rescale     compute the graph at another batch size from captures at two other batch sizes.
rewrite     replace or remove any operators and their children.
remove      remove operators and their children.
substitute  replace one operator by others.
fuse        replace consecutive operators by one elementwise kernel.

`pipeline.graph.edit_options` applies them to the operators that overrides such as `edit.remove=aten::dropout` name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from pipeline.errors import InputError
from pipeline.graph.batch_line import GraphLine, MemoryLine, NotOnALineError
from pipeline.graph.normalise import renumber
from pipeline.graph.table import Argument, Graph, Node, write_nodes

FUSED = "fused::"
"""Prefix of the names of fused operators; the operator map treats each as one elementwise kernel."""


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
    low, high = sorted((one, other), key=lambda graph: graph.batch_size)
    if low.batch_size == high.batch_size:
        raise InputError(
            f"rescale: both graphs have batch size {one.batch_size}; capture the step at a second"
            " size"
        )
    try:
        return GraphLine(low, high, MemoryLine.of_all_moments(low, high)).at(batch_size)
    except NotOnALineError as error:
        raise InputError(f"rescale: {error}; capture the step at this size") from None


def rewrite(graph: Graph, placed: Mapping[int, Sequence[Node]]) -> Graph:
    """Return the graph with other operators in place of some operators and their children.

    Args:
        graph: any graph.
        placed: id of an operator -> the operators that take its place, parent, thread and phase; none removes it.
    """
    found: list[Node] = []
    gone: set[int] = set()
    nodes = graph.nodes()
    fresh = count(1 + max((node.node_id for node in nodes), default=0))
    for node in nodes:
        if node.parent_id in gone:
            gone.add(node.node_id)
        elif node.node_id in placed:
            gone.add(node.node_id)
            found += [
                replace(
                    new,
                    node_id=next(fresh),
                    parent_id=node.parent_id,
                    thread=node.thread,
                    phase=node.phase,
                    module=node.module,
                )
                for new in placed[node.node_id]
            ]
        else:
            found.append(node)
    return replace(graph, table=write_nodes(renumber(found)))


def remove(graph: Graph, wanted: Callable[[Node], bool]) -> Graph:
    """Return the graph without the operators for which `wanted` is true and without their children."""
    return rewrite(graph, {node.node_id: () for node in graph.nodes() if wanted(node)})


def substitute(graph: Graph, node_id: int, nodes: Sequence[Node]) -> Graph:
    """Return the graph with `nodes` in place of one operator and its children.

    The new nodes take the parent, thread and phase of the operator.

    Raises:
        InputError: the graph has no such operator.
    """
    if node_id not in set(graph.table["node_id"]):
        raise InputError(f"substitute: the graph has no operator {node_id}")
    return rewrite(graph, {node_id: nodes})


def fuse(graph: Graph, node_ids: Sequence[int]) -> Graph:
    """Return the graph with consecutive operators replaced by one kernel that does not store intermediate results.

    Raises:
        InputError: there are fewer than two operators, an operator is unknown, or their parents differ.
    """
    chosen = [node for node in graph.nodes() if node.node_id in set(node_ids)]
    if len(chosen) < 2 or len(chosen) != len(set(node_ids)):
        raise InputError(f"fuse: needs two or more operators of the graph, got {list(node_ids)}")
    if len({(node.parent_id, node.thread) for node in chosen}) > 1:
        raise InputError("fuse: the operators have different parents")
    return rewrite(
        graph, {chosen[0].node_id: [fused(chosen)]} | {node.node_id: () for node in chosen[1:]}
    )


def fused(chain: Sequence[Node]) -> Node:
    """One elementwise kernel in place of a chain of operators.

    It reads the inputs of the first operator and the other operands of every later operator. The first tensor of a later
    operator is assumed to be the result of the operator before it. The kernel writes the outputs of the last operator.
    """
    inputs: list[Argument] = list(chain[0].inputs)
    for node in chain[1:]:
        inputs += [argument for argument in node.inputs if argument is not None][1:]
    name = FUSED + "+".join(node.name.removeprefix("aten::") for node in chain)
    blank = replace(chain[0], attributes={}, values=(None,) * len(inputs))
    return replace(blank, name=name, inputs=tuple(inputs), outputs=chain[-1].outputs)
