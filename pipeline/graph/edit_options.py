"""Edits of a captured step by the names of its operators: `edit.remove`, `edit.substitute`.

An edit changes an operator together with its part of the backward pass. Both have the same sequence number of autograd: a
node of the backward pass belongs to the last operator of the forward pass with its number.

Parameters, their updates and the memory need stay those of the captured step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

from pipeline.errors import InputError, did_you_mean
from pipeline.graph.device_calls import mapped_nodes
from pipeline.graph.edits import rewrite
from pipeline.graph.opmap import UNKNOWN_ROW, find_row, rows
from pipeline.graph.table import Graph, Node
from pipeline.question.settings import EditSettings

BACKWARD_NODE = "autograd::engine::evaluate_function"
"""Begin of the names of nodes that hold the backward pass of one operator."""

GRADIENT = "aten::mul"
"""Operator that stands for the backward pass of a substitute without a `..._backward` operator in the map: one kernel
that reads two tensors and writes one."""

MAX_NAMED = 3
"""Number of operators that an error message names."""


def edited(graph: Graph, edit: EditSettings) -> Graph:
    """The graph after all edits: first removals, then substitutes.

    Raises:
        InputError: an edit matches no operator of the step, or names an operator that is not in the map.
    """
    for name in edit.remove:
        graph = _remove(graph, name)
    for text in edit.substitute:
        graph = _substitute(graph, *text.split("/"))
    said = (f"the memory is that of the step without {' '.join(edit.texts)}",) if edit else ()
    return replace(graph, warnings=(*graph.warnings, *said))


@dataclass(frozen=True)
class _Tree:
    """The operators of a step with the links that edits follow."""

    nodes: Sequence[Node]

    @cached_property
    def by_id(self) -> dict[int, Node]:
        return {node.node_id: node for node in self.nodes}

    @cached_property
    def children(self) -> dict[int | None, list[Node]]:
        """Children of each operator in host order; those of None are the outermost operators."""
        of_parent: dict[int | None, list[Node]] = {}
        for node in self.nodes:
            of_parent.setdefault(node.parent_id, []).append(node)
        return of_parent

    @cached_property
    def device(self) -> dict[int, list[Node]]:
        """Operators inside of each operator that make device calls, itself included."""
        below: dict[int, list[Node]] = {}
        for node, _ in mapped_nodes(self.nodes):
            outer: Node | None = node
            while outer is not None:
                below.setdefault(outer.node_id, []).append(node)
                outer = None if outer.parent_id is None else self.by_id[outer.parent_id]
        return below

    @cached_property
    def backward(self) -> dict[int, list[Node]]:
        """Holders of the backward pass of each operator that autograd recorded."""
        parents = (
            (node, self.by_id.get(-1 if node.parent_id is None else node.parent_id))
            for node in self.nodes
        )
        holders = [
            (node, parent) for node, parent in parents if parent is not None and _is_holder(parent)
        ]
        autograd = {node.node_id for node, _ in holders}
        owner = {
            node.attributes["sequence"]: node.node_id
            for node in self.nodes
            if "sequence" in node.attributes and node.node_id not in autograd
        }
        backward_of: dict[int, list[Node]] = {}
        for node, holder in holders:
            number = node.attributes.get("sequence")
            if number in owner:
                backward_of.setdefault(owner[number], []).append(holder)
        return backward_of

    def inside(self, node: Node) -> list[Node]:
        """An operator and all operators below it, in host order."""
        nodes = []
        waiting = [node]
        while waiting:
            nodes.append(waiting.pop())
            waiting += reversed(self.children.get(nodes[-1].node_id, []))
        return nodes

    def backward_of(self, node: Node) -> list[Node]:
        """Holders of the backward pass of an operator and of all operators below it, in host order."""
        held = [
            holder for each in self.inside(node) for holder in self.backward.get(each.node_id, [])
        ]
        return sorted(held, key=lambda holder: holder.order)

    def matching(self, pattern: str) -> list[Node]:
        """The outermost operators whose names match a pattern, outside of the backward pass if there are any."""
        matches = [node for node in self.nodes if fnmatchcase(node.name, pattern)]
        matches = [node for node in matches if node.phase != "backward"] or matches
        ids = {node.node_id for node in matches}
        return [node for node in matches if not any(parent in ids for parent in self._above(node))]

    def _above(self, node: Node) -> list[int]:
        parents: list[int] = []
        while node.parent_id is not None:
            parents.append(node.parent_id)
            node = self.by_id[node.parent_id]
        return parents


def _is_holder(node: Node) -> bool:
    return node.name.startswith(BACKWARD_NODE)


def _remove(graph: Graph, name: str) -> Graph:
    """Remove operators and their backward pass."""
    tree = _Tree(graph.nodes())
    matches = tree.matching(name)
    if not matches:
        raise InputError(f"edit.remove={name}: {_no_such(tree, [name])}")
    gone = [each for node in matches for each in (node, *tree.backward_of(node))]
    return rewrite(graph, {node.node_id: () for node in gone})


def _substitute(graph: Graph, name: str, by: str) -> Graph:
    """Put a chain of operators in place of another, and their gradients in place of its backward pass."""
    tree = _Tree(graph.nodes())
    names = by.split("+")
    matches = tree.matching(name)
    if not matches:
        raise InputError(f"edit.substitute={name}/{by}: {_no_such(tree, [name])}")
    for new in names:
        if find_row(new) in (None, UNKNOWN_ROW):
            raise InputError(
                f"edit.substitute={name}/{by}: {new} is not in the operator map:"
                f" {_near(new, rows())}"
            )
    placed: dict[int, Sequence[Node]] = {}
    for node in matches:
        result = node.outputs[:1]
        first = replace(node, name=names[0], outputs=result, attributes=dict(node.attributes))
        later = replace(first, inputs=result, values=(None,), attributes={})
        placed[node.node_id] = [first, *(replace(later, name=each) for each in names[1:])]
        backward = [
            Node(
                0,
                f"{each}_backward" if f"{each}_backward" in rows() else GRADIENT,
                inputs=result + node.inputs[:1],
                values=(None, None),
                outputs=node.inputs[:1],
            )
            for each in reversed(names)
        ]
        holders = tree.backward_of(node)
        old = [each for holder in holders for each in tree.device.get(holder.node_id, ())]
        old = old or [each for holder in holders for each in tree.children.get(holder.node_id, ())]
        placed |= {each.node_id: () for each in old[1:]} | {
            each.node_id: backward for each in old[:1]
        }
    return rewrite(graph, placed)


def _no_such(tree: _Tree, names: Sequence[str]) -> str:
    """Why an edit matches nothing, with the nearest operators of the step."""
    missing = next((name for name in names if not tree.matching(name)), names[0])
    return (
        f"the step has no operator {missing}: {_near(missing, [node.name for node in tree.nodes])}"
    )


def _near(name: str, names: Sequence[str] | Mapping[str, object]) -> str:
    """The names that are most similar, else those that occur most often."""
    own = [each for each in dict.fromkeys(names) if each.startswith("aten::")]
    close = get_close_matches(name.lower(), own, n=MAX_NAMED, cutoff=0.5)
    close += [
        each
        for each in own
        if name.strip("*:").rpartition("::")[2].lower() in each and each not in close
    ]
    if close:
        return f"near are {', '.join(close[:MAX_NAMED])}"
    usual = [each for each, _ in Counter(names).most_common() if each in set(own)]
    return did_you_mean(name, own) + f"it has {', '.join(usual[:MAX_NAMED])}"
