"""Builds the program of one iteration of a trace. Call order and backlog are given; host times are looked up.

Streams share the multiprocessors. A kernel fills the GPU if it has more blocks than all multiprocessors hold at once. A
kernel that another stream launches meanwhile then begins when the last blocks of the first kernel run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.hardware.occupancy import limits_of_device, resident_blocks
from pipeline.overheads.extraction import ItemKeys
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.simulate.assembly import StepSequence, assemble
from pipeline.simulate.program import Items, Kind, Program
from pipeline.simulate.timeline import union_us
from pipeline.trace.event_links import DATA, PHASES
from pipeline.trace.host_activity import Activity
from pipeline.trace.iterations import step_number
from pipeline.trace.kineto_fields import (
    API_CATEGORIES,
    EVENT_SYNC_APIS,
    MISSING,
    RECORD_APIS,
    Category,
)
from pipeline.trace.linked_trace import first_after_warm_up


@dataclass(frozen=True)
class Iteration:
    """One iteration of a trace.

    Attributes:
        number: index of the iteration in the trace.
        step: number of its step, as `ProfilerStep#n` states it; None without that.
        items: positions of its items in the activity.
        actions: positions of its actions.
        calls: positions of its calls, in launch order.
        start_ns: begin of its first item.
        end_ns: end of its last item or call, whichever is later.
        kernel_us: duration of each call.
        active_us: time in which at least one call runs.
    """

    number: int
    step: int | None
    items: Ints
    actions: Ints
    calls: Ints
    start_ns: int
    end_ns: int
    kernel_us: Array
    active_us: float

    @property
    def span_us(self) -> float:
        """Measured span: from the first item to the end of host and device."""
        return (self.end_ns - self.start_ns) / 1000.0


def iterations(act: Activity) -> list[Iteration]:
    """The iterations of a trace that hold any work, in order.

    A step begins after the data loader, with an op. Loading and waits outside any op count only in the middle of a
    step. At its ends they do not: a `torch.cuda.synchronize()` between steps belongs to no step.
    """
    out = []
    outside = (act.trace.columns["phase"][act.item] == DATA) | _bare_waits(act)
    call_start, call_end = act.call_start, act.call_end
    for number in range(len(act.trace.opens)):
        items = np.flatnonzero(act.iteration == number)
        work = np.flatnonzero(~outside[items])
        items = items[work[0] : work[-1] + 1] if len(work) else items[:0]
        if not len(items):
            continue
        is_item = np.zeros(len(act.item), bool)
        is_item[items] = True
        of_action = is_item[act.action_item]
        calls = np.flatnonzero(of_action[act.call_action])
        start, host_end = int(act.start[items].min()), int(act.end[items].max())
        end = int(call_end[calls].max(initial=host_end))
        begin, finish = (
            (call_start[calls, None] - start) / 1000.0,
            (call_end[calls, None] - start) / 1000.0,
        )
        out.append(
            Iteration(
                number=number,
                step=step_number(act.trace, number),
                items=items,
                actions=np.flatnonzero(of_action),
                calls=calls,
                start_ns=start,
                end_ns=end,
                kernel_us=(call_end - call_start)[calls] / 1000.0,
                active_us=float(union_us(begin, finish)[0]),
            )
        )
    return out


def _bare_waits(act: Activity) -> Flags:
    """Items that are waits of the host outside any op."""
    out = np.zeros(len(act.item), bool)
    out[act.action_item[act.action_sync]] = True
    return out & ~act.trace.is_category(Category.OP)[act.item]


def shows_queue(act: Activity, iteration: Iteration) -> Flags:
    """Calls that show earlier work whose launch the trace lacks: they wait for longer than their launch came after the begin."""
    # where a launch came later than that, the host was late (the start of a driver)
    free = act.unseen_queue_ns[iteration.calls]
    launched = act.action_end[act.call_action[iteration.calls]]
    return np.asarray((free > iteration.start_ns) & (free + iteration.start_ns >= 2 * launched))


def backlog_us(act: Activity, iteration: Iteration) -> dict[int, float]:
    """Time until which each stream is busy with work launched before the iteration, in µs from its begin.

    Where the trace does not hold that launch, the first call that waited shows the work (`Activity.unseen_queue_ns`).
    """
    begin = iteration.start_ns
    earlier = (act.action_start[act.call_action] < begin) & (act.call_end > begin)
    unseen = iteration.calls[shows_queue(act, iteration)]
    stream = np.concatenate([act.call_stream[earlier], act.call_stream[unseen]])
    end = np.concatenate([act.call_end[earlier], act.unseen_queue_ns[unseen]])
    return {int(s): float((end[stream == s].max() - begin) / 1000.0) for s in np.unique(stream)}


def queued_before_us(act: Activity, iteration: Iteration) -> float:
    """Time in µs by which work launched before an iteration delays it: until its last stream has finished that work.

    The rest of the span is the iteration's own step. Work that outlasts the span did not delay it and counts as 0.
    """
    queued = max(backlog_us(act, iteration).values(), default=0.0)
    return queued if queued < iteration.span_us else 0.0


def time_per_batch_us(chosen: Sequence[Iteration]) -> float | None:
    """Mean time in µs from the end of an iteration to the end of the next, loading and waits included.

    The warm-up iteration is left out (`first_after_warm_up`), and so are pauses: only steps with consecutive numbers
    count. None for traces without two such steps.
    """
    settled = {iteration.number for iteration in chosen[first_after_warm_up(len(chosen)) :]}
    times = [
        (after.end_ns - before.end_ns) / 1000.0
        for before, after in pairwise(chosen)
        if after.number == before.number + 1
        and after.number in settled
        and (before.step is None or after.step is None or after.step == before.step + 1)
    ]
    return float(np.mean(times)) if times else None


def program_from_trace(
    act: Activity,
    keys: ItemKeys,
    iteration: Iteration,
    overheads: OverheadModel,
    waits: Mapping[int, Sequence[int]] | None = None,
) -> Program:
    """Program of a traced iteration; call k of the program is `iteration.calls[k]`.

    Args:
        act: activity of the trace.
        keys: keys of its items.
        iteration: the iteration to rebuild.
        overheads: host statistics, of other iterations or traces.
        waits: for each call the calls of other streams that it must await, numbered within the iteration.
    """
    items, actions, calls = iteration.items, iteration.actions, iteration.calls
    local_item = np.full(len(act.item), -1)
    local_item[items] = np.arange(len(items))
    previous = np.where(act.previous[items] >= 0, local_item[act.previous[items]], -1)
    previous[1:] = np.where(previous[1:] < 0, np.arange(len(items) - 1), previous[1:])
    local_call = np.full(len(act.action_event), -1)
    local_call[act.call_action[calls][::-1]] = np.arange(len(calls))[
        ::-1
    ]  # the first of several calls
    phase = act.trace.columns["phase"][act.item[items]]
    sequence = StepSequence(
        items=Items(
            node=act.item[items],
            name=keys.name[items],
            thread=act.thread[items],
            phase=np.array([*PHASES, "forward"], object)[phase],
            evidence=np.full(len(items), "", object),
        ),
        signature=keys.signature[items],
        previous=previous,
        loading=act.loading[items] & (previous >= 0),
        action_item=local_item[act.action_item[actions]],
        api=act.apis[actions],
        sync=act.action_sync[actions],
        stream=act.action_stream[actions],
        blocking=_blocking(act, actions),
        call=local_call[actions],
    )
    program = assemble(
        sequence, overheads, len(calls), waits=waits or {}, backlog_us=backlog_us(act, iteration)
    )
    program = _with_event_waits(program, act, iteration)
    gpus = np.unique(act.trace.columns["device"][act.call_event[calls]])
    if (
        len(program.streams) > 1 and len(gpus) == 1
    ):  # kernels of two GPUs do not compete for multiprocessors
        program = replace(
            program, fills=fills_device(act, calls), competes=uses_multiprocessors(act, calls)
        )
    return _with_extra_calls(program, act, iteration, local_call)


def _with_event_waits(program: Program, act: Activity, iteration: Iteration) -> Program:
    """Make each wait of the host for an event await the calls that its stream held when the event was recorded.

    An event that was recorded before any call of the iteration causes no wait. Without `cuda_sync` events in the trace,
    the recorded event is unknown, and a wait for an event stays a wait for all streams.
    """
    columns, calls = act.trace.columns, iteration.calls
    known = act.sync_details
    known = known[columns["wait_event"][known] >= 0]
    if not len(known):
        return program
    named = act.trace.by_correlation(known, known)
    runtime = act.trace.is_category(*API_CATEGORIES) & (columns["pid"] == act.trace.process)
    records = np.flatnonzero(runtime & act.trace.texts_in("name", RECORD_APIS))
    recorded = act.trace.by_correlation(records, columns["ts_ns"][records])
    events = act.action_event[iteration.actions]
    launched = act.action_start[act.call_action[calls]]
    stream, gpu = columns["stream"][act.call_event[calls]], columns["device"][act.call_event[calls]]
    lists = [part.tolist() for part in np.split(program.wait_calls, program.wait_offsets[1:-1])]
    kind = program.kind.copy()
    rows = np.flatnonzero(program.kind != Kind.HOST)  # one for each action
    for at in np.flatnonzero(act.trace.texts_in("name", EVENT_SYNC_APIS)[events]).tolist():
        sync = named.get(int(columns["correlation"][events[at]]), -1)
        stamp = recorded.get(int(columns["wait_event"][sync])) if sync >= 0 else None
        if stamp is None:
            continue
        awaited = (stream == columns["wait_stream"][sync]) & (gpu == columns["device"][sync])
        ahead = np.flatnonzero(awaited & (launched < stamp))
        if len(ahead):
            lists[rows[at]] = [int(ahead[np.argmax(launched[ahead])])]
        else:
            kind[rows[at]] = Kind.HOST
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    return replace(
        program,
        kind=kind,
        wait_offsets=offsets,
        wait_calls=np.array([c for each in lists for c in each], np.int64),
    )


def _blocking(act: Activity, actions: Ints) -> Flags:
    blocking = np.zeros(len(act.action_event), bool)
    blocking[act.call_action[act.blocking]] = True
    return blocking[actions]


def _with_extra_calls(
    program: Program, act: Activity, iteration: Iteration, local_call: Ints
) -> Program:
    """Give launches of several calls (CUDA graphs) one more row per further call, without host time."""
    calls = iteration.calls
    launched = np.zeros(len(calls), bool)
    launched[program.call[program.call >= 0]] = True
    extra = np.flatnonzero(~launched)
    if not len(extra):
        return program
    row_of_call = np.full(len(calls), -1)
    row_of_call[program.call[program.call >= 0]] = np.flatnonzero(program.call >= 0)
    base = row_of_call[local_call[act.call_action[calls[extra]]]]
    order = np.argsort(np.concatenate([np.arange(len(program)), base + 0.5]), kind="stable")
    source = np.concatenate([np.arange(len(program)), base])[order]
    is_extra = np.concatenate([np.zeros(len(program), bool), np.ones(len(base), bool)])[order]
    last_copy = np.zeros(len(program), np.int64)
    last_copy[source] = np.arange(
        len(source)
    )  # rows that followed a launch now follow its last call
    previous = np.where(is_extra, np.arange(-1, len(source) - 1), 0)
    followed = program.previous[source]
    previous = np.where(
        is_extra, previous, np.where(followed >= 0, last_copy[np.maximum(followed, 0)], -1)
    )
    tail = program.tail_us[source]
    tail[last_copy[source] != np.arange(len(source))] = 0.0
    call = program.call[source]
    call[is_extra] = extra
    streams, code = np.unique(
        np.concatenate([program.streams, act.call_stream[calls[extra]]]), return_inverse=True
    )
    stream = np.where(
        program.stream >= 0, code[: len(program.streams)][np.maximum(program.stream, 0)], -1
    )[source]
    stream[is_extra] = code[len(program.streams) :]
    backlog = np.zeros(len(streams))
    backlog[code[: len(program.streams)]] = program.backlog_us
    counts = np.diff(program.wait_offsets)[source] * ~is_extra
    quiet = np.where(is_extra, 0.0, 1.0)
    return replace(
        program,
        item=program.item[source],
        kind=program.kind[source],
        thread=program.thread[source],
        previous=previous,
        lead_us=program.lead_us[source] * quiet,
        gap_us=program.gap_us[source] * quiet,
        api_us=program.api_us[source] * quiet,
        tail_us=tail,
        call=call,
        stream=stream,
        blocking=program.blocking[source],
        latency_us=program.latency_us[source],
        kernel_gap_us=program.kernel_gap_us[source],
        wait_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        streams=streams,
        backlog_us=backlog,
        further=is_extra,
    )


def uses_multiprocessors(act: Activity, calls: Ints) -> Flags:
    """Calls that need multiprocessors: kernels, but not copies or fills, which use separate engines."""
    return act.trace.is_category(Category.KERNEL)[act.call_event[calls]]


def fills_device(act: Activity, calls: Ints) -> Flags:
    """Calls with more blocks than the whole GPU holds at once; none if the trace does not describe its GPU."""
    properties = _properties(act)
    columns, events = act.trace.columns, act.call_event[calls]
    if properties is None or not len(calls):
        return np.zeros(len(calls), bool)
    blocks = _product(act.trace.vocabulary["grid"])[columns["grid"][events]]
    threads = np.maximum(_product(act.trace.vocabulary["block"])[columns["block"][events]], 1)
    registers, shared = (_known(columns[name][events]) for name in ("registers", "shared_memory"))
    resident = resident_blocks(limits_of_device(properties), threads, registers, shared)
    full: Flags = (blocks > 0) & (blocks >= resident * properties["numSms"])
    return full & uses_multiprocessors(act, calls)


def _properties(act: Activity) -> Mapping[str, int] | None:
    keys = (
        "maxThreadsPerMultiprocessor",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
        "numSms",
    )
    listed = act.trace.metadata.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and all(_is_count(entry.get(key)) for key in keys):
            capability = [
                key for key in ("computeMajor", "computeMinor") if type(entry.get(key)) is int
            ]
            return {key: int(entry[key]) for key in (*keys, *capability)}
    return None


def _known(values: npt.NDArray[np.generic]) -> Array:
    """Values as floats, NaN where the trace states none."""
    return np.where(values == MISSING, np.nan, values.astype(np.float64))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _product(texts: Texts) -> Ints:
    """Product of each text `[x,y,z]`; 0 for other text, and for absent text (the last entry)."""
    out = np.zeros(len(texts) + 1, np.int64)
    for i, text in enumerate(texts):
        try:
            sizes = json.loads(text)
            out[i] = (
                math.prod(sizes)
                if len(sizes) == 3 and all(_is_count(size) for size in sizes)
                else 0
            )
        except (ValueError, TypeError, OverflowError):
            continue
    return out
