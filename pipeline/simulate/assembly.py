"""Programs of captured graphs and of traced iterations: items and actions, with host times from the statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.errors import TableError
from pipeline.graph.compiled_functions import BACKWARD, FORWARD
from pipeline.graph.device_calls import stream_waits
from pipeline.hardware.rank_layout import COMPUTING_STREAM
from pipeline.overheads.overhead_model import (
    GLOBAL,
    LookedUp,
    OverheadModel,
    calls_signature,
    full_signature,
    switch_signature,
)
from pipeline.simulate.program import Items, Kind, Program
from pipeline.trace.kineto_fields import CPU_API, SYNC_APIS

HOST_EVIDENCE = ("measured", "shared", "transferred", "assumed")
"""Kinds of evidence of host times, best first."""


@dataclass(frozen=True)
class StepSequence:
    """Items and their actions as plain columns: the common form of a captured graph and of a traced iteration.

    Attributes:
        items: the items (evidence still empty).
        signature: full signature of each item.
        previous: item that each item follows, -1 for none.
        loading: whether data was loaded between an item and the one it follows.
        action_item: item of each action, ascending.
        api: API of each action.
        sync: whether an action is a wait of the host.
        stream: stream id of each action; -1 for a wait for all streams.
        blocking: whether the host waits for the launched call.
        call: index of the call of each action, -1 for a wait.
        waits: for each call that awaits calls of other streams, these calls.
    """

    items: Items
    signature: Texts
    previous: Ints
    loading: Flags
    action_item: Ints
    api: Texts
    sync: Flags
    stream: Ints
    blocking: Flags
    call: Ints
    waits: Mapping[int, Sequence[int]] = field(default_factory=dict)


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
    owner = _owners(top, parent)
    call_node = position.get_indexer(calls["node_id"].to_numpy(np.int64))
    if (call_node < 0).any():
        missing = calls["node_id"].to_numpy()[call_node < 0][0]
        raise TableError(
            f"calls: node {missing} is not in the graph; map the calls again from this graph"
        )
    call_owner = np.where(owner[call_node] >= 0, owner[call_node], call_node)
    is_item = top.copy()
    is_item[call_owner] = True
    rows = np.flatnonzero(is_item)
    item_of = np.full(len(node), -1, np.int64)
    item_of[rows] = np.arange(len(rows))
    order = np.argsort(item_of[call_owner], kind="stable")
    api = calls["api"].to_numpy(object)[order]
    inside = np.bincount(owner[(owner >= 0) & ~top], minlength=len(node))[rows]
    action_item = item_of[call_owner][order]
    shapes = [str(text).replace(" ", "") for text in graph["input_shapes"].to_numpy(object)[rows]]
    apis: list[list[str]] = [[] for _ in rows]
    for item, name in zip(action_item.tolist(), api, strict=True):
        apis[item].append(str(name))
    items = Items(
        node=node[rows],
        name=graph["name"].to_numpy(object)[rows],
        thread=graph["thread"].to_numpy(np.int64)[rows],
        phase=graph["phase"].to_numpy(object)[rows],
        evidence=np.full(len(rows), "", object),
    )
    return StepSequence(
        items=items,
        signature=np.array(
            [full_signature(*key) for key in zip(apis, shapes, inside.tolist(), strict=True)],
            object,
        ),
        previous=np.arange(-1, len(rows) - 1, dtype=np.int64),
        loading=np.zeros(len(rows), bool),
        action_item=action_item,
        api=api,
        sync=np.array([name in SYNC_APIS for name in api], bool),
        stream=calls["stream"].to_numpy(np.int64)[order],
        blocking=calls["blocking"].to_numpy(bool)[order] | (api == CPU_API),
        call=order.astype(np.int64),
        waits=stream_waits(graph, calls) if (calls["stream"] != COMPUTING_STREAM).any() else {},
    )


def _owners(top: Flags, parent: Ints) -> Ints:
    """The outermost top-level op above each node, by its place; -1 for none."""
    owner: Ints = np.where(top, np.arange(len(top)), parent)
    while True:  # level by level
        above = np.where((owner >= 0) & ~top[owner], parent[owner], owner)
        if (above == owner).all():
            return owner
        owner = above


def assemble(
    sequence: StepSequence,
    overheads: OverheadModel,
    call_count: int,
    *,
    workload: str | None = None,
    waits: Mapping[int, Sequence[int]] | None = None,
    backlog_us: Mapping[int, float] | None = None,
) -> Program:
    """Program of a sequence with host times from the statistics, for so many device calls.

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
    first_row = (np.cumsum(rows_of) - rows_of).astype(np.int64)
    item = np.repeat(np.arange(n_items), rows_of)
    total, has_action = len(item), counts[item] > 0
    host = HostTimes(sequence, overheads, counts, workload)
    lead, gap, api_us, tail = host.of_rows(item, first_row, rows_of, has_action)
    streams = np.unique(sequence.stream[sequence.stream >= 0])
    kind, stream, call, blocking = _actions(sequence, has_action, streams)
    latency, kernel_gap = _device_constants(sequence, overheads, total, has_action)
    offsets, awaited = _wait_lists(call, sequence.waits if waits is None else waits)
    shares, unmatched, per_item = host.evidence()
    previous, busy = np.arange(-1, total - 1, dtype=np.int64), backlog_us or {}
    last_row = first_row + rows_of - 1  # the first row of an item follows that of the item before
    previous[first_row] = np.where(sequence.previous >= 0, last_row[sequence.previous], -1)
    return Program(
        items=Items(items.node, items.name, items.thread, items.phase, per_item),
        item=item,
        kind=kind,
        thread=items.thread[item],
        previous=previous,
        lead_us=lead,
        gap_us=gap,
        api_us=api_us,
        tail_us=tail,
        call=call,
        stream=stream,
        blocking=blocking,
        latency_us=latency,
        kernel_gap_us=kernel_gap,
        wait_offsets=offsets,
        wait_calls=awaited,
        streams=streams,
        backlog_us=np.array([busy.get(int(s), 0.0) for s in streams], float),
        call_count=call_count,
        sync_return_us=overheads.constant("sync_return"),
        host_evidence=shares,
        unmatched_host_share=unmatched,
        collectives=int((streams <= COMPUTING_STREAM).sum()) if sequence.waits else -1,
    )


def _actions(
    sequence: StepSequence, has_action: Flags, streams: Ints
) -> tuple[Ints, Ints, Ints, Flags]:
    """What ends each row: kind, place of the stream, device call, and whether the host waits; shape (rows,)."""
    kind = np.full(len(has_action), int(Kind.HOST), np.int64)
    kind[has_action] = np.where(sequence.sync, Kind.SYNC, Kind.LAUNCH)
    stream = np.full(len(has_action), -1, np.int64)
    known = sequence.stream >= 0
    stream[np.flatnonzero(has_action)[known]] = np.searchsorted(streams, sequence.stream[known])
    call = np.full(len(has_action), -1, np.int64)
    call[has_action] = np.where(sequence.sync, -1, sequence.call)
    blocking = np.zeros(len(has_action), bool)
    blocking[has_action] = sequence.blocking & ~sequence.sync
    return kind, stream, call, blocking


def _device_constants(
    sequence: StepSequence, overheads: OverheadModel, total: int, has_action: Flags
) -> tuple[Array, Array]:
    latency, kernel_gap = np.zeros(total), np.zeros(total)
    apis = {str(api) for api in sequence.api}
    value = {api: overheads.constant("launch_latency", api) for api in apis}
    value[CPU_API] = 0.0
    latency[has_action] = [value[str(api)] for api in sequence.api]
    kernel_gap[has_action] = np.where(
        sequence.api == CPU_API, 0.0, overheads.constant("kernel_gap")
    )
    return latency, kernel_gap


def _wait_lists(call: Ints, waits: Mapping[int, Sequence[int]]) -> tuple[Ints, Ints]:
    lists = (
        [list(waits.get(int(c), ())) if c >= 0 else [] for c in call]
        if waits
        else [[] for _ in call]
    )
    offsets = np.concatenate([[0], np.cumsum([len(w) for w in lists])]).astype(np.int64)
    return offsets, np.array([c for w in lists for c in w], np.int64)


class HostTimes:
    """Host times of a sequence from the statistics. The object records the evidence of each."""

    def __init__(
        self, sequence: StepSequence, model: OverheadModel, counts: Ints, workload: str | None
    ) -> None:
        self.sequence, self.model, self.counts, self.workload = sequence, model, counts, workload
        self.by_count = np.array([calls_signature(int(n)) for n in counts], object)
        self.lookups: list[tuple[LookedUp, Ints]] = []

    def of_rows(
        self, item: Ints, first_row: Ints, rows_of: Ints, has_action: Flags
    ) -> tuple[Array, Array, Array, Array]:
        """Times before an item, in it before the action, of the action, and after it; shape (rows,)."""
        lead, gap, api, tail = (np.zeros(len(item)) for _ in range(4))
        place = np.arange(len(item)) - first_row[item]
        first, last = place == 0, place == rows_of[item] - 1
        lead[first] = self.gaps()
        self.inside(item, place, first, last, has_action, gap, tail)
        api[has_action] = self.apis()
        return lead, gap, api, tail

    def gaps(self) -> Array:
        """T1 (or the loading gap) before each item."""
        s = self.sequence
        names, before = s.items.name, np.maximum(s.previous, 0)
        threads = s.items.thread[before].tolist(), s.items.thread.tolist()
        switch = [switch_signature(*pair) for pair in zip(*threads, strict=True)]
        full = [f"{text}|{name}" for text, name in zip(switch, names[before], strict=True)]
        out = np.zeros(len(names))
        t1 = (s.previous >= 0) & ~s.loading
        for kind, rows in (("T1", np.flatnonzero(t1)), ("loading", np.flatnonzero(s.loading))):
            out[rows] = self._find(
                kind, rows, rows, [np.array(full, object)[rows], np.array(switch, object)[rows]]
            )
        return out

    def inside(
        self,
        item: Ints,
        place: Ints,
        first: Flags,
        last: Flags,
        acts: Flags,
        gap: Array,
        tail: Array,
    ) -> None:
        """Write T2, T3 and T5 into `gap` and `tail`."""
        s = self.sequence
        for kind, mask, out in (
            ("T2", first & acts, gap),
            ("T3", last & acts, tail),
            ("T5", ~acts, gap),
        ):
            rows = np.flatnonzero(mask)
            owner = item[rows]
            out[rows] = self._find(kind, rows, owner, [s.signature[owner], self.by_count[owner]])
        rows = np.flatnonzero(~first & acts)
        owner = item[rows]
        placed = np.array(
            [f"{t}@{k}" for t, k in zip(s.signature[owner], place[rows], strict=True)], object
        )
        gap[rows] = self._find("T5", rows, owner, [placed, self.by_count[owner]])

    def apis(self) -> Array:
        """T4 of each action; 0 where the CPU is the device."""
        s = self.sequence
        rows = np.flatnonzero(s.api != CPU_API)
        out = np.zeros(len(s.api))
        owner = s.action_item[rows]
        out[rows] = self._find("T4", rows, owner, [s.signature[owner]], s.api[rows])
        return out

    def _find(
        self, kind: str, rows: Ints, owner: Ints, signatures: list[Texts], apis: Texts | None = None
    ) -> Array:
        if not len(rows):
            return np.zeros(0)
        looked_up = self.model.find(
            kind,
            list(self.sequence.items.name[owner]),
            signatures,
            None if apis is None else list(apis),
        )
        self.lookups.append((looked_up, owner))
        return looked_up.value_us

    def evidence(self) -> tuple[dict[str, float], float, Texts]:
        """Share of host time per evidence, share without statistics of its own op, and evidence per item."""
        table = self.model.table
        known = (
            table["evidence"].to_numpy(object) if "evidence" in table else np.full(len(table), None)
        )
        which, holders = pd.factorize(
            table["workloads"].to_numpy(object)
        )  # few distinct texts, -1 for none
        own = [self.workload is None or self.workload in text.split(",") for text in [*holders, ""]]
        kinds = np.where(np.array(own)[which] & (known != "shared"), 0, 1)
        kinds = np.append(np.where(known == "transferred", 2, kinds), 2)
        n_items = len(self.sequence.items.node)
        per_item, unmatched = np.zeros((n_items, len(HOST_EVIDENCE))), 0.0
        items = map(str, self.sequence.items.name)
        compiled = np.array([name.startswith((FORWARD, BACKWARD)) for name in items], bool)
        for looked_up, owner in self.lookups:
            kind, of_others = kinds[looked_up.row], looked_up.level >= GLOBAL
            kind = np.where(of_others & (kind == 0), 1, kind)
            kind = np.where(of_others & compiled[owner], 3, kind)
            np.add.at(per_item, (owner, kind), looked_up.value_us)
            unmatched += float(looked_up.value_us[of_others].sum())
        total = float(per_item.sum())
        shares = per_item.sum(axis=0) / total if total else np.eye(len(HOST_EVIDENCE))[0]
        names = (
            np.array(HOST_EVIDENCE, object)[np.argmax(per_item, axis=1)]
            if n_items
            else np.empty(0, object)
        )
        return (
            dict(zip(HOST_EVIDENCE, shares.tolist(), strict=True)),
            unmatched / total if total else 0.0,
            names,
        )
