"""Extracts overheads of the host from a trace, as raw observations (Lin et al., section IV-B; docs/replay.md).

Types of observations:

- `T1`: gap before an item, since the end of the item it follows.
- `T2`: in an item, before its first action.
- `T3`: in an item, after its last action.
- `T4`: the runtime call itself, without waiting.
- `T5`: in an item, between two actions; for an item without actions, its whole time.
- `loading`: gap in which data was loaded (no T1).
- `launch_latency`: from the start of a launch to the start of its call on an idle stream.
- `kernel_gap`: between two queued calls on a stream.
- `sync_return`: from the end of the awaited work to the return of the waiting call.

There is one observation per occurrence, with its iteration, so that any statistics can be computed from them.

Runtime calls with a large one-time cost (the start of CUDA, loading a kernel's code, memory from the driver) occur in no step
after warm-up, and no statistics predict them. They are found by their duration. Statistics are taken without them, and a
replay reports those in the evaluated iterations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.arrays import Flags, Ints, Texts
from pipeline.overheads.overhead_model import ANY_OP, full_signature, switch_signature
from pipeline.trace.host_activity import EARLY_NS, Activity, activity
from pipeline.trace.kineto_fields import API_CATEGORIES, RESOURCE_APIS, SYNC_APIS
from pipeline.trace.linked_trace import Trace

WAIT_CAP_US = 10.0
"""Largest cost in µs of a call in which the host waits. The rest of its duration is waiting time, which is
simulated."""

FULL_QUEUE_CALLS = 900
"""Number of outstanding calls from which a launch may block, because the queue holds about 1024. Such launches are not
used for T4."""

QUEUED_NS = 10_000
"""Time in ns. A call counts as queued if its launch returned at least this long before the previous call ended."""

ROUNDED_SHARE = 0.1
"""Share of calls without duration from which a trace in whole µs has lost durations. Below it they are short kernels: 7 %
of the calls of the public trace `v100dgx_resnet50`."""

COLUMNS = ["type", "op", "value_us", "iteration", "workload", "api", "signature"]


@dataclass(frozen=True)
class ItemKeys:
    """The keys of the overheads of items.

    Attributes:
        name: name of each item.
        signature: full signature of each item.
        calls: number of actions of each item.
        first: first action of each item in the action arrays (undefined where `calls` is 0).
    """

    name: Texts
    signature: Texts
    calls: Ints
    first: Ints


def item_keys(act: Activity) -> ItemKeys:
    """Names and signatures of all items of a trace."""
    trace = act.trace
    name = trace.names[act.item]
    calls = np.bincount(act.action_item, minlength=len(act.item)).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(calls)[:-1]]).astype(np.int64) if len(calls) else calls
    apis = act.apis
    shapes = np.append(trace.vocabulary["input_shapes"], "")[
        trace.columns["input_shapes"][act.item]
    ]
    signature = np.array(
        [
            full_signature(apis[a : a + n], shape, kids)
            for a, n, shape, kids in zip(first, calls, shapes, act.children, strict=True)
        ],
        object,
    )
    return ItemKeys(name, signature, calls, first)


def extract_overheads(
    source: Trace | Activity,
    workload: str = "",
    iterations: Flags | None = None,
    keys: ItemKeys | None = None,
    waiting: bool = False,
) -> pd.DataFrame:
    """All observations of a trace as an `overhead_samples` table.

    Args:
        source: a trace, or its activity if the caller has it already.
        workload: name of the workload, stored with the observations.
        iterations: which iterations to use (one flag each); all by default. If the trace has a marker, work outside any
            iteration is left out.
        keys: keys of the items, if the caller has them already.
        waiting: keep waiting time in T4, as the published form does, which does not simulate waits of the host.
    """
    act = source if isinstance(source, Activity) else activity(source)
    keys = keys or item_keys(act)
    use = act.iteration >= 0
    if iterations is not None:
        use &= np.append(iterations, False)[act.iteration]
    parts = [_gaps(act, keys, use), *_inside_items(act, keys, use)]
    if not act.on_cpu:
        parts += [_api_times(act, keys, use, waiting), *_device_constants(act, use)]
    filled = [part for part in parts if len(part)]
    frame = pd.concat(filled, ignore_index=True) if filled else parts[0]
    return frame.assign(workload=workload)[COLUMNS]


def _rows(
    kind: str,
    op: Texts,
    value_ns: Ints,
    iteration: Ints,
    signature: Texts,
    api: Texts | None = None,
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "type": kind,
            "op": op,
            "value_us": np.maximum(value_ns, 0) / 1000.0,
            "iteration": iteration,
            "api": api,
            "signature": signature,
        }
    )


def gap_signatures(act: Activity, keys: ItemKeys) -> Texts:
    """Signature of the gap before each item: the threads on its two sides, and the item that it follows."""
    before = np.maximum(act.previous, 0)
    return np.array(
        [
            f"{switch_signature(a, b)}|{name}"
            for a, b, name in zip(act.thread[before], act.thread, keys.name[before], strict=True)
        ],
        object,
    )


def _gaps(act: Activity, keys: ItemKeys, use: Flags) -> pd.DataFrame:
    """T1 and loading gaps, only between items of the same iteration."""
    before = np.maximum(act.previous, 0)
    rows = np.flatnonzero(use & (act.previous >= 0) & (act.iteration == act.iteration[before]))
    signature = gap_signatures(act, keys)[rows]
    gap = act.start[rows] - act.end[before[rows]]
    kind = np.where(act.loading[rows], "loading", "T1")
    frame = _rows("T1", keys.name[rows], gap, act.iteration[rows], signature)
    return frame.assign(type=kind)


def _inside_items(act: Activity, keys: ItemKeys, use: Flags) -> list[pd.DataFrame]:
    """Observations of T2, T3 and T5."""
    start, end = act.action_start, act.action_end
    with_calls = np.flatnonzero(use & (keys.calls > 0))
    without = np.flatnonzero(use & (keys.calls == 0))
    first = keys.first[with_calls]
    last = first + keys.calls[with_calls] - 1
    inner = np.flatnonzero(np.concatenate([[False], act.action_item[1:] == act.action_item[:-1]]))
    inner = inner[use[act.action_item[inner]]] if len(inner) else inner
    owner = act.action_item[inner]
    place = inner - keys.first[owner]
    between = np.array(
        [f"{s}@{k}" for s, k in zip(keys.signature[owner], place, strict=True)], object
    )

    def rows(kind: str, item: Ints, value: Ints, signature: Texts) -> pd.DataFrame:
        return _rows(kind, keys.name[item], value, act.iteration[item], signature)

    return [
        rows("T2", with_calls, start[first] - act.start[with_calls], keys.signature[with_calls]),
        rows("T3", with_calls, act.end[with_calls] - end[last], keys.signature[with_calls]),
        rows("T5", owner, start[inner] - end[inner - 1], between),
        rows("T5", without, act.end[without] - act.start[without], keys.signature[without]),
    ]


def outstanding(act: Activity) -> Ints:
    """Number of launches whose work had not ended when each action began; a CUDA graph counts as one."""
    start = act.action_start
    actions, first = np.unique(
        act.call_action, return_index=True
    )  # calls are in the order of their actions
    last_end = np.maximum.reduceat(act.call_end, first) if len(first) else act.call_end
    launched = np.searchsorted(np.sort(start[actions]), start, side="left")
    ended = np.searchsorted(np.sort(last_end), start, side="right")
    return (launched - ended).astype(np.int64)


def _api_times(act: Activity, keys: ItemKeys, use: Flags, waiting: bool) -> pd.DataFrame:
    """T4 of launches and waits, without launches into a full queue, and without waiting time unless `waiting` is set."""
    waits = act.action_sync.copy()
    waits[act.call_action[act.blocking]] = True
    waits &= not waiting
    rows = np.flatnonzero(use[act.action_item] & (outstanding(act) < FULL_QUEUE_CALLS))
    item = act.action_item[rows]
    duration = act.action_end[rows] - act.action_start[rows]
    duration = np.where(waits[rows], np.minimum(duration, int(WAIT_CAP_US * 1000)), duration)
    return _rows(
        "T4", keys.name[item], duration, act.iteration[item], keys.signature[item], act.apis[rows]
    )


def lost_work(act: Activity) -> Ints:
    """Launches of kernels, copies and graphs whose work the trace does not hold, or holds without duration, in time order.

    The public traces have none. Fills do not count, which may be of 0 bytes, nor launches that are recorded into a graph.
    """
    trace, columns = act.trace, act.trace.columns
    works = trace.where("name", re.compile(r"Launch\w*Kernel|GraphLaunch|emcpy(?!Node)").search)
    own = trace.is_category(*API_CATEGORIES) & (columns["pid"] == trace.process)
    launches = np.flatnonzero(works & own)
    begun, ended = (
        trace.names_begin_with(f"cudaStream{x}Capture", f"hipStream{x}Capture")
        for x in ("Begin", "End")
    )
    captured = np.searchsorted(begun, launches) > np.searchsorted(ended, launches)
    held = np.isin(columns["correlation"][launches], columns["correlation"][act.call_event])
    empty = act.call_start == act.call_end
    rounded = (
        empty.sum() < ROUNDED_SHARE * len(empty)
        and not (columns["dur_ns"][act.call_event] % 1000).any()
    )
    return np.union1d(
        launches[~held & ~captured], act.action_event[act.call_action[empty & (not rounded)]]
    )


def _device_constants(act: Activity, use: Flags) -> list[pd.DataFrame]:
    """Launch latency on an idle stream, gap between queued calls that no other stream delayed, and return of a wait."""
    if not len(act.call_event):
        return []
    launch_start = act.action_start[act.call_action]
    launch_end = act.action_end[act.call_action]
    start, end = act.call_start, act.call_end
    before = _previous_call(act)
    before_end, since = np.append(end, EARLY_NS)[before], np.append(launch_start, EARLY_NS)[before]
    iteration = act.iteration[act.action_item[act.call_action]]
    lost = act.trace.columns["ts_ns"][lost_work(act)]
    unexplained = (act.unrecorded_ns > 0) | (act.unseen_queue_ns > EARLY_NS)
    unexplained |= np.searchsorted(lost, launch_start) > np.searchsorted(lost, since)
    kept = use[act.action_item[act.call_action]] & ~unexplained
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    ready = np.searchsorted(ends, np.maximum(launch_start, before_end), side="right")
    # this call may have waited for a call of another stream that ended in between
    kept &= np.searchsorted(ends, start, side="right") - (end <= start) <= ready
    idle = np.flatnonzero(kept & (before_end < launch_start) & (before_end > EARLY_NS).any())
    queued = np.flatnonzero(kept & (before_end > launch_end + QUEUED_NS))
    apis = act.apis[act.call_action]
    any_name = np.full(len(act.call_event), ANY_OP, object)
    stream_key = np.where(act.call_stream == act.call_stream[0], "main", "other").astype(object)
    waits = np.flatnonzero(act.action_sync & use[act.action_item])
    at = np.append(by_end, -1)[np.searchsorted(ends, act.action_end[waits], side="right") - 1]
    awaited, since = np.append(end, EARLY_NS)[at], np.append(launch_start, EARLY_NS)[at]
    waited = awaited > act.action_start[waits]
    waited &= np.searchsorted(lost, act.action_start[waits]) == np.searchsorted(lost, since)
    waits, awaited = waits[waited], awaited[waited]
    return [
        _rows(
            "launch_latency",
            any_name[idle],
            start[idle] - launch_start[idle],
            iteration[idle],
            stream_key[idle],
            apis[idle],
        ),
        _rows(
            "kernel_gap",
            any_name[queued],
            start[queued] - before_end[queued],
            iteration[queued],
            stream_key[queued],
        ),
        _rows(
            "sync_return",
            any_name[: len(waits)],
            act.action_end[waits] - awaited,
            act.iteration[act.action_item[waits]],
            np.full(len(waits), None, object),
            act.apis[waits],
        ),
    ]


def _previous_call(act: Activity) -> Ints:
    """The previous call on the stream of each call; -1 for the first."""
    order = np.lexsort((act.call_start, act.call_stream))
    same = act.call_stream[order[1:]] == act.call_stream[order[:-1]]
    out = np.full(len(order), -1)
    out[order[1:]] = np.where(same, order[:-1], -1)
    return out


MIN_ONE_TIME_NS = 1_000_000
"""Shortest one-time call, in ns. Shorter calls may be short delays of the host, which occur in every step."""

MEDIAN_RATIO = 100
"""Ratio of a call's duration to the median of its API from which the call counts as one-time."""

KEPT_NS = 10_000
"""Time in ns that remains of a call after the cut: a call without one-time work."""


def one_time_calls(act: Activity, iterations: Flags | None = None) -> Ints:
    """Events of the runtime calls of a trace that are one-time costs, in time order.

    Waits, copies, and launches into a full queue last long for other reasons.

    Args:
        act: activity of the trace.
        iterations: which iterations to search (one flag each), the whole trace by default. Medians are taken from these
            iterations only, so that evaluated iterations do not influence the statistics.
    """
    trace = act.trace
    duration = trace.columns["dur_ns"]
    runtime = np.flatnonzero(trace.is_category(*API_CATEGORIES))
    if iterations is not None:
        inside = trace.columns["iteration"][runtime]
        runtime = runtime[(inside >= 0) & np.append(iterations, False)[inside]]
    long = runtime[duration[runtime] >= MIN_ONE_TIME_NS]
    if not len(long):
        return long
    resource = trace.where("name", lambda name: name.startswith(RESOURCE_APIS))[long]
    waiting = trace.where("name", lambda name: name in SYNC_APIS or "emcpy" in name)[long]
    code = trace.columns["name"]
    typical = {c: np.median(duration[runtime[code[runtime] == c]]) for c in set(code[long])}
    rare = duration[long] >= MEDIAN_RATIO * np.array([typical[c] for c in code[long]])
    blocked = act.action_event[outstanding(act) >= FULL_QUEUE_CALLS]
    return long[(resource | rare) & ~waiting & ~np.isin(long, blocked)]


def without_one_time_costs(act: Activity, iterations: Flags) -> Activity:
    """The activity without the time of the one-time calls of some iterations (one flag each), for statistics."""
    events = one_time_calls(act, iterations)
    return activity(cut_calls(act.trace, events)) if len(events) else act


def cut_calls(trace: Trace, events: Ints) -> Trace:
    """The trace without the time of some calls. Later events of host and device move earlier by the same time."""
    begin = trace.columns["ts_ns"][events] + KEPT_NS
    end = np.maximum.accumulate(trace.end_ns[events])
    begin = np.maximum(
        begin, np.concatenate([begin[:1], end[:-1]])
    )  # overlapping calls are cut once
    length = np.maximum(end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])

    def moved(stamps: Ints) -> Ints:
        at = np.searchsorted(begin, stamps, side="right") - 1
        inside = np.clip(stamps - begin[np.maximum(at, 0)], 0, length[np.maximum(at, 0)])
        return stamps - np.where(at >= 0, before[np.maximum(at, 0)] + inside, 0)

    start = moved(trace.columns["ts_ns"])
    columns = {**trace.columns, "ts_ns": start, "dur_ns": moved(trace.end_ns) - start}
    return replace(trace, columns=columns, opens=moved(trace.opens), closes=moved(trace.closes))
