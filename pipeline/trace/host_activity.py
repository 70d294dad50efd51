"""Host activity, as the critical path uses it: items, the actions inside them, and the device calls that they started.

- An *item* is a top-level op, or a runtime call that stands outside any op. Items are in host order over all threads.
- An *action* is a moment inside an item at which host and device meet: a launch, or a wait of the host (sync).
- A *call* is one unit of device work, such as a kernel. A launch starts one call (CUDA graphs: several).

In a trace without a GPU, the CPU is the device, and its calls are compute ops (`compute_ops`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.arrays import Flags, Ints, Texts
from pipeline.trace.compute_ops import compute_ops
from pipeline.trace.event_links import refuse_other_devices, thread_numbers
from pipeline.trace.kineto_fields import (
    API_CATEGORIES,
    BACKWARD_PREFIX,
    CPU_API,
    DEVICE_CATEGORIES,
    KERNEL_LAUNCH,
    KERNEL_LAUNCHES,
    LOADER_MARKER,
    SYNC_APIS,
    Category,
)
from pipeline.trace.linked_trace import Trace

STAGED_COPY_BYTES = 64 << 10
"""Largest host-to-device copy from pageable memory, in bytes, that the driver stages without blocking the host."""

SECOND_GPU_STREAMS = 1_000_000
"""First stream number of a process's second GPU; the third starts at twice this number. Every GPU has a stream 7."""

EARLY_NS = -(2**62)
"""A time before every event."""

UNRECORDED_NS = 100_000
"""Shortest wait of a launched call on an idle GPU, in ns, that shows work which the trace does not hold. In 17 public
traces without such gaps, all waits are below 20 µs."""

BEGIN_SHARE = 0.01
"""Largest work of an iteration before a call that begins it on another stream, as a share of that call's wait."""


@dataclass(frozen=True)
class Activity:
    """Items, actions and calls of a trace. Each action refers to its item, each call to its action.

    Attributes:
        trace: the trace itself.
        item: event id of each item.
        thread: role of the item's thread (0 main, 1 autograd, 2... others).
        start: start of each item, ns.
        end: end of each item, ns.
        iteration: iteration of each item, -1 outside any.
        children: number of ops nested in each item.
        previous: the item whose end each item follows, -1 for the first.
        loading: whether data was loaded between an item and the one it follows.
        action_item: item of each action.
        action_event: event id of each action.
        action_sync: whether an action is a wait of the host.
        call_action: action of each call, in launch order.
        call_event: event id of each call.
        blocking: whether the host waits for a call's end before it continues.
    """

    trace: Trace
    item: Ints
    thread: Ints
    start: Ints
    end: Ints
    iteration: Ints
    children: Ints
    previous: Ints
    loading: Flags
    action_item: Ints
    action_event: Ints
    action_sync: Flags
    call_action: Ints
    call_event: Ints
    blocking: Flags

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is the device."""
        return self.trace.device == "cpu"

    @property
    def action_start(self) -> Ints:
        """Start of each action, ns."""
        return self.trace.columns["ts_ns"][self.action_event]

    @property
    def action_end(self) -> Ints:
        """End of each action, ns."""
        return self.trace.end_ns[self.action_event]

    @property
    def apis(self) -> Texts:
        """API name of each action. All kernel launches have one name, because a graph does not show which API a library
        uses.
        """
        if self.on_cpu:
            return np.full(len(self.action_event), CPU_API, object)
        launches = self.trace.where("name", KERNEL_LAUNCHES.match)[self.action_event]
        return np.where(launches, KERNEL_LAUNCH, self.trace.names[self.action_event])

    @property
    def call_start(self) -> Ints:
        """Start of each call on the device, ns."""
        return self.trace.columns["ts_ns"][self.call_event]

    @property
    def call_end(self) -> Ints:
        """End of each call on the device, ns."""
        return self.trace.end_ns[self.call_event]

    @cached_property
    def call_stream(self) -> Ints:
        """Stream of each call; see `stream_ids`."""
        return stream_ids(self.trace, self.call_event)

    @cached_property
    def action_stream(self) -> Ints:
        """Stream of each action's first call. For a wait: the awaited stream, or -1 for a wait for all streams.

        Newer traces name the stream, in an event of category cuda_sync with the same correlation. In older traces, a
        wait for a stream is assumed to be for the stream of its thread's last launch, as in `.item()` and copies.
        """
        stream = np.full(len(self.action_event), -1)
        stream[self.call_action[::-1]] = self.call_stream[::-1]
        columns = self.trace.columns
        syncs = self.sync_details
        syncs = syncs[columns["stream"][syncs] >= 0]
        named = self.trace.by_correlation(syncs, stream_ids(self.trace, syncs))
        apis, thread = self.trace.names[self.action_event], columns["tid"][self.action_event]
        latest: dict[int, int] = {}
        for row in np.argsort(self.action_start, kind="stable").tolist():
            if not self.action_sync[row]:
                latest[int(thread[row])] = int(stream[row])
                continue
            known = named.get(int(columns["correlation"][self.action_event[row]]), -1)
            guess = latest.get(int(thread[row]), -1) if "Stream" in apis[row] else -1
            stream[row] = known if known >= 0 else guess
        return stream

    @cached_property
    def unrecorded_ns(self) -> Ints:
        """For each call the time before its start in which it was launched and its GPU idle, as far as recorded.

        The GPU then worked on something that the profiler did not record. Short waits count as 0 (`UNRECORDED_NS`).
        """
        return self._unrecorded(self.action_end[self.call_action], self.call_start)

    @cached_property
    def unrecorded_wait_ns(self) -> Ints:
        """For each action the time in which the host waited and its GPU was idle, as far as recorded; 0 for a launch.

        Short waits count as 0 (`UNRECORDED_NS`).
        """
        return self.action_sync * self._unrecorded(self.action_start, self.action_end)

    def _unrecorded(self, since: Ints, until: Ints) -> Ints:
        """Time before `until` and after `since` that follows all work recorded to begin before it, ns."""
        device = self._device_events
        reach = np.append(np.maximum.accumulate(self.trace.end_ns[device]), EARLY_NS)
        before = reach[np.searchsorted(self.trace.columns["ts_ns"][device], until) - 1]
        wait = until - np.maximum(before, since)
        return np.where((wait >= UNRECORDED_NS) & (not self.on_cpu), wait, 0)

    @cached_property
    def unseen_queue_ns(self) -> Ints:
        """For each call the end of the work that was queued before its iteration and whose launch the trace does not hold.

        The call that begins an iteration on the device shows such work by waiting for nothing that was recorded. The first
        call of all on a stream shows it so too, where next to no work of its iteration came before it (`BEGIN_SHARE`), or by
        waiting for recorded work without a launch. Other calls have `EARLY_NS`.
        """
        columns, device, stream = self.trace.columns, self._device_events, self.call_stream
        out = np.full(len(stream), EARLY_NS)
        alone = device[columns["launch"][device] < 0]
        alone_stream, alone_end = stream_ids(self.trace, alone), self.trace.end_ns[alone]
        iteration = self.iteration[self.action_item[self.call_action]]
        by_start = np.argsort(self.call_start, kind="stable")
        for call in by_start[np.unique(stream[by_start], return_index=True)[1]].tolist():
            start, ready = self.call_start[call], self.action_end[self.call_action[call]]
            before = alone_end[(alone_stream == stream[call]) & (alone_end <= start)].max(
                initial=EARLY_NS
            )
            earlier = (iteration == iteration[call]) & (self.call_start < start)
            if before - ready >= UNRECORDED_NS:
                out[call] = before
            elif (self.call_end - self.call_start)[
                earlier
            ].sum() < BEGIN_SHARE * self.unrecorded_ns[call]:
                out[call] = start
        begins = by_start[np.unique(iteration[by_start], return_index=True)[1]]
        begins = begins[self.unrecorded_ns[begins] > 0]
        out[begins] = self.call_start[begins]
        return out

    @cached_property
    def _device_events(self) -> Ints:
        """All work on the GPUs of the calls, with and without a launch, by start."""
        device = np.flatnonzero(self.trace.is_category(*DEVICE_CATEGORIES))
        gpu = self.trace.columns["device"]
        return device[np.isin(gpu[device], gpu[self.call_event])]

    @cached_property
    def sync_details(self) -> Ints:
        """Events that describe waits (`cuda_sync`), of the GPUs used by the process whose steps count.

        Each process counts its ids from 1. In a file of several ranks, ids of another rank would match waits of this
        one.
        """
        columns = self.trace.columns
        rows = np.flatnonzero(self.trace.is_category(Category.SYNC))
        launched = np.flatnonzero(columns["launch"] >= 0)
        own = columns["pid"][columns["launch"][launched]] == self.trace.process
        foreign = np.setdiff1d(columns["device"][launched[~own]], columns["device"][launched[own]])
        return rows[~np.isin(columns["device"][rows], foreign)]


def stream_ids(trace: Trace, events: Ints) -> Ints:
    """Streams of some events, with distinct numbers per GPU. Streams of the first GPU keep their number; -1 stays."""
    stream, device = trace.columns["stream"][events], trace.columns["device"]
    stream = np.where(stream < -(2**62), 0, stream)
    launched = np.flatnonzero(trace.columns["launch"] >= 0)
    used = np.unique(
        device[launched[trace.columns["pid"][trace.columns["launch"][launched]] == trace.process]]
    )
    if len(used) < 2:
        return stream
    return np.where(
        stream >= 0, stream + SECOND_GPU_STREAMS * np.searchsorted(used, device[events]), stream
    )


def activity(trace: Trace) -> Activity:
    """Items, actions and calls of a whole trace.

    Raises:
        TraceError: it is of a device that is not supported.
    """
    refuse_other_devices(trace)
    columns = trace.columns
    call_event, action_event, action_sync = _device_work(trace)
    is_op = trace.is_category(Category.OP)
    top = columns["top"]
    main = columns["pid"] == trace.process
    tops = np.flatnonzero(is_op & main & (top == np.arange(len(trace))))
    orphans = action_event[top[action_event] < 0]
    item = np.concatenate([tops, orphans])
    item = item[np.lexsort((item, columns["ts_ns"][item]))]
    position = np.full(len(trace), -1)
    position[item] = np.arange(len(item))
    owner = np.where(top[action_event] >= 0, top[action_event], action_event)
    order = np.lexsort((columns["ts_ns"][action_event], position[owner]))
    action_event, action_sync, owner = action_event[order], action_sync[order], owner[order]
    action_position = np.full(len(trace), -1)
    action_position[action_event] = np.arange(len(action_event))
    call_action = action_position[
        call_event if trace.device == "cpu" else columns["launch"][call_event]
    ]
    order = np.lexsort((columns["ts_ns"][call_event], call_action))
    call_action, call_event = call_action[order], call_event[order]
    nested = is_op & main & (top >= 0) & (top != np.arange(len(trace)))
    children = np.bincount(position[top[nested]], minlength=len(item))
    start, end = columns["ts_ns"][item], trace.end_ns[item]
    thread = _roles(trace, item)
    previous = _previous(thread, start, end)
    return Activity(
        trace=trace,
        item=item,
        thread=thread,
        start=start,
        end=end,
        iteration=columns["iteration"][item],
        children=children.astype(np.int64),
        previous=previous,
        loading=_loading(trace, previous, start, end),
        action_item=position[owner],
        action_event=action_event,
        action_sync=action_sync,
        call_action=call_action,
        call_event=call_event,
        blocking=_blocking(trace, call_action, call_event, action_event),
    )


def _device_work(trace: Trace) -> tuple[Ints, Ints, Flags]:
    """Events of calls, events of actions, and which actions are waits, all of the process whose steps count."""
    main = trace.columns["pid"] == trace.process
    if trace.device == "cpu":
        calls = np.flatnonzero(compute_ops(trace) & main)
        return calls, calls, np.zeros(len(calls), bool)
    device = np.flatnonzero(trace.is_category(*DEVICE_CATEGORIES))
    calls = device[trace.columns["launch"][device] >= 0]
    calls = calls[main[trace.columns["launch"][calls]]]
    runtime = trace.is_category(*API_CATEGORIES) & main
    syncs = np.flatnonzero(runtime & trace.texts_in("name", SYNC_APIS))
    launching = np.unique(trace.columns["launch"][calls])
    actions = np.unique(np.concatenate([launching, syncs]))
    return calls, actions, ~np.isin(actions, launching)


def _roles(trace: Trace, item: Ints) -> Ints:
    """Role of each item's thread: 0 the one with most forward items, 1 the autograd thread, then by first use."""
    if not len(item):
        return np.empty(0, np.int64)
    code = thread_numbers(trace.columns["pid"][item], trace.columns["tid"][item])
    backward = trace.where("name", lambda name: name.startswith(BACKWARD_PREFIX))[item]
    count = int(code.max()) + 1
    forward_items = np.bincount(code[~backward], minlength=count)
    backward_items = np.bincount(code[backward], minlength=count)
    first = np.full(count, len(item))
    np.minimum.at(first, code, np.arange(len(item)))
    main = int(np.argmax(forward_items))
    others = sorted(
        (thread for thread in range(count) if thread != main),
        key=lambda t: (-int(backward_items[t]), int(first[t])),
    )
    role = np.zeros(count, np.int64)
    next_role = 1 if others and backward_items[others[0]] else 2
    for number, thread in enumerate(others):
        role[thread] = next_role + number
    return role[code]


def _previous(thread: Ints, start: Ints, end: Ints) -> Ints:
    """The item that each item follows: the previous one of its thread, unless another thread worked in between.

    Another thread worked in between if the latest item to end before this one began after the end of the thread's
    previous item. Only the order of begins and ends is used, no durations, because a replay may use the order but not
    the times.
    """
    count = len(start)
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start, side="right") - 1
    anywhere = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    own = np.full(count, -1)
    for role in np.unique(thread):
        rows = np.flatnonzero(thread == role)
        own[rows[1:]] = rows[:-1]
    between = (own < 0) | (start[np.maximum(anywhere, 0)] >= end[np.maximum(own, 0)])
    previous = np.where((anywhere >= 0) & between, anywhere, own)
    return np.where(previous < np.arange(count), previous, own)


def _loading(trace: Trace, previous: Ints, start: Ints, end: Ints) -> Flags:
    """Whether a loader annotation begins between the end of the previous item and the start of this one."""
    rows = trace.names_begin_with(LOADER_MARKER)
    own = trace.is_category(Category.ANNOTATION) & (trace.columns["pid"] == trace.process)
    stamps = trace.columns["ts_ns"][rows[own[rows]]]
    since = np.where(previous >= 0, end[previous], start)
    return np.searchsorted(stamps, start, side="right") > np.searchsorted(stamps, since)


def _blocking(trace: Trace, call_action: Ints, call_event: Ints, action_event: Ints) -> Flags:
    """Calls for which the host waits: the CPU as device, synchronous copies, copies to or from pageable memory."""
    if trace.device == "cpu":
        return np.ones(len(call_event), bool)
    copies = trace.where("name", lambda name: "emcpy" in name and "Async" not in name)
    staged = trace.where("name", lambda name: "HtoD" in name)
    staged &= trace.columns["bytes"] <= STAGED_COPY_BYTES
    pageable = trace.where("name", lambda name: "Pageable" in name) & ~staged
    waits: Flags = copies[action_event[call_action]] | pageable[call_event]
    return trace.is_category(Category.MEMCPY)[call_event] & waits
