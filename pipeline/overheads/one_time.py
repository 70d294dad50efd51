"""Runtime calls that cost much once: the start of CUDA, the loading of a kernel's code, memory from the driver.

A step after warm-up pays none of them, and no statistics foresee them. They are found by their length, cut out of what
statistics are taken from, and named where an iteration to be explained holds them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipeline.overheads.extraction import FULL_QUEUE_CALLS, outstanding
from pipeline.trace.host_activity import Activity, activity
from pipeline.trace.kineto_fields import API_CATEGORIES, RESOURCE_APIS, SYNC_APIS
from pipeline.trace.linked_trace import Trace

Ints = npt.NDArray[np.int64]

LEAST_NS = 1_000_000
"""Shorter calls may be hiccups of the host, which are part of every step's time."""

TIMES_MEDIAN = 100
"""A call that usually takes microseconds and lasts this many times its median loaded or started something."""

KEPT_NS = 10_000
"""What a cut call keeps: the call itself when it has nothing to do."""


def one_time_calls(act: Activity, iterations: npt.NDArray[np.bool_] | None = None) -> Ints:
    """Events of the runtime calls of a trace that are one-time costs, in time order.

    Waits, copies, and launches into a full queue last long for other reasons.

    Args:
        act: activity of the trace.
        iterations: which iterations to look at (one flag each), the whole trace by default. What a call usually takes
            is theirs alone: iterations that are evaluated must not decide what statistics leave out.
    """
    trace = act.trace
    duration = trace.columns["dur_ns"]
    runtime = np.flatnonzero(trace.is_category(*API_CATEGORIES))
    if iterations is not None:
        inside = trace.columns["iteration"][runtime]
        runtime = runtime[(inside >= 0) & np.append(iterations, False)[inside]]
    long = runtime[duration[runtime] >= LEAST_NS]
    if not len(long):
        return long
    names = trace.vocabulary["name"]
    resource = np.array([name.startswith(RESOURCE_APIS) for name in names], bool)
    waiting = np.array([name in SYNC_APIS or "emcpy" in name for name in names], bool)
    code = trace.columns["name"]
    median = {int(c): float(np.median(duration[runtime[code[runtime] == c]])) for c in np.unique(code[long])}
    rare = np.array([duration[e] >= TIMES_MEDIAN * median[int(code[e])] for e in long.tolist()], bool)
    blocked = act.action_event[outstanding(act) >= FULL_QUEUE_CALLS]
    out: Ints = long[(resource[code[long]] | rare) & ~waiting[code[long]] & ~np.isin(long, blocked)]
    return out


def lasting(act: Activity, iterations: npt.NDArray[np.bool_]) -> Activity:
    """The activity without the time of the one-time calls of some iterations (one flag each): what statistics are taken
    from.
    """
    events = one_time_calls(act, iterations)
    return activity(without(act.trace, events)) if len(events) else act


def without(trace: Trace, events: Ints) -> Trace:
    """The trace with the time of some calls cut out: everything behind them moves up, in step."""
    begin = trace.columns["ts_ns"][events] + KEPT_NS
    end = np.maximum.accumulate(trace.end_ns[events])
    begin = np.maximum(begin, np.concatenate([begin[:1], end[:-1]]))  # overlapping calls are cut once
    length = np.maximum(end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])

    def moved(stamps: Ints) -> Ints:
        at = np.searchsorted(begin, stamps, side="right") - 1
        inside = np.clip(stamps - begin[np.maximum(at, 0)], 0, length[np.maximum(at, 0)])
        return stamps - np.where(at >= 0, before[np.maximum(at, 0)] + inside, 0)

    start = moved(trace.columns["ts_ns"])
    columns = {**trace.columns, "ts_ns": start, "dur_ns": moved(trace.end_ns) - start}
    return replace(trace, columns=columns, opens=moved(trace.opens), closes=moved(trace.closes))
