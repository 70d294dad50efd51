"""Edits of an operator graph as pure functions: none changes its argument, each returns a new graph.

`pipeline.graph.edit_options` applies them to the operators that overrides such as `edit.remove=aten::dropout` name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from pipeline.graph.normalise import renumber
from pipeline.graph.table import Graph, Node, write_nodes


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
