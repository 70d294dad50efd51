"""Predicted steps as events of the Chrome trace format: operators, launches and kernels, below rows on each step as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from pipeline.schemas import DIMS
from pipeline.simulate.chrome_trace import (
    Event,
    launch_arrow,
    process_events,
    row_events,
    slice_event,
    thread_name,
)
from pipeline.simulate.program import Kind
from pipeline.simulate.schedule import idle_shares
from pipeline.simulate.step_rows import (
    bands,
    calls_by_begin,
    difference_events,
    lanes,
    names_of_rows,
    step_rows,
)
from pipeline.simulate.timeline import Timeline

MODULES = -1
"""Row id of the modules, above the streams of the predicted GPU."""

HOST_PID, DEVICE_PID = 900_001, 900_002
"""Process ids of the predicted rows. They are larger than any process id on Linux, so that traces can be merged."""


STAGES_PID = 900_000
"""Process id of the rows of a pipeline."""

RANK_PIDS = 100_000
"""What is added to the ids of rows and arrows of another rank."""


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
    shown = np.maximum(lengths, measured_us or 0.0).tolist()
    lane = lanes(zip((begin for _, begin in steps), shown, strict=True))
    for number, (step, begin) in enumerate(steps):
        labels = list(names[number]) if names is not None else _labels(step, calls)
        title = f"step {number + 1}" if len(steps) > 1 else "step"
        above += step_rows(step, begin, title, labels, lane[number])
        if measured_us:
            above += difference_events(begin, lengths[number], measured_us[number], lane[number])
        actions, kernels = _action_events(step, begin), _device_events(step, begin, labels, calls)
        for row, kernel in kernels.items():
            arrows += launch_arrow(len(arrows) // 2 + 1, actions[row], kernel)
        slices += [*_op_events(step, begin), *_module_events(step, begin, calls)]
        slices += [*actions.values(), *kernels.values()]
    return names_of_rows(above) + _rows([s for s, _ in steps]) + above + slices + [*beside] + arrows


def rank_events(timeline: Timeline, calls: pd.DataFrame, name: str) -> list[Event]:
    """The events of another rank, with rows of its own below those of the first.

    Args:
        timeline: its step.
        calls: its device calls.
        name: of the rank.
    """
    events = timeline_events(timeline, calls)
    for event in events:
        event["pid"] += RANK_PIDS
        if event["name"] == "process_name":
            event["args"]["name"] = f"{name}: {event['args']['name']}"
        elif event["name"] == "process_sort_index":
            event["args"]["sort_index"] += RANK_PIDS
        elif "id" in event:  # of an arrow
            event["id"] += RANK_PIDS
    return events


def stage_events(stages: pd.DataFrame | None) -> list[Event]:
    """The passes of a pipeline, above the micro-batch that the other rows show: a row for each stage, with its bubble.

    Args:
        stages: as of `Schedule.table`; None for a step without a pipeline, which has no such rows.
    """
    if stages is None:
        return []
    out = process_events(STAGES_PID, "pipeline: the GPU of each stage", -1)
    for stage, idle in idle_shares(stages).items():
        out += row_events(STAGES_PID, stage, f"stage {stage}, {idle:.0%} idle")
    for stage, chunk, micro_batch, phase, begin, end in stages.itertuples(index=False):
        passes = phase in ("forward", "backward")
        name = f"{phase} of micro-batch {micro_batch}" if passes else phase
        args = {"phase": phase, "operator": f"part {chunk} of the stage"}
        out.append(slice_event(name, "module", (STAGES_PID, stage), begin, end - begin, args))
    return out


def _labels(step: Timeline, calls: pd.DataFrame | None) -> list[str]:
    if calls is None:
        return _operators(step)
    return [f"{family}:{op}" for family, op in zip(calls["family"], calls["op"], strict=True)]


def _operators(step: Timeline) -> list[str]:
    """Name of the operator that launches each call."""
    p = step.program
    owner = np.full(p.call_count, "", object)
    launching = p.call >= 0
    owner[p.call[launching]] = p.items.name[p.item[launching]]
    return [str(name) for name in owner]


def _op_events(step: Timeline, begin: float) -> Iterator[Event]:
    """Top-level operators on host threads."""
    p, items = step.program, step.program.items
    critical = np.zeros(len(items.node), bool)
    np.logical_or.at(critical, p.item, step.critical.rows)
    columns = (items.name, items.thread, items.phase, *step.item_times, critical, items.evidence)
    for name, thread, phase, start, end, on_path, evidence in zip(*columns, strict=True):
        args = {"phase": str(phase), "critical": bool(on_path), "evidence": str(evidence)}
        row = HOST_PID, int(thread)
        yield slice_event(str(name), "cpu_op", row, begin + start, end - start, args)


def _module_events(step: Timeline, begin: float, calls: pd.DataFrame | None) -> Iterator[Event]:
    """Modules from their first to their last kernel in a row, each inside the module that holds it; without collectives."""
    if calls is None or "module" not in calls:
        return
    call, phase = calls_by_begin(step)
    owner = calls["module"].fillna("").to_numpy(object)[call]
    shown = (owner != "") & ~step.program.communicates[call]
    call = call[shown]
    pairs = zip(phase[shown], owner[shown], strict=True)
    names = [f"{when} {path}".split(".") for when, path in pairs]
    start, end = step.device_start[call, 0], step.device_end[call, 0]
    for depth in range(max(map(len, names), default=0)):
        above = [".".join(parts[: depth + 1]) if len(parts) > depth else "" for parts in names]
        for name, low, high in bands(np.array(above, object), start, end):
            when, _, path = name.partition(" ")
            if path:
                row = DEVICE_PID, MODULES
                yield slice_event(path, "module", row, begin + low, high - low, {"phase": when})


def _action_events(step: Timeline, begin: float) -> dict[int, Event]:
    """Launches and waits, by row of the program."""
    p, start = step.program, step.row_start[:, 0]
    lasts = np.maximum(step.row_end[:, 0] - p.tail_us - start, 0.0)
    return {
        i: slice_event(
            "wait" if p.kind[i] == Kind.SYNC else "launch",
            "cuda_runtime",
            (HOST_PID, int(p.thread[i])),
            begin + start[i],
            lasts[i],
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
    start, lasts = step.device_start[:, 0], (step.device_end - step.device_start)[:, 0]
    out = {}
    for row in np.flatnonzero(p.call >= 0).tolist():
        call = int(p.call[row])
        args = {
            "call": call,
            "critical": bool(on_path[call]),
            "operator": operators[call],
            "phase": str(p.items.phase[p.item[row]]),
            **sizes[call],
        }
        place = DEVICE_PID, int(p.streams[p.stream[row]])
        out[row] = slice_event(
            labels[call], "kernel", place, begin + start[call], lasts[call], args
        )
    return out


def _sizes(calls: pd.DataFrame) -> list[dict[str, str]]:
    """Sizes, dtype, interval and evidence of each call as text, without those that it does not have."""
    names = [name for name in DIMS if name in calls]
    sizes = calls[names].to_numpy(np.float64, na_value=np.nan)
    facts = calls.reindex(columns=["dtype", "p10_us", "p90_us", "evidence"]).to_numpy(object)
    out = []
    for values, (dtype, low, high, evidence) in zip(sizes.tolist(), facts.tolist(), strict=True):
        known = (pair for pair in zip(names, values, strict=True) if pair[1] == pair[1])
        args = {"sizes": " ".join(f"{name}={value:g}" for name, value in known)}
        args |= {"dtype": dtype} if isinstance(dtype, str) else {}
        if isinstance(evidence, str):
            args |= {"p10 to p90": f"{low:.3g} to {high:.3g} µs", "evidence": evidence}
        out.append(args)
    return out


def _rows(steps: Sequence[Timeline]) -> list[Event]:
    """Names of the predicted processes, threads and streams."""
    out = process_events(HOST_PID, "predicted host", 1)
    out += process_events(DEVICE_PID, "predicted GPU", 3)
    out += row_events(DEVICE_PID, MODULES, "module")
    programs = [step.program for step in steps]
    for thread in sorted({int(t) for p in programs for t in p.items.thread}):
        out += row_events(HOST_PID, thread, thread_name(thread))
    collectives = {
        int(s) for p in programs if p.collectives >= 0 for s in p.streams[p.collectives :]
    }
    for stream in sorted({int(s) for p in programs for s in p.streams}):
        name = "collectives" if stream in collectives else f"stream {stream}"
        out += row_events(DEVICE_PID, stream, name)
    return out
