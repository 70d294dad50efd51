"""The program of a step, which the critical path runs: flat arrays, one row per action of the host, in host order.

A row is an interval of host time. It ends in a launch or in a wait; for an op without device calls it ends in neither.
Rows of one *item* (top-level op) follow each other. The parts of a row are:

- `lead_us`: the gap before the item (T1).
- `gap_us`: the time in the item before the action (T2, T5, or all of an item without actions).
- `api_us`: the call itself (T4).
- `tail_us`: the time in the item after its last action (T3).

Programs are assembled from captured graphs (`step_sequence`) or from given items and actions, with host times that are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.errors import TableError
from pipeline.graph.device_calls import stream_waits
from pipeline.hardware.rank_layout import COMPUTING_STREAM
from pipeline.overheads.overhead_model import (
    DEVICE_CONSTANTS_US,
    GLOBAL,
    LookedUp,
    OverheadModel,
    calls_signature,
    full_signature,
    switch_signature,
)
from pipeline.trace.kineto_fields import CPU_API, SYNC_APIS

QUEUE_DEPTH = 1024
"""Calls that the launch queue of a GPU holds. The next launch waits until the device begins an older call."""

NO_CALL, BACKLOG = -1, -2
"""Values used instead of the index of an awaited call: -1 for no wait, -2 for work queued before the step."""

HOST_EVIDENCE = ("measured", "shared", "transferred")
"""Kinds of evidence of host times, best first."""


class Kind(IntEnum):
    """What ends a row."""

    HOST = 0
    LAUNCH = 1
    SYNC = 2


@dataclass(frozen=True)
class Items:
    """The top-level ops of a step, in host order. Rows belong to them, and a timeline shows their names.

    Attributes:
        node: id of each item in its graph, or event id in its trace.
        name: op name.
        thread: host thread (0 main, 1 autograd).
        phase: forward, loss, backward, optimizer, data, communication.
        evidence: evidence of the host time of each item, one of `HOST_EVIDENCE`.
    """

    node: Ints
    name: Texts
    thread: Ints
    phase: Texts
    evidence: Texts


@dataclass(frozen=True)
class Program:
    """A step, ready to be simulated with any kernel times.

    Attributes:
        items: the top-level ops.
        item: item of each row.
        kind: what ends each row (`Kind`).
        thread: host thread of each row.
        previous: row whose host end each row follows; -1 for the begin of the step.
        lead_us: host gap before the item; 0 except for an item's first row.
        gap_us: host time in the item before the action.
        api_us: host time of the action itself.
        tail_us: host time of the item after its last action; 0 except for an item's last row.
        call: index of the device call that the row launches, -1 for none.
        stream: index into `streams` of the call, or of the awaited stream; -1 awaits all.
        blocking: whether the host waits for the call's end.
        latency_us: from the start of the launch to the earliest start of its call.
        kernel_gap_us: shortest time between the end of the previous call on the stream and the start of this one.
        wait_offsets: row i awaits the calls `wait_calls[wait_offsets[i]:wait_offsets[i + 1]]` (stream events). A wait
            of the host that names calls awaits only these.
        wait_calls: calls awaited.
        streams: stream ids.
        backlog_us: per stream, the time until which it is busy with earlier work.
        loop: whether equal steps follow each other, between which the host does not wait. Otherwise the step is alone.
        call_count: number of device calls, the width of the kernel times.
        sync_return_us: from the end of awaited work to the return of the host's wait.
        queue_depth: launches that may be outstanding; 0 for no limit.
        fills: per call, whether it leaves no room on the device for kernels of other streams; None for none.
        collectives: index into `streams` of the first stream of collectives; those after it have collectives of other axes.
            -1 for none. Kernels of other streams take `BESIDE_COLLECTIVES` times as long while one of them is busy.
        further: per row, whether it starts one more call of the previous launch (CUDA graphs). Such a row takes no
            place in the launch queue. None for none.
        competes: per call, whether it needs room on the device (copies do not).
        host_evidence: share of host time per kind of evidence, summing to 1.
        unmatched_host_share: share of host time that rests on statistics over all ops.
    """

    items: Items
    item: Ints
    kind: Ints
    thread: Ints
    previous: Ints
    lead_us: Array
    gap_us: Array
    api_us: Array
    tail_us: Array
    call: Ints
    stream: Ints
    blocking: Flags
    latency_us: Array
    kernel_gap_us: Array
    wait_offsets: Ints
    wait_calls: Ints
    streams: Ints
    backlog_us: Array
    call_count: int
    sync_return_us: float = DEVICE_CONSTANTS_US["sync_return"]
    queue_depth: int = QUEUE_DEPTH
    fills: Flags | None = None
    competes: Flags | None = None
    collectives: int = -1
    loop: bool = False
    further: Flags | None = None
    host_evidence: Mapping[str, float] = field(default_factory=dict)
    unmatched_host_share: float = 0.0

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def communicates(self) -> Flags:
        """Whether each device call is a collective, shape (calls,)."""
        out = np.zeros(self.call_count, bool)
        if self.collectives >= 0:
            out[self.call[(self.call >= 0) & (self.stream >= self.collectives)]] = True
        return out


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
    owner = np.where(top, np.arange(len(node)), parent)
    while True:  # to the outermost top-level op above each node, level by level
        above = np.where((owner >= 0) & ~top[owner], parent[owner], owner)
        if (above == owner).all():
            break
        owner = above
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
    sync = np.array([name in SYNC_APIS for name in api], bool)
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
        sync=sync,
        stream=calls["stream"].to_numpy(np.int64)[order],
        blocking=calls["blocking"].to_numpy(bool)[order] | (api == CPU_API),
        call=order.astype(np.int64),
        waits=stream_waits(graph, calls) if (calls["stream"] != COMPUTING_STREAM).any() else {},
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
    first_row = (
        np.concatenate([[0], np.cumsum(rows_of)[:-1]]).astype(np.int64)
        if n_items
        else np.empty(0, np.int64)
    )
    total = int(rows_of.sum())
    item = np.repeat(np.arange(n_items), rows_of)
    place = np.arange(total) - first_row[item]
    has_action = counts[item] > 0
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
    stream[np.flatnonzero(has_action)[sequence.stream >= 0]] = stream_code
    call = np.full(total, -1, np.int64)
    call[has_action] = np.where(sequence.sync, -1, sequence.call)
    blocking = np.zeros(total, bool)
    blocking[has_action] = sequence.blocking & ~sequence.sync
    latency, kernel_gap = _device_constants(sequence, overheads, total, has_action)
    offsets, awaited = _wait_lists(call, sequence.waits if waits is None else waits)
    shares, unmatched, per_item = host.evidence()
    previous, busy = np.arange(-1, total - 1, dtype=np.int64), backlog_us or {}
    # the first row of an item follows the last row of the item that it follows
    previous[first_row] = np.where(
        sequence.previous >= 0, (first_row + rows_of - 1)[sequence.previous], -1
    )
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
        collectives=(
            int(np.searchsorted(streams, COMPUTING_STREAM, side="right")) if sequence.waits else -1
        ),
    )


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
        per_item, unmatched = np.zeros((n_items, 3)), 0.0
        for looked_up, owner in self.lookups:
            kind = kinds[looked_up.row]
            kind = np.where((looked_up.level >= GLOBAL) & (kind == 0), 1, kind)
            np.add.at(per_item, (owner, kind), looked_up.value_us)
            unmatched += float(looked_up.value_us[looked_up.level >= GLOBAL].sum())
        total = float(per_item.sum())
        shares = per_item.sum(axis=0) / total if total else np.array([1.0, 0.0, 0.0])
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
