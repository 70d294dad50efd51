"""Predicted steps as events of the Chrome trace format: slices, arrows, names and order of rows. Times are in µs.

Rows above a step say what it consists of: the step, its phases, its critical path, the idle GPU.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints, Texts
from pipeline.schemas import DIMS
from pipeline.simulate.program import Kind
from pipeline.simulate.timeline import Moment, Timeline
from pipeline.trace.kineto_fields import COLLECTIVE_KERNELS

Event = dict[str, Any]

_THREADS = ("main", "autograd")

PID = 900_000
"""Process id of these rows; the ids of predicted and measured rows follow it."""

STEP, MEASURED, DIFFERENCE, HOST_PHASE, GPU_PHASE, COMMUNICATION, PATH, IDLE = range(8)
"""Row ids, which are also their order."""

ROWS = {
    STEP: "step", MEASURED: "measured step", DIFFERENCE: "difference",
    HOST_PHASE: "phase on the host", GPU_PHASE: "phase on the GPU", COMMUNICATION: "communication",
    PATH: "critical path", IDLE: "GPU idle",
}  # fmt: skip

LANE = 10
"""Difference between the row ids of two lanes (`lanes`)."""

PHASE_NAMES = {"data": "inputs"}
"""Names of phases that differ from those in the tables."""

MODULES = -1
"""Row id of the modules, above the streams of the predicted GPU."""

EARLIER = "work of the step before"
"""What the GPU does before the first call of a step where calls were queued before it."""

HOST_PID, DEVICE_PID = 900_001, 900_002
"""Process ids of the predicted rows. They are larger than any process id on Linux, so that traces can be merged."""


def timeline_events(
    timeline: Timeline | Sequence[tuple[Timeline, float]],
    calls: pd.DataFrame | None = None,
    names: Sequence[Sequence[str]] | None = None,
    beside: Sequence[Event] = (),
    measured_us: Sequence[float] = (),
) -> list[Event]:
    """All events of one or several steps: names of rows, slices, and arrows from launches to kernels; see `write_timeline`."""
    steps = [(timeline, 0.0)] if isinstance(timeline, Timeline) else list(timeline)
    slices, arrows, above = list[Event](), list[Event](), list[Event]()
    lengths = [float(step.step_us[0]) for step, _ in steps]
    lane = lanes(
        list(
            zip(
                (at for _, at in steps),
                np.maximum(lengths, measured_us or 0.0).tolist(),
                strict=True,
            )
        )
    )
    for number, (step, begin) in enumerate(steps):
        labels = list(names[number]) if names is not None else _labels(step, calls)
        above += step_rows(
            step, begin, f"step {number + 1}" if len(steps) > 1 else "step", labels, lane[number]
        )
        above += (
            difference_events(begin, lengths[number], measured_us[number], lane[number])
            if measured_us
            else []
        )
        actions, kernels = _action_events(step, begin), _device_events(step, begin, labels, calls)
        for row, kernel in kernels.items():
            arrows += arrow_events(len(arrows) // 2 + 1, "launch", actions[row], kernel)
        slices += [
            *_op_events(step, begin),
            *_module_events(step, begin, calls),
            *actions.values(),
            *kernels.values(),
        ]
    return names_of_rows(above) + _rows(steps) + above + slices + list(beside) + arrows


def slice_event(
    name: str,
    category: str,
    pid: int,
    tid: int,
    start: float,
    duration: float,
    args: Mapping[str, Any],
) -> Event:
    """A complete event. Its begin and end are in µs, rounded to nanoseconds: equal ends stay equal, whatever begins."""
    begin, end = round(float(start), 3), round(float(start + duration), 3)
    lasts = {"ts": begin, "dur": round(end - begin, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **lasts, "args": args}


def arrow_events(number: int, name: str, source: Event, target: Event) -> tuple[Event, Event]:
    """An arrow from the begin of one slice to the begin of another; `number` is its own in the file."""

    def end(phase: str, at: Event) -> Event:
        place = {key: at[key] for key in ("pid", "tid", "ts")}
        return {"ph": phase, "cat": name, "name": name, "id": number, **place}

    # `bp: e` binds the end to the slice around its time, not to the next one
    return end("s", source), end("f", target) | {"bp": "e"}


def process_events(pid: int, name: str, order: int) -> list[Event]:
    """Name and sort index of a process; the smallest index is shown first."""
    return [
        _metadata("process_name", pid, 0, {"name": name}),
        _metadata("process_sort_index", pid, 0, {"sort_index": order}),
    ]


def row_events(pid: int, tid: int, name: str) -> list[Event]:
    """Name of a thread or stream; the rows of a process are in the order of their ids."""
    return [
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    ]


def _metadata(kind: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def thread_name(role: int) -> str:
    """Name of the host thread of a role: 0 main, 1 autograd, others by number."""
    return _THREADS[role] if role < len(_THREADS) else f"thread {role}"


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
    rows: dict[int, Iterable[tuple[str, float, float]]] = {
        HOST_PHASE: _host_phases(step),
        GPU_PHASE: _gpu_phases(step),
        COMMUNICATION: _communication(step, labels),
        PATH: critical_slices(step, labels),
        IDLE: idle,
    }
    return [slice_event(name, "step", PID, STEP + LANE * lane, begin, whole, facts)] + [
        slice_event(text, ROWS[row], PID, row + LANE * lane, begin + start, end - start, {})
        for row, part in rows.items()
        for text, start, end in part
    ]


def difference_events(begin: float, predicted: float, measured: float, lane: int) -> list[Event]:
    """The measured step below the predicted one, and how much longer one of them is."""
    name = (
        f"predicted {abs(predicted / measured - 1):.2%} too"
        f" {'short' if predicted < measured else 'long'}"
    )
    low, high = sorted((predicted, measured))
    return [
        slice_event("measured", ROWS[MEASURED], PID, MEASURED + LANE * lane, begin, measured, {}),
        slice_event(
            name, ROWS[DIFFERENCE], PID, DIFFERENCE + LANE * lane, begin + low, high - low, {}
        ),
    ]


def names_of_rows(events: list[Event]) -> list[Event]:
    """Names and order of the rows that hold events."""
    used = sorted({int(event["tid"]) for event in events})
    names = {row: ROWS[row % LANE] + (", overlapping" if row >= LANE else "") for row in used}
    return process_events(PID, "predicted step", 0) + [
        event for row in used for event in row_events(PID, row, names[row])
    ]


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
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


def _bands(phase: Texts, start: Array, end: Array) -> Iterator[tuple[str, float, float]]:
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
    call, phase = _calls(step)
    rest = phase != "communication"
    return _bands(phase[rest], step.device_start[call[rest], 0], step.device_end[call[rest], 0])


def _communication(step: Timeline, labels: list[str]) -> Iterator[tuple[str, float, float]]:
    """Intervals in which at least one collective runs; the backward phase runs some too."""
    call, phase = _calls(step)
    moving = np.array(
        [text.startswith("collective:") or bool(COLLECTIVE_KERNELS.match(text)) for text in labels],
        bool,
    )
    sent = call[(phase == "communication") | moving[call]] if len(call) else call
    if not len(sent):
        return
    start, until = step.device_start[sent, 0], np.maximum.accumulate(step.device_end[sent, 0])
    first = np.flatnonzero(np.append(True, start[1:] > until[:-1]))
    last = np.append(first[1:], len(start)) - 1
    for low, high in zip(start[first].tolist(), until[last].tolist(), strict=True):
        yield "communication", low, high


def _calls(step: Timeline) -> tuple[Ints, Texts]:
    """The calls by begin, and the phase of each."""
    p = step.program
    rows = np.flatnonzero(p.call >= 0)
    rows = rows[np.argsort(step.device_start[p.call[rows], 0], kind="stable")]
    return p.call[rows], p.items.phase[p.item[rows]]


def idle_slices(step: Timeline) -> list[tuple[str, float, float]]:
    """Intervals of the step in which no call of it runs: (name, begin, end) in µs. Their sum is the step's idle time.

    At the begin the GPU may still do what was queued before the step (`EARLIER`). In a loop, this time comes on top.
    """
    call, _ = _calls(step)
    busy_until = np.maximum.accumulate(np.append(0.0, step.device_end[call, 0]))
    next_begin = np.append(step.device_start[call, 0], float(step.step_us[0] + step.carried_us[0]))
    empty = np.flatnonzero(next_begin > busy_until)
    queued = float(step.program.backlog_us.max(initial=0.0) + step.carried_us[0])
    out = []
    for low, high in zip(busy_until[empty].tolist(), next_begin[empty].tolist(), strict=True):
        until = min(max(queued, low), high) if low == 0.0 else low
        out += [
            (name, start, end)
            for name, start, end in ((EARLIER, low, until), ("idle", until, high))
            if end > start
        ]
    return out


def critical_slices(step: Timeline, labels: list[str]) -> list[tuple[str, float, float]]:
    """The critical path in order of time: (name, begin, end) in µs. The intervals follow each other without a gap, from
    `CriticalPath.begin_us` on.

    They are host operators, calls, launch latencies, gaps between calls, returns of waits, and earlier work.
    """
    path = step.critical
    times = {
        Moment.ROW_END: step.row_end[:, 0],
        Moment.ROW_START: step.row_start[:, 0],
        Moment.CALL_END: step.device_end[:, 0],
        Moment.CALL_BEGIN: step.device_start[:, 0],
    }
    backwards: list[tuple[str, int, float, float]] = []  # with the item of host time, else -1
    after: tuple[Moment, int] | None = None
    for moment, at in zip(
        map(Moment, path.moments), path.places.tolist(), strict=True
    ):  # from the end to the begin
        time = float(times[moment][at])
        if after is not None:
            backwards.append(
                (*_between(step, moment, after, labels), time, float(times[after[0]][after[1]]))
            )
        after = moment, at
    if after is not None:
        on_host = after[0] in (Moment.ROW_START, Moment.ROW_END)
        first = _host(step, after[1]) if on_host else ("work from before the step", -1)
        backwards.append((*first, 0.0, float(times[after[0]][after[1]])))
    out: list[tuple[str, int, float, float]] = []
    for name, item, low, high in reversed(backwards):
        if (
            out and item >= 0 and out[-1][1] == item
        ):  # an operator is one slice, from the gap before it to its end
            out[-1] = (name, item, out[-1][2], high)
        elif high > (low := max(low, path.begin_us)):
            out.append((name, item, low, high))
    return [(name, low, high) for name, _, low, high in out]


def _between(
    step: Timeline, first: Moment, second: tuple[Moment, int], labels: list[str]
) -> tuple[str, int]:
    """What takes the time between two moments of the path that follow each other: its name, and its item on the host."""
    now, at = second
    if now == Moment.CALL_END:
        return labels[at], -1
    if now == Moment.CALL_BEGIN:
        return ("launch latency" if first == Moment.ROW_START else "gap between calls"), -1
    if first == Moment.CALL_END:
        return "return of a wait", -1
    return _host(step, at)


def _host(step: Timeline, row: int) -> tuple[str, int]:
    """Operator of a row: its name and its item."""
    item = int(step.program.item[row])
    return str(step.program.items.name[item]), item


def _labels(step: Timeline, calls: pd.DataFrame | None) -> list[str]:
    if calls is None:
        return [str(name) for name in _operators(step)]
    return [f"{family}:{op}" for family, op in zip(calls["family"], calls["op"], strict=True)]


def _operators(step: Timeline) -> list[str]:
    """Name of the operator that launches each call."""
    p = step.program
    owner = np.full(p.call_count, "", object)
    launching = p.call >= 0
    owner[p.call[launching]] = p.items.name[p.item[launching]]
    return [str(name) for name in owner]


def _op_events(step: Timeline, begin: float) -> list[Event]:
    """Top-level operators on host threads."""
    p = step.program
    first, last = step.item_times
    critical = np.zeros(len(p.items.node), bool)
    np.logical_or.at(critical, p.item, step.critical.rows)
    return [
        slice_event(
            str(name),
            "cpu_op",
            HOST_PID,
            int(thread),
            begin + start,
            end - start,
            {"phase": str(phase), "critical": bool(crit), "evidence": str(evidence)},
        )
        for name, thread, phase, start, end, crit, evidence in zip(
            p.items.name,
            p.items.thread,
            p.items.phase,
            first,
            last,
            critical,
            p.items.evidence,
            strict=True,
        )
    ]


def _module_events(step: Timeline, begin: float, calls: pd.DataFrame | None) -> list[Event]:
    """Modules from their first to their last kernel in a row, each inside the module that holds it; without collectives."""
    if calls is None or "module" not in calls:
        return []
    call, phase = _calls(step)
    owner = calls["module"].fillna("").to_numpy(object)[call]
    shown = (owner != "") & ~step.program.communicates[call]
    call, names = (
        call[shown],
        [
            f"{when} {path}".split(".")
            for when, path in zip(phase[shown], owner[shown], strict=True)
        ],
    )
    start, end = step.device_start[call, 0], step.device_end[call, 0]
    events = []
    for depth in range(max(map(len, names), default=0)):
        above = np.array(
            [".".join(parts[: depth + 1]) if len(parts) > depth else "" for parts in names], object
        )
        for name, low, high in _bands(above, start, end):
            when, _, path = name.partition(" ")
            if path:
                events.append(
                    slice_event(
                        path,
                        "module",
                        DEVICE_PID,
                        MODULES,
                        begin + low,
                        high - low,
                        {"phase": when},
                    )
                )
    return events


def _action_events(step: Timeline, begin: float) -> dict[int, Event]:
    """Launches and waits, by row of the program."""
    p = step.program
    labels = {int(Kind.LAUNCH): "launch", int(Kind.SYNC): "wait"}
    until = step.row_end[:, 0] - p.tail_us
    return {
        i: slice_event(
            labels[int(p.kind[i])],
            "cuda_runtime",
            HOST_PID,
            int(p.thread[i]),
            begin + step.row_start[i, 0],
            max(until[i] - step.row_start[i, 0], 0.0),
            {"call": int(p.call[i])},
        )
        for i in np.flatnonzero(p.kind > 0).tolist()
    }


def _device_events(
    step: Timeline, begin: float, labels: Sequence[str], calls: pd.DataFrame | None
) -> dict[int, Event]:
    """Kernels and copies, by the row of the program that launches them."""
    p = step.program
    on_path, operators = step.critical.calls, _operators(step)
    sizes = _sizes(calls) if calls is not None else [{}] * p.call_count
    rows = np.flatnonzero(p.call >= 0)
    return {
        row: slice_event(
            labels[call],
            "kernel",
            DEVICE_PID,
            int(p.streams[p.stream[row]]),
            begin + step.device_start[call, 0],
            step.device_end[call, 0] - step.device_start[call, 0],
            {
                "call": call,
                "critical": bool(on_path[call]),
                "operator": operators[call],
                "phase": str(p.items.phase[p.item[row]]),
                **sizes[call],
            },
        )
        for row, call in zip(rows.tolist(), p.call[rows].tolist(), strict=True)
    }


def _sizes(calls: pd.DataFrame) -> list[dict[str, str]]:
    """Sizes, dtype, interval and evidence of each call as text, without those that it does not have."""
    columns = {
        name: calls[name].to_numpy(np.float64, na_value=np.nan) for name in DIMS if name in calls
    }
    told = [
        [f"{name}={value:g}" if value == value else "" for value in values.tolist()]
        for name, values in columns.items()
        if not np.isnan(values).all()
    ]
    known = {"p10_us", "p90_us", "evidence"} <= set(calls)
    spread = calls[["p10_us", "p90_us", "evidence"]].to_numpy(object).tolist() if known else []
    dtypes = (
        calls["dtype"].astype(object).where(calls["dtype"].notna(), "").tolist()
        if "dtype" in calls
        else []
    )
    return [
        {"sizes": " ".join(text[call] for text in told if text[call])}
        | ({"dtype": str(dtypes[call])} if dtypes and dtypes[call] else {})
        | (
            {"p10 to p90": "{:.3g} to {:.3g} µs".format(*spread[call]), "evidence": spread[call][2]}
            if known
            else {}
        )
        for call in range(len(calls))
    ]


def _rows(steps: Sequence[tuple[Timeline, float]]) -> list[Event]:
    """Names of the predicted processes, threads and streams."""
    out = process_events(HOST_PID, "predicted host", 1) + process_events(
        DEVICE_PID, "predicted GPU", 3
    )
    threads = sorted({int(t) for step, _ in steps for t in step.program.items.thread})
    streams = sorted({int(s) for step, _ in steps for s in step.program.streams})
    out += row_events(DEVICE_PID, MODULES, "module")
    for thread in threads:
        out += row_events(HOST_PID, thread, thread_name(thread))
    programs = [step.program for step, _ in steps if step.program.collectives >= 0]
    collectives = {int(s) for p in programs for s in p.streams[p.collectives :]}
    for stream in streams:
        out += row_events(
            DEVICE_PID, stream, "collectives" if stream in collectives else f"stream {stream}"
        )
    return out
