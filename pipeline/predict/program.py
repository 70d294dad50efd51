"""The step as the critical path runs it: flat arrays, one row per action of the host, in host order.

A row is a stretch of host time that ends in a launch, in a wait, or (an op without device calls) in nothing. Rows of
one *item* (top-level op) follow each other; `lead_us` is the gap before the item (T1), `gap_us` the time in the item
before the action (T2, T5, or the whole of an item without actions), `api_us` the call itself (T4), `tail_us` the time
behind the item's last action (T3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import TableError
from pipeline.overheads.model import GLOBAL, Found, OverheadModel
from pipeline.overheads.names import calls_signature, full_signature, switch_signature
from pipeline.trace.activity import CPU_API
from pipeline.trace.fields import SYNC_APIS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]

QUEUE_DEPTH = 1024
"""Calls that the launch queue of a GPU holds; the next launch blocks until the device begins an older one."""

DEFAULT_LATENCY_US = 6.0
DEFAULT_KERNEL_GAP_US = 1.2
DEFAULT_SYNC_RETURN_US = 5.0
"""Device constants where no trace told them: medians of the public V100 and A100 traces, rounded."""

HOST_EVIDENCE = ("measured", "shared", "transferred")


class Kind(IntEnum):
    """What ends a row."""

    HOST = 0
    LAUNCH = 1
    SYNC = 2


@dataclass(frozen=True)
class Items:
    """The top-level ops of a step, in host order: what rows belong to and what a timeline names.

    Attributes:
        node: id of each item in its graph, or event id in its trace.
        name: op name.
        thread: host thread (0 main, 1 autograd).
        phase: forward, loss, backward, optimizer, data, communication.
        evidence: what the host time of each item rests on, one of `HOST_EVIDENCE`.
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
        previous: row whose host end each row follows, -1 for the begin of the step.
        lead_us: host gap before the item; 0 but for an item's first row.
        gap_us: host time in the item before the action.
        api_us: host time of the action itself.
        tail_us: host time of the item behind its last action; 0 but for an item's last row.
        call: index of the device call that the row launches, -1 for none.
        stream: index into `streams` of the call, or of the awaited stream; -1 awaits all.
        blocking: whether the host waits for the call's end.
        latency_us: from the start of the launch to the earliest start of its call.
        kernel_gap_us: shortest time between the end of the call ahead on the stream and the start of this one.
        wait_offsets: row i awaits the calls `wait_calls[wait_offsets[i]:wait_offsets[i + 1]]` (stream events).
        wait_calls: calls awaited.
        streams: stream ids.
        backlog_us: per stream, until when it is busy with earlier work.
        call_count: number of device calls, the width of the kernel times.
        sync_return_us: from the end of awaited work to the return of the host's wait.
        queue_depth: launches that may be outstanding; 0 for no limit.
        fills: per call, whether it leaves no room on the device for kernels of other streams; None for none.
        competes: per call, whether it needs room on the device (copies do not).
        host_evidence: share of host time per kind of evidence, summing to 1.
        unmatched_host_share: share of host time that rests on statistics over all ops.
    """

    items: Items
    item: Ints
    kind: Ints
    thread: Ints
    previous: Ints
    lead_us: Floats
    gap_us: Floats
    api_us: Floats
    tail_us: Floats
    call: Ints
    stream: Ints
    blocking: Flags
    latency_us: Floats
    kernel_gap_us: Floats
    wait_offsets: Ints
    wait_calls: Ints
    streams: Ints
    backlog_us: Floats
    call_count: int
    sync_return_us: float = DEFAULT_SYNC_RETURN_US
    queue_depth: int = QUEUE_DEPTH
    fills: Flags | None = None
    competes: Flags | None = None
    host_evidence: Mapping[str, float] = field(default_factory=dict)
    unmatched_host_share: float = 0.0

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def host_sum_us(self) -> float:
        """Host time of the step without any waiting."""
        return float(self.lead_us.sum() + self.gap_us.sum() + self.api_us.sum() + self.tail_us.sum())


@dataclass(frozen=True)
class StepSequence:
    """Items and their actions as plain columns: the common form of a captured graph and of a traced iteration.

    Attributes:
        items: the items (evidence still empty).
        signature: full signature of each item.
        previous: item that each item follows, -1 for none.
        loading: whether data loading lies between an item and the one it follows.
        action_item: item of each action, ascending.
        api: API of each action.
        sync: whether an action is a wait of the host.
        stream: stream id of each action; -1 for a wait for all streams.
        blocking: whether the host waits for the launched call.
        call: index of the call of each action, -1 for a wait.
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


def build_program(
    graph: pd.DataFrame,
    calls: pd.DataFrame,
    overheads: OverheadModel,
    *,
    scale: float = 1.0,
    workload: str | None = None,
    waits: Mapping[int, Sequence[int]] | None = None,
    sync_return_us: float | None = None,
) -> Program:
    """Program of a captured step.

    Args:
        graph: `graph` table: ops in host order, nested by `parent_id`.
        calls: `calls` table; row i is device call i of `simulate`'s kernel times. API names of waits
            (`cudaStreamSynchronize`) make the host wait and start nothing; API `cpu` runs on the calling thread.
        overheads: host statistics.
        scale: factor on all host times (a faster or slower host).
        workload: name of this workload: statistics that hold observations of it count as measured.
        waits: call -> calls of other streams that must have ended before it starts.
        sync_return_us: from the end of awaited work to the return of the wait; from the statistics by default.

    Raises:
        TableError: a call names a node that the graph does not have.
    """
    sequence = _sequence(graph, calls)
    return assemble(
        sequence, overheads.scaled(scale) if scale != 1.0 else overheads, len(calls), workload=workload,
        waits=waits or {}, sync_return_us=sync_return_us,
    )  # fmt: skip


def _sequence(graph: pd.DataFrame, calls: pd.DataFrame) -> StepSequence:
    """Items and actions of a captured graph."""
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
    )


def assemble(
    sequence: StepSequence,
    overheads: OverheadModel,
    call_count: int,
    *,
    workload: str | None = None,
    waits: Mapping[int, Sequence[int]] | None = None,
    backlog_us: Mapping[int, float] | None = None,
    sync_return_us: float | None = None,
) -> Program:
    """Program of items and actions, host times looked up in the statistics."""
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
    host = _HostTimes(sequence, overheads, counts, workload)
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
    previous = np.arange(-1, total - 1, dtype=np.int64)
    last_row = first_row + rows_of - 1
    previous[first_row] = np.where(sequence.previous >= 0, last_row[sequence.previous], -1) if n_items else -1
    offsets, awaited = _wait_lists(call, waits or {})
    shares, unmatched, per_item = host.evidence()
    busy = backlog_us or {}
    return Program(
        items=Items(items.node, items.name, items.thread, items.phase, per_item), item=item, kind=kind,
        thread=items.thread[item], previous=previous, lead_us=lead, gap_us=gap, api_us=api_us, tail_us=tail, call=call,
        stream=stream, blocking=blocking, latency_us=latency, kernel_gap_us=kernel_gap, wait_offsets=offsets,
        wait_calls=awaited, streams=streams, backlog_us=np.array([busy.get(int(s), 0.0) for s in streams], float),
        call_count=call_count,
        sync_return_us=overheads.constant("sync_return", DEFAULT_SYNC_RETURN_US)
        if sync_return_us is None else sync_return_us,
        host_evidence=shares, unmatched_host_share=unmatched,
    )  # fmt: skip


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


class _HostTimes:
    """Host times of a sequence from the statistics, remembering what each rests on."""

    def __init__(self, sequence: StepSequence, model: OverheadModel, counts: Ints, workload: str | None) -> None:
        self.sequence, self.model, self.counts, self.workload = sequence, model, counts, workload
        self.by_count = np.array([calls_signature(int(n)) for n in counts], object)
        self.found: list[tuple[Found, Ints]] = []

    def gaps(self) -> Floats:
        """T1 (or the loading gap) before each item."""
        s = self.sequence
        names, before = s.items.name, np.maximum(s.previous, 0)
        switch = [switch_signature(a, b) for a, b in zip(s.items.thread[before], s.items.thread, strict=True)]
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
        """T2, T3 and T5 into `gap` and `tail`."""
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
        """T4 of each action; none where the CPU is the device."""
        s = self.sequence
        rows = np.flatnonzero(s.api != CPU_API)
        out = np.zeros(len(s.api))
        owner = s.action_item[rows]
        out[rows] = self._find("T4", rows, owner, [s.signature[owner]], s.api[rows])
        return out

    def _find(self, kind: str, rows: Ints, owner: Ints, signatures: list[Texts], apis: Texts | None = None) -> Floats:
        if not len(rows):
            return np.zeros(0)
        found = self.model.find(
            kind, list(self.sequence.items.name[owner]), signatures, None if apis is None else list(apis)
        )
        self.found.append((found, owner))
        return found.value_us

    def evidence(self) -> tuple[dict[str, float], float, Texts]:
        """Shares of host time per evidence, the share that no op's own statistics cover, evidence per item."""
        table = self.model.table
        known = table["evidence"].astype(object).to_numpy() if "evidence" in table else np.full(len(table), None)
        holders = table["workloads"].astype(object).to_numpy()
        kinds = np.zeros(len(table) + 1, np.int64)
        for row, (evidence, workloads) in enumerate(zip(known, holders, strict=True)):
            own = self.workload is None or self.workload in str(workloads).split(",")
            kinds[row] = 2 if evidence == "transferred" else (0 if own and evidence != "shared" else 1)
        kinds[-1] = 2
        n_items = len(self.sequence.items.node)
        per_item, unmatched = np.zeros((n_items, 3)), 0.0
        for found, owner in self.found:
            kind = kinds[found.row]
            kind = np.where((found.level >= GLOBAL) & (kind == 0), 1, kind)
            np.add.at(per_item, (owner, kind), found.value_us)
            unmatched += float(found.value_us[found.level >= GLOBAL].sum())
        total = float(per_item.sum())
        shares = per_item.sum(axis=0) / total if total else np.array([1.0, 0.0, 0.0])
        names = np.array(HOST_EVIDENCE, object)[np.argmax(per_item, axis=1)] if n_items else np.empty(0, object)
        return dict(zip(HOST_EVIDENCE, shares.tolist(), strict=True)), unmatched / total if total else 0.0, names
