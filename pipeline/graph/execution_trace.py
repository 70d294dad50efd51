"""Reads PyTorch execution traces (schemas 1.0.1 and 1.1.x-chakra) into the graph table.

Nodes are sorted by `rf_id`, the order in which the host entered them over all threads; `id` has no order. Annotations
(Python's `record_function`, the profiler's own roots) are not operators. They are removed, their children move up one
level, and their names give the phases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.errors import TraceError
from pipeline.graph.execution_trace_file import read_execution_trace
from pipeline.graph.table import (
    BACKWARD_THREAD,
    FORWARD_THREAD,
    Argument,
    Graph,
    Node,
    Tensor,
    replaced_tensors,
    write_nodes,
)
from pipeline.hardware.rank_layout import COMMUNICATION, COMPUTING_STREAM, FIRST_MARKED_STREAM

USER_SCOPE = 7
MODULE_MARK = re.compile(r"^## module (.*) ##$")
"""Annotation that names the module that runs from here on, with no name outside modules (`pipeline.graph.capture`)."""
COMPILED = re.compile(r"(.*)@(\d+)")
"""The name in a mark within a call of compiled code: the module, and the number of the call."""
NAMES_OUTSIDE = {"data": "inputs", "loss": "loss", "backward": "loss", "optimizer": "optimizer"}
"""What operators outside modules belong to, by phase."""
ENDS = ("torch.distributed", "steptime_comm::wait", "aten::as_strided")
"""Beginnings of the names of operators that end an exchange of gradients: outside modules, behind the backward pass."""
ACCUMULATES, ADDITIONS = "torch::autograd::AccumulateGrad", ("aten::add", "aten::add_")
"""Autograd's function that keeps a gradient, and how it adds one to it."""
REDUCER = "torch::distributed::reducer"
"""Beginning of the names of what the reducer of `DistributedDataParallel` does with a gradient."""
BETWEEN = ("data", "optimizer")
"""Phases in which no module runs."""
GRADIENTS_DELETED = "Optimizer.zero_grad"
"""Beginning of an optimizer's annotation which says nothing of what follows it."""
LAST = -1
"""Stands for the sequence number of the autograd node before."""
AUTOGRAD = "autograd::engine::evaluate_function"
MARKS = {f"steptime_comm::{name}": f"c10d::{name}" for name in ("stream", "record", "hold")}
"""Marks of streams and events (`pipeline.as_on_cuda.marked_streams`) -> their names in a graph."""
TRANSPARENT_NODES = ("PythonDispatchMode", "PythonSubclass", "PythonTLSSnapshot")
"""Names of nodes that Python's dispatch modes add around operators."""

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    **{
        f"c10::Float8_{kind}": "fp8"
        for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    },
}
"""Type names of tensors in execution traces (and in Kineto's traces) -> dtype names of this project."""

PHASES = (
    (re.compile(r"Optimizer\.(step|zero_grad)#|^## (optimizer|zero_grad) ##"), "optimizer"),
    (
        re.compile(r"^## (data|copy_batch_to_gpu|wait_for_batch) ##|^enumerate\(DataLoader\)"),
        "data",
    ),
    (re.compile(r"^## loss ##"), "loss"),
    (re.compile(r"^## backward ##"), "backward"),
    (re.compile(r"^## forward ##"), "forward"),
)
"""Annotations that name a phase: PyTorch's for optimizers, and TorchRec's for the rest.

The steps of this project also use TorchRec's annotations.
"""


def import_execution_trace(path: str | Path) -> Graph:
    """Read the graph of a trace that `torch.profiler.ExecutionTraceObserver` wrote (.json or .json.gz).

    Raises:
        TraceError: the file is missing, truncated, or not an execution trace.
    """
    raw = read_execution_trace(path)
    try:
        nodes = build_nodes(raw)
    except _NodeError as error:
        raise TraceError(f"{path}: {error}") from None
    accelerator = any(
        _is_on_accelerator(value)
        for node in raw
        for side in ("inputs", "outputs")
        for value in node[side]["values"]
    )
    if not accelerator:  # the trace of a CPU run: host memory is device memory
        for node in nodes:
            node.inputs = replaced_tensors(node.inputs, _on_device)
            node.outputs = replaced_tensors(node.outputs, _on_device)
    return Graph(write_nodes(nodes), device="cuda" if accelerator else "cpu")


def describe_collective(node: Node) -> Node:
    """Name a recorded collective, or a wait for collectives (`pipeline.as_on_cuda.recording_group`); others stay.

    Attributes: `collective`, its number, `ranks`, and the `axis` of its group; or `awaits`, the number of the last collective
    that is awaited; or `event` and `stream` of a mark.
    """
    if node.name == "steptime_comm::wait":
        return replace(
            node, name="c10d::wait", values=(), attributes={"awaits": max(node.values[0])}
        )
    if node.name in MARKS:
        names = ("event", "stream") if len(node.values) > 1 else ("stream",)
        attributes = dict(zip(names, node.values, strict=True))
        return replace(node, name=MARKS[node.name], values=(), attributes=attributes)
    if node.name != "steptime_comm::issue":
        return node
    op, number, ranks, axis = node.values[-4:]
    attributes = {"collective": number, "ranks": ranks, "axis": axis}
    return replace(node, name=f"nccl:{op}", values=(), attributes=attributes)


def on_streams(nodes: Sequence[Node]) -> list[Node]:
    """Write the stream of each operator beside the computing one into its attributes, in place of the marks that switch streams.

    Streams and events are numbered in the order in which they appear.
    """
    streams: dict[int, int] = {}
    events: dict[int, int] = {}

    def number(marked: int) -> int:
        return marked and streams.setdefault(marked, FIRST_MARKED_STREAM + len(streams))

    now, kept = COMPUTING_STREAM, list[Node]()
    for node in nodes:
        if node.name == "c10d::stream":
            now = number(node.attributes["stream"])
            continue
        if node.name in MARKS.values():
            event, stream = node.attributes["event"], number(node.attributes["stream"])
            node.attributes = {"event": events.setdefault(event, len(events)), "stream": stream}
        elif now:
            node.attributes["stream"] = now
        kept.append(node)
    return kept


class _NodeError(Exception):
    """A node has content that no operator can have."""


def build_nodes(raw: Sequence[Mapping[str, Any]], sequential: bool = False) -> list[Node]:
    """Build the operators in host order; annotations are removed from the tree and give their children a phase.

    `sequential`: a phase lasts until the annotation of the next phase, and a module that runs after the inputs or the optimizer
    begins a forward pass. This is for steps under a dispatch mode, where nodes are not nested correctly.
    """
    by_id = {node["id"]: node for node in raw}
    ordered = sorted((n for n in raw if n["rf_id"]), key=lambda node: int(node["rf_id"]))
    kept: dict[int, Node] = {}
    threads: dict[int, int] = {}
    current: str | None = None
    module: str | None = None
    module_of: dict[int, str | None] = {}
    for raw_node in ordered:
        if raw_node["scope"] == USER_SCOPE or raw_node["name"] in TRANSPARENT_NODES:
            if not raw_node["name"].startswith(GRADIENTS_DELETED):
                current = _named_phase(raw_node["name"]) or current
            if mark := MODULE_MARK.match(raw_node["name"]):
                module = mark[1] or None
                current = "forward" if module and current in BETWEEN else current
            continue
        threads.setdefault(raw_node["tid"], len(threads))
        parent, phase = _place(raw_node, by_id, kept)
        node = _node(raw_node, parent, len(kept))
        under = kept[parent] if parent is not None else None
        backward = node.name.startswith(AUTOGRAD) or (
            under is not None and under.thread == BACKWARD_THREAD
        )
        node.thread = BACKWARD_THREAD if backward or threads[raw_node["tid"]] else FORWARD_THREAD
        if sequential:
            phase = "backward" if backward else current
        node.phase = phase or (
            under.phase if under is not None else "backward" if node.thread else "forward"
        )
        _set_module(node, under, module, module_of)
        kept[node.node_id] = node
    return list(kept.values())


def _set_module(
    node: Node, under: Node | None, module: str | None, module_of: dict[int, str | None]
) -> None:
    """Set the module of an operator: the one that runs; in the backward pass, that of the forward operator.

    Args:
        node: the operator.
        under: the operator that it is part of.
        module: the module that runs.
        module_of: module of each sequence number of autograd so far; filled here. Several operators begin with the number of
            the node that the last of them makes.
    """
    sequence = node.attributes.get("sequence", -1)
    if module is not None:
        node.module = module
        if node.thread == BACKWARD_THREAD:
            node.attributes["recomputed"] = True
    elif node.name.startswith(
        AUTOGRAD
    ):  # what adds up a gradient has no number, and follows what computes it
        node.module = module_of.get(LAST)
    elif (
        under is not None and under.phase == node.phase
    ):  # an exception leaves PyTorch's recorder inside an operator
        if under.name.startswith(AUTOGRAD) and sequence in module_of:
            under.module = module_of[LAST] = module_of[sequence]
        node.module = under.module
    else:
        ends = node.phase == "backward" and node.name.startswith(ENDS)
        node.module = COMMUNICATION if ends else NAMES_OUTSIDE.get(node.phase)
    if sequence >= 0:
        module_of[sequence] = node.module


def in_compiled_calls(nodes: list[Node]) -> list[Node]:
    """The operators of a step; those in calls of compiled code get the number of the call (`compiled`) from the mark."""
    for node in nodes:
        if inside := COMPILED.fullmatch(node.module or ""):
            node.module = inside[1] or NAMES_OUTSIDE.get(node.phase)
            node.attributes = {**node.attributes, "compiled": int(inside[2])}
    return nodes


def hooks_apart(nodes: Sequence[Node]) -> list[Node]:
    """The operators of a step; where a gradient is added to another, what the reducer does with the sum is one of its own.

    Both are autograd's `AccumulateGrad`: host times are known of an addition, and of the reducer of `DistributedDataParallel`
    that copies a gradient and may exchange a bucket, not of both together.
    """
    by_id = {node.node_id: node for node in nodes}
    adding = {
        by_id[node.parent_id].parent_id
        for node in nodes
        if node.name in ADDITIONS
        and node.parent_id is not None
        and by_id[node.parent_id].name == ACCUMULATES
    }
    fresh, apart = count(1 + max(by_id, default=0)), list[Node]()
    hooks: dict[int | None, Node] = {}
    for node in nodes:
        above = node.parent_id
        if above in adding and above not in hooks and node.name.startswith(REDUCER):
            assert above is not None
            hooks[above] = replace(by_id[above], node_id=next(fresh), module=COMMUNICATION)
            apart.append(hooks[above])
        apart.append(replace(node, parent_id=hooks[above].node_id) if above in hooks else node)
    return apart


def _place(
    raw: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]], kept: Mapping[int, Node]
) -> tuple[int | None, str | None]:
    """Find the nearest operator above a node, and the phase that the annotations between them name."""
    parent = by_id.get(raw["parent"])
    phase = None
    steps = 0
    while parent is not None and parent["id"] not in kept:
        phase = phase or _named_phase(parent["name"])
        steps += 1
        if steps > len(by_id):
            raise _NodeError(f"node {raw['id']} is its own ancestor; the file is damaged")
        parent = by_id.get(parent["parent"]) if parent["parent"] != parent["id"] else None
    return (None if parent is None else int(parent["id"])), phase


@cache
def _named_phase(annotation: str) -> str | None:
    return next((name for pattern, name in PHASES if pattern.search(annotation)), None)


def _node(raw: Mapping[str, Any], parent: int | None, order: int) -> Node:
    try:
        return _described(raw, parent, order)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise _NodeError(
            f"node {raw['id']} ({raw['name']}) has invalid inputs, outputs or attributes"
        ) from None


def _described(raw: Mapping[str, Any], parent: int | None, order: int) -> Node:
    inputs, values = _arguments(raw["inputs"])
    outputs, _ = _arguments(raw["outputs"])
    attributes: dict[str, Any] = (
        {"schema": raw["op_schema"].split("(")[0]} if raw.get("op_schema") else {}
    )
    if raw.get("seq_id", -1) >= 0:
        attributes["sequence"] = raw["seq_id"]
    return Node(
        int(raw["id"]),
        raw["name"],
        parent,
        order,
        inputs=inputs,
        values=values,
        outputs=outputs,
        attributes=attributes,
        is_top_level=parent is None,
    )


def _arguments(side: Mapping[str, Any]) -> tuple[tuple[Argument, ...], tuple[Any, ...]]:
    types = side["types"]
    absent = [None] * len(types)
    shapes = [*side["shapes"], *([] for _ in types)]
    contents = [*side["values"], *absent]
    strides = [*(side.get("strides") or ()), *absent]
    arguments: list[Argument] = []
    values: list[Any] = []
    for kind, shape, content, stride in zip(types, shapes, contents, strides, strict=False):
        argument = _argument(kind, shape, content, stride)
        arguments.append(argument)
        plain = argument is None and "Tensor(" not in kind
        values.append(_plain(content) if plain else None)
    return tuple(arguments), tuple(values)


def _argument(kind: str, shape: Any, content: Any, stride: Any) -> Argument:
    if kind.startswith("Tensor("):
        return _tensor(kind, shape, content, stride)
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        inner = kind[len("GenericList[") : -1].split(",")
        strides = (
            stride
            if isinstance(stride, list) and len(stride) == len(inner)
            else [None] * len(inner)
        )
        found = [
            _tensor(*one)
            for one in zip(inner, shape, content, strides, strict=False)
            if one[0] != "None"
        ]
        return tuple(tensor for tensor in found if tensor is not None)
    return None


def _tensor(kind: str, shape: Any, content: Any, stride: Any) -> Tensor | None:
    name = kind[len("Tensor(") : -1]
    if "nullptr" in name:
        return None
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{shape} is not a shape")
    host = isinstance(content, list) and bool(content) and str(content[-1]).startswith("cpu")
    known = tuple(stride) if isinstance(stride, list) and len(stride) == len(shape) else None
    return Tensor(
        tuple(shape),
        DTYPES.get(name, name),
        known,
        host,
    )


def _plain(content: Any) -> Any:
    return (
        None
        if content == "<None>" or (isinstance(content, str) and len(content) > 200)
        else content
    )


def _is_on_accelerator(content: Any) -> bool:
    """Whether a value is a tensor on an accelerator, or a list of them: its description ends in the device's name."""
    if not isinstance(content, list) or not content:
        return False
    if isinstance(content[-1], str):
        return content[-1].startswith(("cuda", "meta", "xpu", "hip"))
    return any(_is_on_accelerator(item) for item in content[:4])


def _on_device(tensor: Tensor) -> Tensor:
    return replace(tensor, host=False)
