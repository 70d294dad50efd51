"""Learns which call waits for which call of another stream, from the training iterations.

A stream waits for an event of another stream (`cudaStreamWaitEvent`). Traces with `cuda_sync` events name both streams
and the moment at which the event was recorded. Other traces show only that a wait was enqueued. In these:

- The first call launched after a wait is a *waiter*.
- An edge connects it to the last call launched before it on another stream.
- The edge is kept if the waiter began after the end of that call in almost all training iterations (`_MAX_CONTRADICTED_SHARE`).

The key of an edge is the same in every iteration: op, kernel, and the number of earlier calls with both. Edges
therefore apply to iterations and ranks that were not used for training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pipeline.arrays import Ints, Texts
from pipeline.overheads.extraction import ItemKeys
from pipeline.simulate.trace_program import Iteration
from pipeline.trace.host_activity import Activity
from pipeline.trace.kineto_fields import API_CATEGORIES, RECORD_APIS, WAIT_EVENT_APIS

Edge = tuple[str, str, int, int, int]
"""(op, kernel, occurrence, stream of the waiter, stream awaited)."""

TOLERANCE_NS = 2_000
"""Time in ns by which a waiter may begin before the awaited end, because timestamps are rounded to a microsecond."""

_MAX_CONTRADICTED_SHARE = 0.1
"""Share of contradicting training occurrences above which an edge is dropped."""


@dataclass
class WaitModel:
    """Edges seen in training: how often each occurred, and how often the trace contradicts it."""

    seen: dict[Edge, int] = field(default_factory=dict)
    broken: dict[Edge, int] = field(default_factory=dict)

    def learn(self, act: Activity, keys: ItemKeys, chosen: Iterable[Iteration]) -> WaitModel:
        """Add the waits of some iterations; returns itself."""
        for iteration in chosen:
            for edge, waiter, awaited in _candidates(act, keys, iteration):
                calls = iteration.calls
                late = act.call_start[calls[waiter]] + TOLERANCE_NS < act.call_end[calls[awaited]]
                self.seen[edge] = self.seen.get(edge, 0) + 1
                self.broken[edge] = self.broken.get(edge, 0) + int(late)
        return self

    def holds(self, edge: Edge) -> bool:
        """Whether training saw this edge and did not contradict it."""
        return edge in self.seen and self.broken[edge] <= _MAX_CONTRADICTED_SHARE * self.seen[edge]

    def edges(self, act: Activity, keys: ItemKeys, iteration: Iteration) -> dict[int, list[int]]:
        """Awaited calls of each waiter of an iteration, numbered within it. Only the order of its calls is used."""
        out: dict[int, list[int]] = {}
        for edge, waiter, awaited in _candidates(act, keys, iteration):
            if self.holds(edge):
                out.setdefault(waiter, []).append(awaited)
        return out


def _candidates(act: Activity, keys: ItemKeys, iteration: Iteration) -> list[tuple[Edge, int, int]]:
    """Possible edges of an iteration: (key, waiter, awaited call)."""
    calls = iteration.calls
    if not len(calls):
        return []
    waits = _during(act, iteration, WAIT_EVENT_APIS)
    if not len(waits):
        return []
    launch = act.call_action[calls]
    stamp = act.action_start[launch]
    order = np.argsort(stamp, kind="stable")
    stream, thread = act.call_stream[calls], act.trace.columns["tid"][act.action_event[launch]]
    names, kernels = keys.name[act.action_item[launch]], act.trace.names[act.call_event[calls]]
    occurrence = _occurrence(names, kernels, order)
    named, number = _named(act), act.trace.columns["stream"][act.call_event[calls]]
    correlation, tids = act.trace.columns["correlation"], act.trace.columns["tid"]
    last: dict[int, int] = {}  # stream -> latest call launched on it so far
    heads: dict[int, dict[int, int]] = {}  # record of an event -> `last` at that moment
    pending: list[_Pending] = []
    records = act.trace.texts_in("name", RECORD_APIS) & (
        act.trace.columns["pid"] == act.trace.process
    )
    recorded = set(correlation[records].tolist())
    out = []
    events = sorted(
        [(int(stamp[c]), 2, int(c)) for c in order]
        + [(int(act.trace.columns["ts_ns"][w]), 1, int(w)) for w in waits]
        + [
            (int(act.trace.columns["ts_ns"][r]), 0, int(r))
            for r in _during(act, iteration, RECORD_APIS)
        ]
    )
    for _, what, which in events:
        if what == 0:
            heads[int(correlation[which])] = dict(last)
            continue
        if what == 1:
            known = named.get(int(correlation[which]), _Named())
            held = heads.get(known.record, {} if known.record in recorded else dict(last))
            pending.append(_Pending(int(tids[which]), known.waiter, known.awaited, held))
            continue
        own = int(stream[which])
        sources: dict[int, int] = {}
        for wait in [
            wait for wait in pending if wait.holds_up(int(thread[which]), int(number[which]))
        ]:
            pending.remove(wait)
            sources |= {
                s: c
                for s, c in wait.heads.items()
                if s != own and wait.awaited in (-1, int(number[c]))
            }
        for source, awaited in sources.items():
            edge = (str(names[which]), str(kernels[which]), int(occurrence[which]), own, source)
            out.append((edge, which, awaited))
        last[own] = which
    return out


@dataclass(frozen=True)
class _Named:
    """Data of a stream wait in newer traces: waiting stream, awaited stream, record of the event; -1 if unknown."""

    waiter: int = -1
    awaited: int = -1
    record: int = -1


@dataclass(frozen=True)
class _Pending:
    """A stream wait without a launch after it so far: thread, waiting and awaited stream, and the calls it may await."""

    thread: int
    waiter: int
    awaited: int
    heads: dict[int, int]

    def holds_up(self, thread: int, stream: int) -> bool:
        """Whether a launch is the one that waits: the next on the named stream, else the next of the thread."""
        return self.waiter == stream if self.waiter >= 0 else self.thread == thread


def _during(act: Activity, iteration: Iteration, apis: frozenset[str]) -> Ints:
    """Events of some runtime calls during an iteration, of the process whose steps count."""
    trace = act.trace
    runtime = trace.is_category(*API_CATEGORIES) & trace.texts_in("name", apis)
    runtime &= trace.columns["pid"] == trace.process
    stamp = trace.columns["ts_ns"]
    return np.flatnonzero(
        runtime & (stamp >= iteration.start_ns) & (stamp <= act.end[iteration.items].max())
    )


def _named(act: Activity) -> dict[int, _Named]:
    """For each correlation id what a stream wait waits for, from `cuda_sync` events of the trace."""
    columns = act.trace.columns
    rows = act.sync_details
    rows = rows[columns["wait_stream"][rows] >= 0]
    values = [
        columns[name][rows].tolist()
        for name in ("correlation", "stream", "wait_stream", "wait_event")
    ]
    return {corr: _Named(*(max(v, -1) for v in rest)) for corr, *rest in zip(*values, strict=True)}


def _occurrence(names: Texts, kernels: Texts, order: Ints) -> Ints:
    """How many calls of the same op and kernel were launched before each call."""
    seen: dict[tuple[str, str], int] = {}
    out = np.zeros(len(names), np.int64)
    for row in order.tolist():
        key = (names[row], kernels[row])
        out[row] = seen.get(key, 0)
        seen[key] = int(out[row]) + 1
    return out
