"""Converts a graph to the device calls of its operators (schema `calls`), one row per call in launch order.

The map from operators to calls is data (`opmap.yaml`). This module walks the operator tree:

* An operator with a row in the map makes the calls of that row. Its children are skipped.
* Any other operator is the sum of its children.

Each row of the result has the id of the operator that makes the call. Its top-level operator is found by following
`parent_id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import ConfigError
from pipeline.families import FAMILIES
from pipeline.families.family import Law
from pipeline.graph.opmap import Row, find_row
from pipeline.graph.sizes import SIZES
from pipeline.graph.sizes.vocabulary import Work
from pipeline.graph.table import Graph, Node
from pipeline.hardware.rank_layout import COMPUTING_STREAM, stream_of
from pipeline.hardware.spec import GpuSpec, has_bf16, has_tf32, refuses_bf16
from pipeline.schemas import DIMS

DEFAULT_SMS, DEFAULT_CAPABILITY = 80, 7.0
"""SM count and compute capability (V100's) that are used if no GPU is given."""

PRODUCTS = frozenset(name for name, family in FAMILIES.items() if family.law is Law.COMPUTE)
"""Families that multiply matrices, or compute a layer by such products."""

WORK_COLUMNS = ("flops", "bytes_read", "bytes_written")


def map_calls(graph: Graph, gpu: GpuSpec | None = None, device: str = "cuda") -> pd.DataFrame:
    """List the device calls of a graph's operators.

    Args:
        graph: captured, or imported from an execution trace.
        gpu: the target GPU, for choices that depend on the GPU (TF32). None: no such choice is made.
        device: "cuda", or "cpu" if the host computes: then every operator that computes is one blocking call.

    Returns:
        Table of the `calls` schema. Operators without a row in the map have family `other`, op `unknown`. The table is the same
        object for GPUs that launch the same kernels, while no other graph is mapped.

    Raises:
        ConfigError: the step multiplies matrices in bf16, and PyTorch refuses this on the GPU.
    """
    if (
        not _LAST_MAPPED
        or _LAST_MAPPED[0].graph is not graph.table
        or _LAST_MAPPED[0].device != device
    ):
        _LAST_MAPPED[:] = [_Mapped(graph, device)]
    mapped = _LAST_MAPPED[0]
    tf32, bf16 = gpu is None or has_tf32(gpu), gpu is None or device == "cpu" or has_bf16(gpu)
    sms, capability = (
        (gpu.sms, gpu.compute_capability) if gpu else (DEFAULT_SMS, DEFAULT_CAPABILITY)
    )
    target = {"sms": sms, "capability": capability, "native_bf16": bf16}
    records = [_records(node, row, device, tf32, target) for node, row in mapped.distinct]
    multiplies = any(
        call["dtype"] == "bf16" and call["family"] in PRODUCTS for call in chain(*records)
    )
    if gpu is not None and device == "cuda" and refuses_bf16(gpu) and multiplies:
        raise ConfigError(
            f"bf16 on {gpu.name}: PyTorch refuses it, because cuBLAS has no bf16 products before"
            " Volta; take model.dtype=fp32 or fp16"
        )
    return mapped.calls(records)


class _Mapped:
    """The operators of a graph that make calls, and the tables of calls on the GPUs for which it was mapped."""

    def __init__(self, graph: Graph, device: str) -> None:
        self.graph, self.device = graph.table, device
        nodes = [
            pair for pair in mapped_nodes(graph.nodes()) if device != "cuda" or not pair[0].on_host
        ]
        signatures = [_signature(node) for node, _ in nodes]
        of_signature: dict[Any, tuple[Node, Row]] = {}
        for signature, pair in zip(signatures, nodes, strict=True):
            of_signature.setdefault(signature, pair)
        self.distinct = list(of_signature.values())
        """Operators of which no two make the same calls, with their rows of the map."""
        index = {signature: number for number, signature in enumerate(of_signature)}
        self.operators = [
            (node, index[signature]) for (node, _), signature in zip(nodes, signatures, strict=True)
        ]
        """All operators in host order, with the index in `distinct` of the one that makes the same calls."""
        self._tables: list[tuple[Sequence[object], pd.DataFrame]] = []

    def calls(self, records: Sequence[Sequence[dict[str, Any]]]) -> pd.DataFrame:
        """The table of calls, from those of each of `distinct`, without the columns that a call does not have.

        What the backward pass computes again runs the kernels of the forward pass, and has its phase.
        """
        for earlier, table in self._tables:
            if earlier == records:
                return table
        launches = [
            (node, index, call)
            for node, index in self.operators
            for call in range(len(records[index]))
        ]
        first = np.cumsum([0, *map(len, records)])
        table = calls_table([*chain(*records)]).iloc[
            [first[index] + call for _, index, call in launches]
        ]
        table = table.reset_index(drop=True).assign(
            node_id=np.array([node.node_id for node, _, _ in launches], np.int64),
            phase=[
                "forward" if node.attributes.get("recomputed") else node.phase
                for node, _, _ in launches
            ],
        )
        self._tables.append((records, table))
        return table


_LAST_MAPPED: list[_Mapped] = []
"""The graph that was mapped last; none at first. A grid maps it for one GPU after another."""


def unknown_operators(graph: Graph, calls: pd.DataFrame) -> dict[str, int]:
    """Names of operators that the map does not cover, with their number of occurrences in the graph."""
    lost = calls.loc[(calls["family"] == "other") & (calls["op"] == "unknown"), "node_id"]
    names = graph.table.set_index("node_id").loc[lost, "name"]
    return {str(name): int(count) for name, count in names.value_counts().items()}


def mapped_nodes(nodes: Sequence[Node]) -> Iterator[tuple[Node, Row]]:
    """Yield the nodes that make calls, with their rows of the map.

    The children of a node with a row are skipped, unless the row sets `descend`.
    """
    parents = {node.parent_id for node in nodes}
    names = {node.node_id: node.name for node in nodes}
    wrappers = {
        node.parent_id
        for node in nodes
        if node.parent_id is not None and names.get(node.parent_id) == node.name
    }
    closed: set[int] = set()
    for node in nodes:
        if node.parent_id in closed:
            closed.add(node.node_id)
            continue
        if node.node_id in wrappers:  # an overload that calls another overload of the same name
            continue
        if (
            node.name == "aten::where" and len(node.inputs) == 1
        ):  # with a condition only, it calls `nonzero` as a child
            continue
        row = find_row(f"{node.name} (sparse)" if "sparse_rows" in node.attributes else node.name)
        if row is None or (row.leaf and node.node_id in parents):
            continue
        if not row.descend:
            closed.add(node.node_id)
        calls = tuple(
            rule for rule in row.calls if not (rule.options.get("leaf") and node.node_id in parents)
        )
        if calls:
            yield node, row if len(calls) == len(row.calls) else replace(row, calls=calls)


def _signature(node: Node) -> Any:
    return (
        node.name,
        node.inputs,
        repr(node.values),
        node.outputs,
        repr(node.attributes.get("tf32")),
        json.dumps({k: v for k, v in node.attributes.items() if k != "sequence"}, sort_keys=True),
    )


def _records(
    node: Node, row: Row, device: str, tf32: bool, target: dict[str, Any]
) -> list[dict[str, Any]]:
    """The calls of one operator; `target` has the fields of `Rule` that describe the GPU."""
    found: list[dict[str, Any]] = []
    for rule in row.calls:
        try:
            result = SIZES[rule.size](node, replace(rule, **target))
        except (
            LookupError,
            ValueError,
            ZeroDivisionError,
        ):  # the trace lacks shapes: keep the calls, with unknown size
            result = [Work({}, 0.0, 0.0, 0.0, "fp32")] * int(rule.options.get("launches", 1))
        works = [] if result is None else [result] if isinstance(result, Work) else result
        for work in works:
            dtype = "fp32" if work.dtype == "tf32" and not tf32 else work.dtype
            axis = work.attributes.get("axis", "") if rule.family == "collective" else None
            of_axis = COMPUTING_STREAM if axis is None else stream_of(axis)
            found.append(
                {
                    "api": work.api or rule.api,
                    "family": work.family or rule.family,
                    "op": work.op or rule.op,
                    "stream": node.attributes.get("stream") or of_axis,
                    "dtype": dtype,
                    "flops": float(work.flops),
                    "bytes_read": float(work.read),
                    "bytes_written": float(work.written),
                    "blocking": work.blocking,
                    "evidence": rule.evidence,
                    "attributes": (
                        json.dumps(work.attributes, separators=(",", ":"))
                        if work.attributes
                        else None
                    ),
                    **work.dims,
                }
            )
    apart = device != "cpu" or any(
        call["family"] == "collective" for call in found
    )  # gloo has threads of its own
    calls = found if apart or not found else [_merged_on_cpu(found, row.calls[0].family)]
    return [
        {"node_id": node.node_id, "call": i, "phase": node.phase, **call}
        for i, call in enumerate(calls)
    ]


def _merged_on_cpu(records: list[dict[str, Any]], family: str) -> dict[str, Any]:
    """Merge all calls of an operator into one blocking call with the sum of their FLOPs and bytes.

    Its other fields are those of the largest call in the operator's own family.
    """
    own = [record for record in records if record["family"] == family] or records
    main = max(
        own, key=lambda record: record["bytes_read"] + record["bytes_written"] + record["flops"]
    )
    sums = {name: sum(record[name] for record in records) for name in WORK_COLUMNS}
    return {**main, **sums, "api": "cpu", "blocking": True}


_TYPES: dict[str, str] = {
    "node_id": "int64", "call": "int64", "api": "", "family": "", "op": "", "phase": "",
    "stream": "int64", "dtype": "", **dict.fromkeys(WORK_COLUMNS, "float64"), "blocking": "bool",
    **dict.fromkeys(DIMS, "Int64"), "attributes": "object", "kernel_name": "object",
    "measured_us": "float64", "evidence": "",
}  # fmt: skip
"""Columns of a table of calls and their types; empty: text."""


def calls_table(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The table of calls, made column by column: much faster than from a list of rows."""
    columns = {name: [record.get(name) for record in records] for name in _TYPES}
    return pd.DataFrame(
        {name: pd.Series(values, dtype=_TYPES[name] or None) for name, values in columns.items()}
    )


WAIT, RECORD, HOLD = "c10d::wait", "c10d::record", "c10d::hold"
"""Operators of a graph that make a stream wait for collectives, record an event on a stream, and let one wait for an event."""


def stream_waits(graph: pd.DataFrame, calls: pd.DataFrame) -> dict[int, tuple[int, ...]]:
    """Rows of `calls` that wait for rows of another stream, where some are collectives.

    - A collective waits for what was launched before it on the stream from which it starts: NCCL's stream waits for its event.
    - The first call after a wait waits for the last collective that the wait names. Earlier ones have ended before it.
    - The first call on a stream that holds for an event waits for the last call before the event was recorded.

    Args:
        graph: `graph` table in host order.
        calls: `calls` table in launch order.
    """
    stream_of_call = calls["stream"].to_numpy(np.int64)
    rows_of = calls.groupby("node_id", sort=False).indices
    ordered = graph.sort_values("order", kind="stable")
    last: dict[int, int] = {}
    events: dict[int, int] = {}
    row_of: dict[int, int] = {}
    awaited: dict[int, list[int]] = {}
    waits: dict[int, tuple[int, ...]] = {}
    named = ordered["name"].str.startswith(("nccl:", "c10d::")) | (
        ordered["attributes"].str.contains('"stream"', regex=False)
    )
    columns = ordered["node_id"], ordered["name"], ordered["attributes"], named
    for node, name, text, says in zip(*(column.tolist() for column in columns), strict=True):
        said = json.loads(text) if says else {}
        now = said.get("stream", COMPUTING_STREAM)
        if name == RECORD:
            events[said["event"]] = last.get(now, -1)
        elif name == HOLD:
            awaited.setdefault(now, []).append(events.get(said["event"], -1))
        elif name == WAIT:
            awaited.setdefault(now, []).append(row_of.get(said["awaits"], -1))
        for row in rows_of.get(node, ()):
            on = int(stream_of_call[row])
            starts = [last.get(now, -1)] if on != now else []
            needs = [other for other in awaited.pop(on, []) + starts if other >= 0]
            if needs := [other for other in needs if stream_of_call[other] != on]:
                waits[int(row)] = tuple(dict.fromkeys(needs))
            last[on] = int(row)
            row_of[said.get("collective", -1)] = int(row)
    return waits
