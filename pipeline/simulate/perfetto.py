"""Writes predicted steps as a Chrome trace for Perfetto, or as a page of their own (`timeline_page`).

Perfetto's page must be loaded from its site, and Chromium has no viewer of its own any more. The page needs neither.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import pandas as pd

from pipeline.schemas import DIMS, atomic_path
from pipeline.simulate.step_program import Kind
from pipeline.simulate.step_rows import lanes, names_of_rows, step_rows
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.timeline_page import page
from pipeline.simulate.trace_events import (
    Event,
    arrow_events,
    process_events,
    row_events,
    slice_event,
    thread_name,
)

HOST_PID, DEVICE_PID = 900_001, 900_002
"""Process ids of the predicted rows. They are larger than any process id on Linux, so that traces can be merged."""


def write_timeline(
    timeline: Timeline | Sequence[tuple[Timeline, float]],
    path: str | Path | Sequence[str | Path],
    calls: pd.DataFrame | None = None,
    names: Sequence[Sequence[str]] | None = None,
    beside: Sequence[Event] = (),
    title: str = "Predicted step",
) -> None:
    """Write one or several steps (their first draws).

    Args:
        timeline: a step, or pairs (step, begin in µs); the begin aligns predicted iterations with measured ones.
        path: the file or files to write: a page if a name ends in `.html`, else Chrome JSON, compressed if it ends in
            `.gz`.
        calls: `calls` table for the kernels' family, op and sizes, where there is one.
        names: kernel names per step, in the order of its calls.
        beside: events of other rows on the same time axis, such as the measured step.
        title: title of the page.

    Raises:
        SteptimeError: the file cannot be written.
    """
    events = timeline_events(timeline, calls, names, beside)
    for file in [Path(path)] if isinstance(path, (str, Path)) else map(Path, path):
        if file.suffix == ".html":
            content = page(events, title).encode()
        else:
            content = orjson.dumps({"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": events})
        with atomic_path(file) as part:
            part.write_bytes(gzip.compress(content, 5, mtime=0) if file.suffix == ".gz" else content)


def timeline_events(
    timeline: Timeline | Sequence[tuple[Timeline, float]],
    calls: pd.DataFrame | None = None,
    names: Sequence[Sequence[str]] | None = None,
    beside: Sequence[Event] = (),
) -> list[Event]:
    """All events of one or several steps: names of rows, slices, and arrows from launches to kernels."""
    steps = [(timeline, 0.0)] if isinstance(timeline, Timeline) else list(timeline)
    slices: list[Event] = []
    arrows: list[Event] = []
    above: list[Event] = []
    lane = lanes([(begin, float(step.step_us[0])) for step, begin in steps])
    for number, (step, begin) in enumerate(steps):
        labels = list(names[number]) if names is not None else _labels(step, calls)
        above += step_rows(step, begin, f"step {number + 1}" if len(steps) > 1 else "step", labels, lane[number])
        actions, kernels = _action_events(step, begin), _device_events(step, begin, labels, calls)
        for row, kernel in kernels.items():
            arrows += arrow_events(len(arrows) // 2 + 1, "launch", actions[row], kernel)
        slices += [*_op_events(step, begin), *actions.values(), *kernels.values()]
    return names_of_rows(above) + _rows(steps) + above + slices + list(beside) + arrows


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
        slice_event(str(name), "cpu_op", HOST_PID, int(thread), begin + start, end - start,
               {"phase": str(phase), "critical": bool(crit), "evidence": str(evidence)})
        for name, thread, phase, start, end, crit, evidence in zip(
            p.items.name, p.items.thread, p.items.phase, first, last, critical, p.items.evidence, strict=True)
    ]  # fmt: skip


def _action_events(step: Timeline, begin: float) -> dict[int, Event]:
    """Launches and waits, by row of the program."""
    p = step.program
    labels = {int(Kind.LAUNCH): "launch", int(Kind.SYNC): "wait"}
    until = step.row_end[:, 0] - p.tail_us
    return {
        i: slice_event(labels[int(p.kind[i])], "cuda_runtime", HOST_PID, int(p.thread[i]), begin + step.row_start[i, 0],
               max(until[i] - step.row_start[i, 0], 0.0), {"call": int(p.call[i])})
        for i in np.flatnonzero(p.kind > 0).tolist()
    }  # fmt: skip


def _device_events(step: Timeline, begin: float, labels: Sequence[str], calls: pd.DataFrame | None) -> dict[int, Event]:
    """Kernels and copies, by the row of the program that launches them."""
    p = step.program
    on_path, operators = step.critical.calls, _operators(step)
    sizes = _sizes(calls) if calls is not None else [{}] * p.call_count
    rows = np.flatnonzero(p.call >= 0)
    return {
        row: slice_event(labels[call], "kernel", DEVICE_PID, int(p.streams[p.stream[row]]),
               begin + step.device_start[call, 0], step.device_end[call, 0] - step.device_start[call, 0],
               {"call": call, "critical": bool(on_path[call]), "operator": operators[call],
                "phase": str(p.items.phase[p.item[row]]), **sizes[call]})
        for row, call in zip(rows.tolist(), p.call[rows].tolist(), strict=True)
    }  # fmt: skip


def _sizes(calls: pd.DataFrame) -> list[dict[str, str]]:
    """Sizes and dtype of each call as text. Those of the last table are kept: a job draws it for one GPU after another."""
    if not _LAST_SIZES or _LAST_SIZES[0][0] is not calls:
        _LAST_SIZES[:] = [(calls, _sizes_of(calls))]
    return _LAST_SIZES[0][1]


_LAST_SIZES: list[tuple[pd.DataFrame, list[dict[str, str]]]] = []
"""The table of calls that was drawn last, with the sizes of its calls; none at first."""


def _sizes_of(calls: pd.DataFrame) -> list[dict[str, str]]:
    """Sizes and dtype of each call as text, without those that it does not have."""
    columns = {name: calls[name].to_numpy(np.float64, na_value=np.nan) for name in DIMS if name in calls}
    told = [
        [f"{name}={value:g}" if value == value else "" for value in values.tolist()]
        for name, values in columns.items()
        if not np.isnan(values).all()
    ]
    dtypes = calls["dtype"].astype(object).where(calls["dtype"].notna(), "").tolist() if "dtype" in calls else []
    return [
        {"sizes": " ".join(text[call] for text in told if text[call])}
        | ({"dtype": str(dtypes[call])} if dtypes and dtypes[call] else {})
        for call in range(len(calls))
    ]


def _rows(steps: Sequence[tuple[Timeline, float]]) -> list[Event]:
    """Names of the predicted processes, threads and streams."""
    out = process_events(HOST_PID, "predicted host", 1) + process_events(DEVICE_PID, "predicted GPU", 2)
    threads = sorted({int(t) for step, _ in steps for t in step.program.items.thread})
    streams = sorted({int(s) for step, _ in steps for s in step.program.streams})
    for thread in threads:
        out += row_events(HOST_PID, thread, thread_name(thread))
    for stream in streams:
        out += row_events(DEVICE_PID, stream, f"stream {stream}")
    return out
