"""Finds runtime calls with a large one-time cost: the start of CUDA, loading a kernel's code, memory from the driver.

A step after warm-up has none of them, and no statistics predict them. They are found by their duration. Statistics are
taken without them, and a replay reports those in the evaluated iterations.
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

MIN_ONE_TIME_NS = 1_000_000
"""Shortest one-time call, in ns. Shorter calls may be short delays of the host, which occur in every step."""

MEDIAN_RATIO = 100
"""Ratio of a call's duration to the median of its API from which the call counts as one-time."""

KEPT_NS = 10_000
"""Time in ns that remains of a call after the cut: a call without one-time work."""


def one_time_calls(act: Activity, iterations: npt.NDArray[np.bool_] | None = None) -> Ints:
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
    names = trace.vocabulary["name"]
    resource = np.array([name.startswith(RESOURCE_APIS) for name in names], bool)
    waiting = np.array([name in SYNC_APIS or "emcpy" in name for name in names], bool)
    code = trace.columns["name"]
    median = {int(c): float(np.median(duration[runtime[code[runtime] == c]])) for c in np.unique(code[long])}
    rare = np.array([duration[e] >= MEDIAN_RATIO * median[int(code[e])] for e in long.tolist()], bool)
    blocked = act.action_event[outstanding(act) >= FULL_QUEUE_CALLS]
    out: Ints = long[(resource[code[long]] | rare) & ~waiting[code[long]] & ~np.isin(long, blocked)]
    return out


def without_one_time_costs(act: Activity, iterations: npt.NDArray[np.bool_]) -> Activity:
    """The activity without the time of the one-time calls of some iterations (one flag each), for statistics."""
    events = one_time_calls(act, iterations)
    return activity(without_calls(act.trace, events)) if len(events) else act


def without_calls(trace: Trace, events: Ints) -> Trace:
    """The trace without the time of some calls. Later events of host and device move earlier by the same time."""
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
