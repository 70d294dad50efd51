"""Rows above a predicted step that say what it consists of: the step, its phases, its critical path, the idle GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.simulate.path_walk import Moment
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.trace_events import Event, process_events, row_events, slice_event

Floats = npt.NDArray[np.float64]
Texts = npt.NDArray[np.object_]

PID = 900_000
"""Process id of these rows; the ids of predicted and measured rows follow it."""

STEP, HOST_PHASE, GPU_PHASE, COMMUNICATION, PATH, IDLE = range(6)
"""Row ids, which are also their order."""

ROWS = {STEP: "step", HOST_PHASE: "phase on the host", GPU_PHASE: "phase on the GPU", COMMUNICATION: "communication",
        PATH: "critical path", IDLE: "GPU idle"}  # fmt: skip

LANE = 10
"""Difference between the row ids of two lanes (`lanes`)."""

PHASE_NAMES = {"data": "inputs"}
"""Names of phases that differ from those in the tables."""


def step_rows(step: Timeline, begin: float, name: str, labels: list[str], lane: int = 0) -> list[Event]:
    """The rows of one step.

    Args:
        step: the step; its first draw is shown.
        begin: time in µs at which it begins.
        name: name of the step.
        labels: names of its calls, shape (calls,).
        lane: 0, or the set of rows for a step that begins before an earlier one ends.
    """
    whole = float(step.step_us[0])
    facts = {"step_us": round(whole, 3), "active_us": round(float(step.active_us[0]), 3),
             "idle_us": round(float(step.idle_us[0]), 3), "host_us": round(float(step.host_us[0]), 3),
             "bound": step.bound}  # fmt: skip
    events = [slice_event(name, "step", PID, STEP + LANE * lane, begin, whole, facts)]
    slices = [(row, each) for row, part in ((HOST_PHASE, _host_phases(step)), (GPU_PHASE, _gpu_phases(step)),
                                            (COMMUNICATION, _communication(step)),
                                            (PATH, critical_slices(step, labels)), (IDLE, idle_slices(step)))
              for each in part]  # fmt: skip
    return events + [
        slice_event(name, ROWS[row], PID, row + LANE * lane, begin + start, end - start, {})
        for row, (name, start, end) in slices
    ]


def names_of_rows(events: list[Event]) -> list[Event]:
    """Names and order of the rows that hold events."""
    used = sorted({int(event["tid"]) for event in events})
    names = {row: ROWS[row % LANE] + (", overlapping" if row >= LANE else "") for row in used}
    return process_events(PID, "predicted step", 0) + [
        each for row in used for each in row_events(PID, row, names[row])
    ]


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A lane for each span (begin, length) in order of begin: the first that is free. Slices of a row must not overlap.

    Iterations of a trace overlap where the GPU still works when the host begins the next one.
    """
    until: list[float] = []
    found = []
    for begin, length in spans:
        lane = next((at for at, end in enumerate(until) if end <= begin), len(until))
        until[lane : lane + 1] = [begin + length]
        found.append(lane)
    return found


def _bands(phase: Texts, start: Floats, end: Floats) -> Iterator[tuple[str, float, float]]:
    """Runs of equal phases, from the first begin to the last end of each run, cut where the next run begins."""
    if not len(phase):
        return
    first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
    begins = np.minimum.reduceat(start, first)
    ends = np.minimum(np.maximum.reduceat(end, first), np.append(begins[1:], np.inf))
    for name, low, high in zip(phase[first], begins.tolist(), ends.tolist(), strict=True):
        if high > low:
            yield PHASE_NAMES.get(name, str(name)), low, high


def _host_phases(step: Timeline) -> Iterator[tuple[str, float, float]]:
    start, end = step.item_times
    order = np.argsort(start, kind="stable")
    return _bands(step.program.items.phase[order], start[order], end[order])


def _gpu_phases(step: Timeline) -> Iterator[tuple[str, float, float]]:
    phase, start, end = _calls(step)
    rest = phase != "communication"
    return _bands(phase[rest], start[rest], end[rest])


def _communication(step: Timeline) -> Iterator[tuple[str, float, float]]:
    phase, start, end = _calls(step)
    sent = phase == "communication"
    return _bands(phase[sent], start[sent], end[sent])


def _calls(step: Timeline) -> tuple[Texts, Floats, Floats]:
    """Phase, begin and end of every call that runs, by begin."""
    p = step.program
    rows = np.flatnonzero(p.call >= 0)
    call, phase = p.call[rows], p.items.phase[p.item[rows]]
    start, end = step.device_start[call, 0], step.device_end[call, 0]
    order = np.argsort(start, kind="stable")
    return phase[order], start[order], end[order]


def idle_slices(step: Timeline) -> list[tuple[str, float, float]]:
    """Intervals of the step in which no call runs: (name, begin, end) in µs. Their sum is the step's idle time."""
    _, start, end = _calls(step)
    busy_until = np.maximum.accumulate(np.append(0.0, end))
    next_begin = np.append(start, float(step.step_us[0]))
    empty = np.flatnonzero(next_begin > busy_until)
    return [("idle", low, high) for low, high in zip(busy_until[empty], next_begin[empty], strict=True)]


def critical_slices(step: Timeline, labels: list[str]) -> list[tuple[str, float, float]]:
    """The critical path in order of time: (name, begin, end) in µs. The intervals follow each other without a gap.

    They are host operators, calls, launch latencies, gaps between calls, returns of waits, and earlier work.
    """
    p, path = step.program, step.critical
    times = {
        Moment.ROW_END: step.row_end[:, 0], Moment.ROW_START: step.row_start[:, 0],
        Moment.CALL_END: step.device_end[:, 0], Moment.CALL_BEGIN: step.device_start[:, 0],
    }  # fmt: skip
    found: list[tuple[str, float, float]] = []
    after: tuple[Moment, int] | None = None
    for moment, at in path.moments:  # from the end of the step to its begin
        time = float(times[moment][at])
        if after is not None:
            found.append((_between(step, (moment, at), after, labels), time, float(times[after[0]][after[1]])))
        after = moment, at
    if after is not None:
        before = "host" if after[0] in (Moment.ROW_START, Moment.ROW_END) else "work from before the step"
        name = str(p.items.name[p.item[after[1]]]) if before == "host" else before
        found.append((name, 0.0, float(times[after[0]][after[1]])))
    out: list[tuple[str, float, float]] = []
    for name, low, high in reversed(found):
        if out and out[-1][0] == name and name not in labels:  # an operator is one slice, from its gap to its end
            out[-1] = (name, out[-1][1], high)
        elif high > low:
            out.append((name, low, high))
    return out


def _between(step: Timeline, first: tuple[Moment, int], second: tuple[Moment, int], labels: list[str]) -> str:
    """What takes the time between two moments of the path that follow each other."""
    (was, _), (now, other) = first, second
    if now == Moment.CALL_END:
        return labels[other]
    if now == Moment.CALL_BEGIN:
        return "launch latency" if was == Moment.ROW_START else "gap between calls"
    if was == Moment.CALL_END:
        return "return of a wait"
    return str(step.program.items.name[step.program.item[other]])
