"""Rows above a step in its timeline, which say what it consists of: its phases, its critical path, the idle GPU.

Intervals are (name, begin, end) in µs from the begin of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pipeline.arrays import Array, Ints, Texts
from pipeline.simulate.chrome_trace import Event, process_events, row_events, slice_event
from pipeline.simulate.timeline import Moment, Timeline
from pipeline.trace.kineto_fields import COLLECTIVE_KERNELS

PID = 900_000
"""Process id of these rows; the ids of predicted and measured rows follow it."""

STEP, MEASURED, DIFFERENCE, HOST_PHASE, GPU_PHASE, COMMUNICATION, PATH, IDLE = range(8)
"""Row ids, which are also their order."""

ROWS = (
    "step", "measured step", "difference", "phase on the host", "phase on the GPU",
    "communication", "critical path", "GPU idle",
)  # fmt: skip
"""Names of the rows by their id."""

LANE = 10
"""Difference between the row ids of two lanes (`lanes`)."""

PHASE_NAMES = {"data": "inputs"}
"""Names of phases that differ from those in the tables."""

EARLIER = "work of the step before"
"""What the GPU does before the first call of a step where calls were queued before it."""

Interval = tuple[str, float, float]


def step_rows(
    step: Timeline, begin: float, name: str, labels: list[str], lane: int = 0
) -> list[Event]:
    """The rows of one step.

    Args:
        step: the step; its first draw is shown.
        begin: time in µs at which it begins.
        name: name of the step.
        labels: names of its calls, shape (calls,).
        lane: 0, or the set of rows for a step that begins before an earlier one ends.
    """
    whole, idle = float(step.step_us[0]), idle_slices(step)
    facts = {
        "step_us": round(whole, 3),
        "active_us": round(float(step.active_us[0]), 3),
        "idle_us": round(sum(end - start for name, start, end in idle if name != EARLIER), 3),
        "host_us": round(float(step.host_us[0]), 3),
        "bound": step.bound,
    }
    start, end = step.item_times
    order = np.argsort(start, kind="stable")
    call, phase = calls_by_begin(step)
    rest = phase != "communication"
    gpu_start, gpu_end = step.device_start[call[rest], 0], step.device_end[call[rest], 0]
    rows: dict[int, Iterable[Interval]] = {
        HOST_PHASE: bands(step.program.items.phase[order], start[order], end[order]),
        GPU_PHASE: bands(phase[rest], gpu_start, gpu_end),
        COMMUNICATION: _communication(step, labels),
        PATH: critical_slices(step, labels),
        IDLE: idle,
    }
    return [slice_event(name, "step", (PID, STEP + LANE * lane), begin, whole, facts)] + [
        slice_event(text, ROWS[row], (PID, row + LANE * lane), begin + low, high - low)
        for row, part in rows.items()
        for text, low, high in part
    ]


def difference_events(begin: float, predicted: float, measured: float, lane: int) -> list[Event]:
    """The measured step below the predicted one, and how much longer one of them is."""
    way = "short" if predicted < measured else "long"
    low, high = sorted((predicted, measured))
    rows = (
        (MEASURED, "measured", 0.0, measured),
        (DIFFERENCE, f"predicted {abs(predicted / measured - 1):.2%} too {way}", low, high - low),
    )
    return [
        slice_event(name, ROWS[row], (PID, row + LANE * lane), begin + start, lasts)
        for row, name, start, lasts in rows
    ]


def names_of_rows(events: list[Event]) -> list[Event]:
    """Names and order of the rows that hold events."""
    out = process_events(PID, "predicted step", 0)
    for row in sorted({int(event["tid"]) for event in events}):
        out += row_events(PID, row, ROWS[row % LANE] + (", overlapping" if row >= LANE else ""))
    return out


def lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """A lane for each span (begin, length) in order of begin: the first that is free. Slices of a row must not overlap.

    Iterations of a trace overlap where the GPU still works when the host begins the next one.
    """
    until: list[float] = []
    chosen = []
    for begin, length in spans:
        lane = next((at for at, end in enumerate(until) if end <= begin), len(until))
        until[lane : lane + 1] = [begin + length]
        chosen.append(lane)
    return chosen


def bands(phase: Texts, start: Array, end: Array) -> Iterator[Interval]:
    """Runs of equal phases, from the first begin to the last end of each run, cut where the next run begins."""
    if not len(phase):
        return
    first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
    begins = np.minimum.reduceat(start, first)
    ends = np.minimum(np.maximum.reduceat(end, first), np.append(begins[1:], np.inf))
    for name, low, high in zip(phase[first], begins.tolist(), ends.tolist(), strict=True):
        if high > low:
            yield PHASE_NAMES.get(name, str(name)), low, high


def _communication(step: Timeline, labels: Sequence[str]) -> Iterator[Interval]:
    """Intervals in which at least one collective runs; the backward phase runs some too."""
    call, phase = calls_by_begin(step)
    moving = [
        when == "communication"
        or labels[at].startswith("collective:")
        or COLLECTIVE_KERNELS.match(labels[at]) is not None
        for at, when in zip(call, phase, strict=True)
    ]
    if not any(moving):
        return
    sent = call[np.array(moving, bool)]
    start, until = step.device_start[sent, 0], np.maximum.accumulate(step.device_end[sent, 0])
    first = np.flatnonzero(np.append(True, start[1:] > until[:-1]))
    last = np.append(first[1:], len(start)) - 1
    for low, high in zip(start[first].tolist(), until[last].tolist(), strict=True):
        yield "communication", low, high


def calls_by_begin(step: Timeline) -> tuple[Ints, Texts]:
    """The calls by begin, and the phase of each."""
    p = step.program
    rows = np.flatnonzero(p.call >= 0)
    rows = rows[np.argsort(step.device_start[p.call[rows], 0], kind="stable")]
    return p.call[rows], p.items.phase[p.item[rows]]


def idle_slices(step: Timeline) -> list[Interval]:
    """Intervals of the step in which no call of it runs. Their sum is the step's idle time.

    At the begin the GPU may still do what was queued before the step (`EARLIER`). In a loop, this time comes on top.
    """
    call, _ = calls_by_begin(step)
    busy_until = np.maximum.accumulate(np.append(0.0, step.device_end[call, 0]))
    next_begin = np.append(step.device_start[call, 0], float(step.step_us[0] + step.carried_us[0]))
    empty = np.flatnonzero(next_begin > busy_until)
    queued = float(step.program.backlog_us.max(initial=0.0) + step.carried_us[0])
    out = []
    for low, high in zip(busy_until[empty].tolist(), next_begin[empty].tolist(), strict=True):
        until = min(max(queued, low), high) if low == 0.0 else low
        out += [(EARLIER, low, until), ("idle", until, high)]
    return [(name, start, end) for name, start, end in out if end > start]


def critical_slices(step: Timeline, labels: Sequence[str]) -> list[Interval]:
    """The critical path in order of time. The intervals follow each other without a gap, from `CriticalPath.begin_us` on.

    They are host operators, calls, launch latencies, gaps between calls, returns of waits, and earlier work.
    """
    path = step.critical
    times = {
        Moment.ROW_END: step.row_end[:, 0],
        Moment.ROW_START: step.row_start[:, 0],
        Moment.CALL_END: step.device_end[:, 0],
        Moment.CALL_BEGIN: step.device_start[:, 0],
    }
    out: list[tuple[str, int, float, float]] = []  # with the item of host time, else -1
    first: Moment | None = None
    low = 0.0
    for moment, at in zip(map(Moment, path.moments[::-1]), path.places[::-1].tolist(), strict=True):
        high = float(times[moment][at])
        name, item = _between(step, first, moment, at, labels)
        if out and item >= 0 and out[-1][1] == item:
            # an operator is one slice, from the gap before it to its end
            out[-1] = (name, item, out[-1][2], high)
        elif high > max(low, path.begin_us):
            out.append((name, item, max(low, path.begin_us), high))
        first, low = moment, high
    return [(name, begin, end) for name, _, begin, end in out]


def _between(
    step: Timeline, first: Moment | None, second: Moment, at: int, labels: Sequence[str]
) -> tuple[str, int]:
    """What takes the time between two moments of the path that follow each other: its name, and its item on the host.

    The first moment is None at the begin of the step; `at` is the row or call of the second.
    """
    on_host = second in (Moment.ROW_START, Moment.ROW_END)
    if not on_host and first is None:
        return "work from before the step", -1
    if second == Moment.CALL_END:
        return labels[at], -1
    if second == Moment.CALL_BEGIN:
        return ("launch latency" if first == Moment.ROW_START else "gap between calls"), -1
    if first == Moment.CALL_END:
        return "return of a wait", -1
    item = int(step.program.item[at])
    return str(step.program.items.name[item]), item
