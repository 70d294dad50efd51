"""Compares the operator map with public traces: does every operator launch what the map says?

For each trace, the map predicts launches from the trace's operators and shapes. They are compared with the launches in
the trace, as precision and recall by coarse kind and operator. Operators of TorchRec, FBGEMM and NCCL are counted
separately.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.checks.kineto_operators import (
    FAMILY_KINDS,
    THIRD_PARTY,
    TracedOperators,
    read_operators,
)
from evaluation.workloads.rebuilt_models import SHAPES
from pipeline.graph.capture import observe
from pipeline.graph.device_calls import map_calls, mapped_nodes
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.table import Graph, Node, write_nodes
from pipeline.hardware.find_gpu import load_gpu

TRACES = {
    "rtx2080ti_linear": "RTX2080Ti", "rtx2080ti_resnet": "RTX2080Ti", "v100_ddp": "V100",
    "v100x8_dlrm": "V100", "a100x8_dlrm": "A100", "a100_alexnet": "A100", "a100_event_sync": "A100",
}  # fmt: skip
"""Folders of traces and the GPU each ran on."""

SAME_TEMPLATE_KIND = {
    "loss": "elementwise",
    "memset": "elementwise",
    "index": "elementwise",
    "copy": "elementwise",
}
"""Kinds that share a kernel template with element-wise operators; the kernel name does not distinguish them."""


IDENTIFYING_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::cudnn_convolution",
    "aten::convolution_backward",
)
"""Operators whose counts show whether an execution trace belongs to the same model."""


@dataclass
class Score:
    """Numbers of launches of one trace: predicted, seen, and matched."""

    predicted: int = 0
    seen: int = 0
    matched: int = 0
    third_party: int = 0
    steps: int = 1

    @property
    def row(self) -> list[str]:
        """Cells of the table in docs/operators.md."""
        error = self.predicted / self.seen - 1 if self.seen else 0.0
        precision, recall = self.matched / max(1, self.predicted), self.matched / max(1, self.seen)
        return [
            f"{self.seen / self.steps:.0f}",
            f"{self.predicted / self.steps:.0f}",
            f"{100 * error:+.1f}",
            f"{100 * precision:.1f}",
            f"{100 * recall:.1f}",
            f"{self.third_party / self.steps:.0f}",
        ]


def check(folder: Path, gpu_name: str) -> tuple[Score, dict[str, Counter[str]]]:
    """Score of one trace; for each operator, the numbers of launches predicted, seen and matched."""
    seen = with_shapes(folder, read_operators(sorted(folder.glob("*kineto.json.gz"))[0]))
    gpu = load_gpu(gpu_name)
    graph = Graph(write_nodes(seen.nodes))
    calls = map_calls(graph, gpu)
    expected: dict[int, Counter[str]] = defaultdict(Counter)
    for node_id, family, op in zip(calls["node_id"], calls["family"], calls["op"], strict=True):
        expected[int(node_id)][kind_of_call(family, op)] += 1
    owners = owners_of(seen.nodes)
    score = Score(steps=seen.steps)
    by_op: dict[str, Counter[str]] = defaultdict(Counter)
    launched_kinds: dict[int, Counter[str]] = defaultdict(Counter)
    for node_id, kinds in seen.launched.items():
        owner = owners[node_id]
        if third_party(seen.nodes, node_id):
            score.third_party += sum(kinds.values())
        else:
            for kind, count in kinds.items():
                launched_kinds[owner][SAME_TEMPLATE_KIND.get(kind, kind)] += count
    names = {node.node_id: node.name for node in seen.nodes}
    for node_id in {*expected, *launched_kinds}:
        if node_id in expected and third_party(seen.nodes, node_id):
            continue
        want, got = expected.get(node_id, Counter()), launched_kinds.get(node_id, Counter())
        matched = match(want, got)
        score.predicted, score.seen = (
            score.predicted + sum(want.values()),
            score.seen + sum(got.values()),
        )
        score.matched += matched
        by_op[names[node_id]].update(
            predicted=sum(want.values()), seen=sum(got.values()), matched=matched
        )
    return score, by_op


def kind_of_call(family: str, op: str) -> str:
    """Coarse kind of a predicted call. Auxiliary launches of a library's main kernel have the kind `library`."""
    kind = "library" if op == "auxiliary" else FAMILY_KINDS.get(family, "other")
    return SAME_TEMPLATE_KIND.get(kind, kind)


def match(want: Counter[str], got: Counter[str]) -> int:
    """Number of launches of the same kind on both sides. Launches of kind `library` match kernels or memsets."""
    exact = want & got
    left, open_ = want - exact, got - exact
    libraries = min(left["library"], open_["matmul"] + open_["elementwise"])
    return sum(exact.values()) + libraries


def owners_of(nodes: Iterable[Node]) -> dict[int, int]:
    """Map each node to the node whose map row covers it: its nearest covered ancestor, or itself."""
    nodes = list(nodes)
    claims = {node.node_id for node, _ in mapped_nodes(nodes)}
    owners: dict[int, int] = {}
    for node in nodes:
        above = owners.get(node.parent_id) if node.parent_id is not None else None
        owners[node.node_id] = (
            node.node_id
            if node.node_id in claims or above is None or above not in claims
            else above
        )
    return owners


def third_party(nodes: list[Node], node_id: int | None) -> bool:
    """Whether a node is an operator of TorchRec, FBGEMM or NCCL, or is nested in one."""
    while node_id is not None:
        node = nodes[node_id]
        if THIRD_PARTY.search(node.name):
            return True
        node_id = node.parent_id
    return False


def with_shapes(folder: Path, seen: TracedOperators) -> TracedOperators:
    """Copy shapes to the operators of a Kineto trace, in order, from the first usable source.

    The first source is the execution trace beside it, which also has strides and plain arguments. The second is the
    rebuilt model (`rebuilt_models.SHAPES`), if the trace has no shapes. A source is usable if the trace has each of the
    identifying operators an integer number of times as often as the source.
    """
    traces = sorted(folder.glob("*execution_trace.json.gz"))
    sources = [import_execution_trace(trace).nodes() for trace in traces[:1]]
    if folder.name in SHAPES and not any(node.tensors() for node in seen.nodes):
        step = SHAPES[folder.name]()
        sources.append([_as_recorded(node) for node in observe(step, False, step.config)[0]])
    counts = Counter(node.name for node in seen.nodes)
    for nodes in sources:
        source: dict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            source[node.name].append(node)
        if not any(
            counts[name] % len(found)
            for name, found in source.items()
            if name in IDENTIFYING_OPERATORS
        ):
            _take_shapes(
                seen.nodes,
                {name: found for name, found in source.items() if not counts[name] % len(found)},
            )
            break
    return seen


def _take_shapes(nodes: list[Node], source: Mapping[str, list[Node]]) -> None:
    place: Counter[str] = Counter()
    for node in nodes:
        options = source.get(node.name)
        if options:
            chosen = options[place[node.name] % len(options)]
            place[node.name] += 1
            node.inputs, node.values, node.outputs = chosen.inputs, chosen.values, chosen.outputs


def _as_recorded(node: Node) -> Node:
    """A captured convolution, with the operator name and the arguments that CUDA records below it."""
    if node.name != "aten::convolution":
        return node
    stride, padding, dilation, groups = (node.value(i) for i in (3, 4, 5, 8))
    return replace(
        node,
        name="aten::cudnn_convolution",
        inputs=node.inputs[:2],
        values=(None, None, padding, stride, dilation, groups),
    )
