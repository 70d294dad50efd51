"""Reads PyTorch execution traces (schemas 1.0.1 and 1.1.x-chakra) into the graph table.

Nodes are sorted by `rf_id`, the order in which the host entered them over all threads; `id` has no order. Annotations
(Python's `record_function`, the profiler's own roots) are not operators. They are removed, their children move up one
level, and their names give the phases.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import TraceError
from pipeline.graph.table import (
    BACKWARD_THREAD,
    FORWARD_THREAD,
    Argument,
    Graph,
    Node,
    Tensor,
    write_nodes,
)

USER_SCOPE = 7
MODULE_MARK = re.compile(r"^## module (.*) ##$")
"""Annotation that names the module that runs from here on, with no name outside modules (`pipeline.graph.capture`)."""
NAMES_OUTSIDE = {"data": "inputs", "loss": "loss", "backward": "loss", "optimizer": "optimizer"}
"""What operators outside modules belong to, by phase."""
LAST = -1
"""Stands for the sequence number of the autograd node before."""
AUTOGRAD = "autograd::engine::evaluate_function"
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
        nodes = [_on_device(node) for node in nodes]
    nodes = [describe_collective(node) for node in nodes]
    return Graph(write_nodes(nodes), device="cuda" if accelerator else "cpu")


def describe_collective(node: Node) -> Node:
    """Name a recorded collective, or a wait for collectives (`pipeline.as_on_cuda.recording_group`); others stay.

    Attributes: `collective`, its number, `ranks`, and the `axis` of its group; or `awaits`, the number of the last collective
    that is awaited.
    """
    if node.name == "steptime_comm::wait":
        return replace(
            node, name="c10d::wait", values=(), attributes={"awaits": max(node.values[0])}
        )
    if node.name != "steptime_comm::issue":
        return node
    op, number, ranks, axis = node.values[-4:]
    attributes = {"collective": number, "ranks": ranks, "axis": axis}
    return replace(node, name=f"nccl:{op}", values=(), attributes=attributes)


def read_execution_trace(path: str | Path) -> list[dict[str, Any]]:
    """Read the raw nodes of an execution trace, with the same keys for all schema versions."""
    path = Path(path)
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        raw = [flatten(node) for node in _nodes(data)]
        if not raw:
            raise ValueError("it has no operators")
    except RecursionError:
        raise TraceError(f"{path}: nested too deeply; this is not an execution trace") from None
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TraceError(
            f"{path}: not a complete execution trace ({str(error).splitlines()[0]})"
        ) from None
    except (KeyError, TypeError, AttributeError):
        raise TraceError(
            f"{path}: key `nodes` is missing, which PyTorch's ExecutionTraceObserver writes"
        ) from None
    _check(path, raw)
    return raw


_FIELDS = {
    "id": int,
    "rf_id": int,
    "parent": int,
    "scope": int,
    "tid": int,
    "name": str,
    "inputs": dict,
    "outputs": dict,
}
"""Keys that every node has, with their types. Each value of `inputs` and `outputs` is a list itself."""


class _NodeError(Exception):
    """A node has content that no operator can have."""


def _check(path: Path, raw: Sequence[Mapping[str, Any]]) -> None:
    """Check that every node has the required keys and that no id occurs twice."""
    for place, node in enumerate(raw):
        for key, kind in _FIELDS.items():
            if type(node.get(key)) is not kind or (
                kind is int and not -(2**63) <= node[key] < 2**64
            ):
                raise TraceError(
                    f"{path}: nodes[{place}] has no {key}, which PyTorch's ExecutionTraceObserver"
                    " writes"
                )
        sides = [
            node[side].get(key)
            for side in ("inputs", "outputs")
            for key in ("values", "shapes", "types")
        ]
        if not all(isinstance(side, list) for side in sides):
            raise TraceError(
                f"{path}: nodes[{place}] has inputs or outputs that are not lists of values, shapes"
                " and types"
            )
    ids = [node["id"] for node in raw]
    if len(set(ids)) < len(ids):
        raise TraceError(
            f"{path}: several nodes have the same id; give the execution trace of one process"
        )


NODES, NODE_END = b'"nodes": [', b"\n      },\n"
"""Bytes that PyTorch 2.x writes before the first node, and between two nodes."""


def _nodes(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a trace; a file in PyTorch 2.x's layout is parsed node by node, which halves the memory."""
    start = data.find(NODES)
    pieces = data.count(NODE_END)
    if start < 0 or pieces < 1000:
        yield from parse(data)["nodes"]
        return
    at = start + len(NODES)
    for _ in range(pieces):
        end = data.index(NODE_END, at)
        yield parse(data[at:end] + b"}")
        at = end + len(NODE_END)
    yield from parse(b"{" + NODES + data[at:].rstrip())["nodes"]


def parse(data: bytes) -> Any:
    """Parse a JSON file; names may contain control characters and invalid UTF-8, which orjson does not accept."""
    try:
        import orjson

        return orjson.loads(data)
    except (ImportError, ValueError):
        return json.loads(data.decode("utf-8", "replace"), strict=False)


def build_nodes(raw: Sequence[Mapping[str, Any]], sequential: bool = False) -> list[Node]:
    """Build the operators in host order; annotations are removed from the tree and give their children a phase.

    `sequential`: a phase lasts until the annotation of the next phase. This is for steps under a dispatch mode, where
    nodes are not nested correctly.
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
            current = _named_phase(raw_node["name"]) or current
            if mark := MODULE_MARK.match(raw_node["name"]):
                module = mark[1] or None
            continue
        threads.setdefault(raw_node["tid"], len(threads))
        parent, phase = _place(raw_node, by_id, kept)
        phase = current if sequential else phase
        node = _node(raw_node, parent, len(kept))
        under = kept[parent] if parent is not None else None
        backward = node.name.startswith(AUTOGRAD) or (
            under is not None and under.thread == BACKWARD_THREAD
        )
        node.thread = BACKWARD_THREAD if backward or threads[raw_node["tid"]] else FORWARD_THREAD
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
        reduces = node.name.startswith("torch.distributed")  # the end of an exchange of gradients
        node.module = "communication" if reduces else NAMES_OUTSIDE.get(node.phase)
    if sequence >= 0:
        module_of[sequence] = node.module


def flatten(node: dict[str, Any]) -> dict[str, Any]:
    """Convert one node to the keys id, parent, name, rf_id, scope, tid, seq_id, op_schema, inputs and outputs."""
    if "attrs" not in node:  # schema 1.0.1
        sides = {
            side: {
                "values": node[side],
                "shapes": node[f"{side[:-1]}_shapes"],
                "types": node[f"{side[:-1]}_types"],
            }
            for side in ("inputs", "outputs")
        }
        return {**node, **sides}
    for item in node.pop("attrs"):  # in place, because traces of large models have 100,000 nodes
        node.setdefault(item["name"], item["value"])
    node["parent"] = node.pop("ctrl_deps")
    return node


def _place(
    raw: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]], kept: Mapping[int, Node]
) -> tuple[int | None, str | None]:
    """Find the nearest operator above a node, and the phase that the annotations between them name."""
    parent, phase = by_id.get(raw["parent"]), None
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
    types, shapes, contents = side["types"], side["shapes"], side["values"]
    strides = side.get("strides") or [None] * len(types)
    arguments: list[Argument] = []
    values: list[Any] = []
    for i, kind in enumerate(types):
        shape = shapes[i] if i < len(shapes) else []
        stride = strides[i] if i < len(strides) else None
        argument = _argument(kind, shape, contents[i] if i < len(contents) else None, stride)
        arguments.append(argument)
        plain = (
            None
            if argument is not None or "Tensor(" in kind
            else contents[i]
            if i < len(contents)
            else None
        )
        values.append(_plain(plain))
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
    return Tensor(tuple(shape), DTYPES.get(name, name), known, host)


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


def _on_device(node: Node) -> Node:
    def move(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            (
                Tensor(a.shape, a.dtype, a.strides)
                if isinstance(a, Tensor)
                else None
                if a is None
                else tuple(Tensor(t.shape, t.dtype, t.strides) for t in a)
            )
            for a in arguments
        )

    node.inputs, node.outputs = move(node.inputs), move(node.outputs)
    return node
