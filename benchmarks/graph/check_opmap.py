"""Checks the operator map against public traces: does every operator launch what the map says?

    python benchmarks/graph/check_opmap.py [DATASETS_DIR] [--write docs/operators.md]

Per trace: launches predicted from the map, given the trace's own operators and shapes, against those seen; precision
and recall of launches by coarse kind, operator by operator. Operators of TorchRec, FBGEMM and NCCL are counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kineto_graph import FAMILY_KINDS, FOREIGN, Seen, read
from rebuilt import SHAPES

from pipeline.graph.capture import observe
from pipeline.graph.device_calls import claimed, map_calls
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.table import Graph, Node, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import datasets_dir
from pipeline.report.markdown import markdown, rewrite

TRACES = {
    "rtx2080ti_linear": "RTX2080Ti", "rtx2080ti_resnet": "RTX2080Ti", "v100_ddp": "V100", "v100x8_dlrm": "V100",
    "a100x8_dlrm": "A100", "a100_alexnet": "A100", "a100_event_sync": "A100",
}  # fmt: skip
"""Folders of traces and the GPU each ran on."""

LIKE = {"loss": "elementwise", "memset": "elementwise", "index": "elementwise", "copy": "elementwise"}
"""Kinds that one kernel template serves: told apart by operator, not by kernel name."""


HEAVY = ("aten::mm", "aten::addmm", "aten::bmm", "aten::cudnn_convolution", "aten::convolution_backward")
"""Operators by whose number one tells whether an execution trace is of the same model."""


@dataclass
class Score:
    """Launches of one trace."""

    predicted: int = 0
    seen: int = 0
    matched: int = 0
    foreign: int = 0
    steps: int = 1

    @property
    def row(self) -> list[str]:
        """Cells of the table in docs/operators.md."""
        error = self.predicted / self.seen - 1 if self.seen else 0.0
        precision, recall = self.matched / max(1, self.predicted), self.matched / max(1, self.seen)
        return [f"{self.seen / self.steps:.0f}", f"{self.predicted / self.steps:.0f}", f"{100 * error:+.1f}",
                f"{100 * precision:.1f}", f"{100 * recall:.1f}", f"{self.foreign / self.steps:.0f}"]  # fmt: skip


def check(folder: Path, gpu_name: str) -> tuple[Score, dict[str, Counter[str]]]:
    """Score of one trace, and per operator how many launches were predicted, seen and matched."""
    seen = with_shapes(folder, read(sorted(folder.glob("*kineto.json.gz"))[0]))
    gpu = load_gpu(gpu_name)
    graph = Graph(write_nodes(seen.nodes))
    calls = map_calls(graph, gpu)
    expected: dict[int, Counter[str]] = defaultdict(Counter)
    for node_id, family, op in zip(calls["node_id"], calls["family"], calls["op"], strict=True):
        expected[int(node_id)][kind_of_call(family, op)] += 1
    owners = owners_of(seen.nodes)
    score, by_op = Score(steps=seen.steps), defaultdict(Counter)
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for node_id, kinds in seen.launched.items():
        owner = owners[node_id]
        if foreign(seen.nodes, node_id):
            score.foreign += sum(kinds.values())
        else:
            for kind, count in kinds.items():
                found[owner][LIKE.get(kind, kind)] += count
    names = {node.node_id: node.name for node in seen.nodes}
    for node_id in {*expected, *found}:
        if node_id in expected and foreign(seen.nodes, node_id):
            continue
        want, got = expected.get(node_id, Counter()), found.get(node_id, Counter())
        matched = match(want, got)
        score.predicted, score.seen = score.predicted + sum(want.values()), score.seen + sum(got.values())
        score.matched += matched
        by_op[names[node_id]].update(predicted=sum(want.values()), seen=sum(got.values()), matched=matched)
    return score, by_op


def kind_of_call(family: str, op: str) -> str:
    """Coarse kind of a predicted call; launches beside a library's main kernel are the library's."""
    kind = "library" if op == "auxiliary" else FAMILY_KINDS.get(family, "other")
    return LIKE.get(kind, kind)


def match(want: Counter[str], got: Counter[str]) -> int:
    """Launches of the same kind on both sides; a library's own may be its kernels or its memsets."""
    exact = want & got
    left, open_ = want - exact, got - exact
    libraries = min(left["library"], open_["matmul"] + open_["elementwise"])
    return sum(exact.values()) + libraries


def owners_of(nodes: Iterable[Node]) -> dict[int, int]:
    """For every node the node whose row in the map speaks for it: the nearest claimed one above, else itself."""
    nodes = list(nodes)
    claims = {node.node_id for node, _ in claimed(nodes)}
    owners: dict[int, int] = {}
    for node in nodes:
        above = owners.get(node.parent_id) if node.parent_id is not None else None
        owners[node.node_id] = node.node_id if node.node_id in claims or above is None or above not in claims else above
    return owners


def foreign(nodes: list[Node], node_id: int | None) -> bool:
    """Whether a node is, or lies under, an operator of TorchRec, FBGEMM or NCCL."""
    while node_id is not None:
        node = nodes[node_id]
        if FOREIGN.search(node.name):
            return True
        node_id = node.parent_id
    return False


def with_shapes(folder: Path, seen: Seen) -> Seen:
    """Take shapes, operator by operator in order, from the execution trace beside a Kineto trace, which knows strides
    and plain arguments too; where neither holds any, from the rebuilt model (`rebuilt.SHAPES`).

    A source is believed where it has each of the heavy operators as often as the trace, or a whole number of times less.
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
        if not any(counts[name] % len(found) for name, found in source.items() if name in HEAVY):
            _take_shapes(seen.nodes, {name: found for name, found in source.items() if not counts[name] % len(found)})
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
    """A captured convolution under the name and with the arguments that lie under it on CUDA."""
    if node.name != "aten::convolution":
        return node
    stride, padding, dilation, groups = (node.value(i) for i in (3, 4, 5, 8))
    return replace(node, name="aten::cudnn_convolution", inputs=node.inputs[:2],
                   values=(None, None, padding, stride, dilation, groups))  # fmt: skip


def report(datasets: Path, operators: int) -> tuple[str, list[str]]:
    """The table over all traces, and the operators that differ most."""
    total = Score()
    lines = []
    worst: list[str] = []
    for name, gpu in TRACES.items():
        score, by_op = check(datasets / "traces" / name, gpu)
        lines.append([name, *score.row])
        for key in ("predicted", "seen", "matched", "foreign"):
            setattr(total, key, getattr(total, key) + getattr(score, key))
        ranked = sorted(by_op.items(), key=lambda item: item[1]["matched"] - max(item[1]["predicted"], item[1]["seen"]))
        worst += [
            f"{name}: {op}: predicted {c['predicted']}, seen {c['seen']}, matched {c['matched']}"
            for op, c in ranked[:operators]
            if c["matched"] < max(c["predicted"], c["seen"])
        ]
    head = ("trace", "seen", "predicted", "error %", "precision %", "recall %", "apart")
    return markdown(head, [*lines, ["all launches of all traces", *total.row]]), worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--operators", type=int, default=12, help="operators to list per trace, worst first")
    parser.add_argument("--write", type=Path, help="document whose marked section takes the table")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    text, worst = report(args.datasets, args.operators)
    print(text + "\n\nOperators that differ, worst first:\n" + "\n".join(f"- {line}" for line in worst))
    if args.write:
        rewrite(args.write, {"check_opmap": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
