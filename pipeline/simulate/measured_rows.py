"""Measured iterations as rows of a Chrome trace, shown below the predicted rows on the same time axis.

The rows are those of the predicted timeline: host threads by role, streams, operators with the launches inside them.
They include the profiler's cost. A profiled step is therefore longer than the unprofiled step used to evaluate
predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.simulate.chrome_trace import (
    Event,
    process_events,
    row_events,
    slice_event,
    thread_name,
)
from pipeline.simulate.trace_program import Iteration
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.host_activity import Activity
from pipeline.trace.kineto_fields import API_CATEGORIES, Category
from pipeline.trace.load import load_trace

HOST_PID, DEVICE_PID = 900_003, 900_004
"""Process ids of the measured rows: larger than those of the predicted rows; each is shown below the predicted ones."""

HOST, DEVICE = "measured host (profiled)", "measured GPU (profiled)"
DEVICE_CPU = "measured CPU as device (profiled)"


def measured_events(trace_file: str | Path) -> list[Event]:
    """Events of the iteration with the median span, starting at time 0. With several iterations, the first is left out.

    Raises:
        TraceError: the trace is damaged.
    """
    source = TraceSelection.of(load_trace(trace_file))
    chosen = [
        iteration for iteration in (source.chosen[1:] or source.chosen) if iteration.span_us > 0
    ]
    if not chosen:
        return []
    shown = sorted(chosen, key=lambda iteration: iteration.span_us)[len(chosen) // 2]
    return measured_rows(source.act, [(shown, 0.0)])


def measured_rows(act: Activity, iterations: Sequence[tuple[Iteration, float]]) -> list[Event]:
    """Events of some iterations with the names of their rows.

    Args:
        act: activity of the trace.
        iterations: pairs (iteration, time in µs at which it begins).
    """
    events = [event for iteration, begin in iterations for event in _slices(act, iteration, begin)]
    rows = process_events(HOST_PID, HOST, 2) + process_events(
        DEVICE_PID, DEVICE_CPU if act.on_cpu else DEVICE, 4
    )
    for pid, row in sorted({(event["pid"], event["tid"]) for event in events}):
        rows += row_events(pid, row, thread_name(row) if pid == HOST_PID else f"stream {row}")
    return rows + events


def _slices(act: Activity, iteration: Iteration, begin: float) -> Iterator[Event]:
    """Operators, runtime calls and device work of one iteration. Work that began before it (backlog) is left out."""
    trace, columns = act.trace, act.trace.columns
    categories = trace.vocabulary["category"][columns["category"]]
    tops = act.item[np.flatnonzero(act.iteration == iteration.number)]
    role = {
        (int(columns["pid"][event]), int(columns["tid"][event])): int(thread)
        for event, thread in zip(act.item, act.thread, strict=True)
    }
    inside = np.isin(columns["top"], tops) & trace.is_category(Category.OP, *API_CATEGORIES)
    inside[tops] = True

    def times(event: int) -> tuple[float, float]:
        since = (int(columns["ts_ns"][event]) - iteration.start_ns) / 1e3
        return begin + since, int(columns["dur_ns"][event]) / 1e3

    for event in np.flatnonzero(inside).tolist():
        thread = role.get((int(columns["pid"][event]), int(columns["tid"][event])))
        start, duration = times(event)
        if thread is not None and start >= begin:
            row = HOST_PID, thread
            yield slice_event(str(trace.names[event]), str(categories[event]), row, start, duration)
    for call in iteration.calls.tolist():
        event = int(act.call_event[call])
        start, duration = times(event)
        if start >= begin:
            row = DEVICE_PID, int(act.call_stream[call])
            yield slice_event(str(trace.names[event]), "kernel", row, start, duration)
