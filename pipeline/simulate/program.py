"""Builds programs (`pipeline.simulate.step_program`) of captured graphs, or of given items and actions, and looks up
host times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import TableError
from pipeline.graph.device_calls import COMMUNICATION_STREAM
from pipeline.overheads.overhead_model import (
    GLOBAL,
    LookedUp,
    OverheadModel,
    calls_signature,
    full_signature,
    switch_signature,
)
from pipeline.simulate.step_program import (
    DEFAULT_KERNEL_GAP_US,
    DEFAULT_LATENCY_US,
    DEFAULT_SYNC_RETURN_US,
    HOST_EVIDENCE,
    Items,
    Kind,
    Program,
    StepSequence,
)
from pipeline.trace.host_activity import CPU_API
from pipeline.trace.kineto_fields import SYNC_APIS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]


def step_sequence(graph: pd.DataFrame, calls: pd.DataFrame) -> StepSequence:
    """Items and actions of a captured graph.

    Args:
        graph: `graph` table: ops in host order, nested by `parent_id`.
        calls: `calls` table; row i is device call i of `simulate`'s kernel times. API names of waits
            (`cudaStreamSynchronize`) make the host wait and start nothing; API `cpu` runs on the calling thread.

    Raises:
        TableError: a call names a node that the graph does not have.
    """
    graph = graph.sort_values("order", kind="stable").reset_index(drop=True)
    node = graph["node_id"].to_numpy(np.int64)
    position = pd.Index(node)
    parent = position.get_indexer(graph["parent_id"].fillna(-1).astype(np.int64))
    top = graph["is_top_level"].to_numpy(bool)
    owner = np.where(top, np.arange(len(node)), parent)
    while True:  # to the outermost top-level op above each node, level by level
        above = np.where((owner >= 0) & ~top[owner], parent[owner], owner)
        if (above == owner).all():
            break
        owner = above
    call_node = position.get_indexer(calls["node_id"].to_numpy(np.int64))
    if (call_node < 0).any():
        missing = calls["node_id"].to_numpy()[call_node < 0][0]
        raise TableError(f"calls: node {missing} is not in the graph; map the calls again from this graph")
    call_owner = np.where(owner[call_node] >= 0, owner[call_node], call_node)
    is_item = top.copy()
    is_item[call_owner] = True
    rows = np.flatnonzero(is_item)
    item_of = np.full(len(node), -1, np.int64)
    item_of[rows] = np.arange(len(rows))
    order = np.argsort(item_of[call_owner], kind="stable")
    api = calls["api"].to_numpy(object)[order]
    sync = np.array([name in SYNC_APIS for name in api], bool)
    inside = np.bincount(owner[(owner >= 0) & ~top], minlength=len(node))[rows]
    action_item = item_of[call_owner][order]
    shapes = [str(text).replace(" ", "") for text in graph["input_shapes"].to_numpy(object)[rows]]
    apis: list[list[str]] = [[] for _ in rows]
    for item, name in zip(action_item.tolist(), api, strict=True):
        apis[item].append(str(name))
    items = Items(
        node=node[rows], name=graph["name"].to_numpy(object)[rows], thread=graph["thread"].to_numpy(np.int64)[rows],
        phase=graph["phase"].to_numpy(object)[rows], evidence=np.full(len(rows), "", object),
    )  # fmt: skip
    return StepSequence(
        items=items,
        signature=np.array([full_signature(*key) for key in zip(apis, shapes, inside.tolist(), strict=True)], object),
        previous=np.arange(-1, len(rows) - 1, dtype=np.int64),
        loading=np.zeros(len(rows), bool),
        action_item=action_item,
        api=api,
        sync=sync,
        stream=calls["stream"].to_numpy(np.int64)[order],
        blocking=calls["blocking"].to_numpy(bool)[order] | (api == CPU_API),
        call=order.astype(np.int64),
        waits=stream_waits(graph, calls),
    )


def assemble(
    sequence: StepSequence,
    overheads: OverheadModel,
    call_count: int,
    *,
    workload: str | None = None,
    waits: Mapping[int, Sequence[int]] | None = None,
    backlog_us: Mapping[int, float] | None = None,
) -> Program:
    """Program of items and actions, with host times from the statistics.

    Args:
        sequence: the items and actions.
        overheads: host statistics.
        call_count: number of device calls.
        workload: name of this workload: statistics that hold observations of it count as measured.
        waits: for each call the calls of other streams that it must await; those of the sequence if not given.
        backlog_us: per stream, the time until which it is busy with earlier work.
    """
    items, n_items = sequence.items, len(sequence.items.node)
    counts = np.bincount(sequence.action_item, minlength=n_items)
    rows_of = np.maximum(counts, 1)
    first_row = np.concatenate([[0], np.cumsum(rows_of)[:-1]]).astype(np.int64) if n_items else np.empty(0, np.int64)
    total = int(rows_of.sum())
    item = np.repeat(np.arange(n_items), rows_of)
    place = np.arange(total) - first_row[item]
    has_action = counts[item] > 0
    action = np.full(total, -1, np.int64)
    action[has_action] = np.arange(len(sequence.action_item))
    host = HostTimes(sequence, overheads, counts, workload)
    first, last = place == 0, place == rows_of[item] - 1
    lead, gap, api_us, tail = (np.zeros(total) for _ in range(4))
    lead[first] = host.gaps()
    host.inside(item, place, first, last, has_action, gap, tail)
    api_us[has_action] = host.apis()
    kind = np.full(total, int(Kind.HOST), np.int64)
    kind[has_action] = np.where(sequence.sync, Kind.SYNC, Kind.LAUNCH)
    streams, stream_code = np.unique(sequence.stream[sequence.stream >= 0], return_inverse=True)
    stream = np.full(total, -1, np.int64)
    known = np.flatnonzero(has_action)[sequence.stream >= 0]
    stream[known] = stream_code
    call = np.full(total, -1, np.int64)
    call[has_action] = np.where(sequence.sync, -1, sequence.call)
    blocking = np.zeros(total, bool)
    blocking[has_action] = sequence.blocking & ~sequence.sync
    latency, kernel_gap = _device_constants(sequence, overheads, total, has_action)
    offsets, awaited = _wait_lists(call, sequence.waits if waits is None else waits)
    shares, unmatched, per_item = host.evidence()
    busy = backlog_us or {}
    return Program(
        items=Items(items.node, items.name, items.thread, items.phase, per_item), item=item, kind=kind,
        thread=items.thread[item], previous=_previous_rows(sequence, first_row, rows_of), lead_us=lead, gap_us=gap,
        api_us=api_us, tail_us=tail, call=call, stream=stream, blocking=blocking, latency_us=latency,
        kernel_gap_us=kernel_gap, wait_offsets=offsets,
        wait_calls=awaited, streams=streams, backlog_us=np.array([busy.get(int(s), 0.0) for s in streams], float),
        call_count=call_count,
        sync_return_us=overheads.constant("sync_return", DEFAULT_SYNC_RETURN_US),
        host_evidence=shares, unmatched_host_share=unmatched,
        collectives=int(np.searchsorted(streams, COMMUNICATION_STREAM)) if sequence.waits else -1,
    )  # fmt: skip


def _previous_rows(sequence: StepSequence, first_row: Ints, rows_of: Ints) -> Ints:
    """The row that each row follows: the row before it, for the first of an item the last of the item that it follows."""
    previous = np.arange(-1, int(rows_of.sum()) - 1, dtype=np.int64)
    if len(first_row):
        previous[first_row] = np.where(sequence.previous >= 0, (first_row + rows_of - 1)[sequence.previous], -1)
    return previous


def _device_constants(
    sequence: StepSequence, overheads: OverheadModel, total: int, has_action: Flags
) -> tuple[Floats, Floats]:
    latency, kernel_gap = np.zeros(total), np.zeros(total)
    apis = {str(api) for api in sequence.api}
    value = {api: overheads.constant("launch_latency", DEFAULT_LATENCY_US, api=api) for api in apis}
    value[CPU_API] = 0.0
    latency[has_action] = [value[str(api)] for api in sequence.api]
    on_cpu = np.array([api == CPU_API for api in sequence.api], bool)
    kernel_gap[has_action] = np.where(on_cpu, 0.0, overheads.constant("kernel_gap", DEFAULT_KERNEL_GAP_US))
    return latency, kernel_gap


def _wait_lists(call: Ints, waits: Mapping[int, Sequence[int]]) -> tuple[Ints, Ints]:
    lists = [list(waits.get(int(c), ())) if c >= 0 else [] for c in call] if waits else [[] for _ in call]
    offsets = np.concatenate([[0], np.cumsum([len(w) for w in lists])]).astype(np.int64)
    return offsets, np.array([c for w in lists for c in w], np.int64)


class HostTimes:
    """Host times of a sequence from the statistics. The object records the evidence of each."""

    def __init__(self, sequence: StepSequence, model: OverheadModel, counts: Ints, workload: str | None) -> None:
        self.sequence, self.model, self.counts, self.workload = sequence, model, counts, workload
        self.by_count = np.array([calls_signature(int(n)) for n in counts], object)
        self.lookups: list[tuple[LookedUp, Ints]] = []

    def gaps(self) -> Floats:
        """T1 (or the loading gap) before each item."""
        s = self.sequence
        names, before = s.items.name, np.maximum(s.previous, 0)
        threads = s.items.thread[before].tolist(), s.items.thread.tolist()
        switch = [switch_signature(*pair) for pair in zip(*threads, strict=True)]
        full = [f"{text}|{name}" for text, name in zip(switch, names[before], strict=True)]
        out = np.zeros(len(names))
        for kind, rows in (
            ("T1", np.flatnonzero((s.previous >= 0) & ~s.loading)),
            ("loading", np.flatnonzero(s.loading)),
        ):
            out[rows] = self._find(kind, rows, rows, [np.array(full, object)[rows], np.array(switch, object)[rows]])
        return out

    def inside(
        self, item: Ints, place: Ints, first: Flags, last: Flags, acts: Flags, gap: Floats, tail: Floats
    ) -> None:
        """Write T2, T3 and T5 into `gap` and `tail`."""
        s = self.sequence
        for kind, mask, out in (("T2", first & acts, gap), ("T3", last & acts, tail), ("T5", ~acts, gap)):
            rows = np.flatnonzero(mask)
            owner = item[rows]
            out[rows] = self._find(kind, rows, owner, [s.signature[owner], self.by_count[owner]])
        rows = np.flatnonzero(~first & acts)
        owner = item[rows]
        placed = np.array([f"{t}@{k}" for t, k in zip(s.signature[owner], place[rows], strict=True)], object)
        gap[rows] = self._find("T5", rows, owner, [placed, self.by_count[owner]])

    def apis(self) -> Floats:
        """T4 of each action; 0 where the CPU is the device."""
        s = self.sequence
        rows = np.flatnonzero(s.api != CPU_API)
        out = np.zeros(len(s.api))
        owner = s.action_item[rows]
        out[rows] = self._find("T4", rows, owner, [s.signature[owner]], s.api[rows])
        return out

    def _find(self, kind: str, rows: Ints, owner: Ints, signatures: list[Texts], apis: Texts | None = None) -> Floats:
        if not len(rows):
            return np.zeros(0)
        looked_up = self.model.find(
            kind, list(self.sequence.items.name[owner]), signatures, None if apis is None else list(apis)
        )
        self.lookups.append((looked_up, owner))
        return looked_up.value_us

    def evidence(self) -> tuple[dict[str, float], float, Texts]:
        """Share of host time per evidence, share without statistics of its own op, and evidence per item."""
        table = self.model.table
        known = table["evidence"].to_numpy(object) if "evidence" in table else np.full(len(table), None)
        which, holders = pd.factorize(table["workloads"].to_numpy(object))  # few distinct texts, -1 for none
        own = [self.workload is None or self.workload in text.split(",") for text in [*holders, ""]]
        kinds = np.where(np.array(own)[which] & (known != "shared"), 0, 1)
        kinds = np.append(np.where(known == "transferred", 2, kinds), 2)
        n_items = len(self.sequence.items.node)
        per_item, unmatched = np.zeros((n_items, 3)), 0.0
        for looked_up, owner in self.lookups:
            kind = kinds[looked_up.row]
            kind = np.where((looked_up.level >= GLOBAL) & (kind == 0), 1, kind)
            np.add.at(per_item, (owner, kind), looked_up.value_us)
            unmatched += float(looked_up.value_us[looked_up.level >= GLOBAL].sum())
        total = float(per_item.sum())
        shares = per_item.sum(axis=0) / total if total else np.array([1.0, 0.0, 0.0])
        names = np.array(HOST_EVIDENCE, object)[np.argmax(per_item, axis=1)] if n_items else np.empty(0, object)
        return dict(zip(HOST_EVIDENCE, shares.tolist(), strict=True)), unmatched / total if total else 0.0, names


WAIT = "c10d::wait"
"""The operator of a graph that makes the computing stream wait for collectives."""


def stream_waits(graph: pd.DataFrame, calls: pd.DataFrame) -> dict[int, tuple[int, ...]]:
    """Rows of `calls` that wait for rows of another stream.

    - A collective waits for what was launched before it: NCCL's stream waits for an event of the computing stream.
    - The first call after a wait waits for the last collective that the wait names. Earlier ones have ended before it.

    Args:
        graph: `graph` table in host order.
        calls: `calls` table in launch order.
    """
    communicates = calls["stream"].to_numpy(np.int64) == COMMUNICATION_STREAM
    if not communicates.any():
        return {}
    order = pd.Series(graph["order"].to_numpy(np.int64), graph["node_id"].to_numpy(np.int64))
    position = order.loc[calls["node_id"].to_numpy(np.int64)].to_numpy()
    computing, collectives = np.flatnonzero(~communicates), np.flatnonzero(communicates)
    waits: dict[int, tuple[int, ...]] = {}
    before = np.searchsorted(computing, collectives) - 1
    for row, last in zip(collectives.tolist(), before.tolist(), strict=True):
        if last >= 0:
            waits[row] = (int(computing[last]),)
    named = graph[graph["name"].str.startswith("nccl:") | (graph["name"] == WAIT)].sort_values("order")
    row_at = dict(zip(position[collectives].tolist(), collectives.tolist(), strict=True))
    row_of: dict[int, int] = {}
    for at, text in zip(named["order"].tolist(), named["attributes"].tolist(), strict=True):
        attributes = json.loads(text)
        if "collective" in attributes:
            row_of[attributes["collective"]] = row_at[at]
            continue
        after = np.searchsorted(position[computing], at)
        if after < len(computing) and attributes["awaits"] in row_of:
            waiting = int(computing[after])
            waits[waiting] = (*waits.get(waiting, ()), row_of[attributes["awaits"]])
    return waits
