"""Writes a predicted step as a Chrome trace, which Perfetto shows together with the measured step."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from pipeline.schemas import atomic_path
from pipeline.simulate.timeline import Timeline

HOST_PID, DEVICE_PID = 900_001, 900_002
"""Process ids of the predicted rows. They are larger than any process id on Linux, so that traces can be merged."""

_THREADS = ("main", "autograd")


def write_timeline(
    timeline: Timeline | Sequence[tuple[Timeline, float]],
    path: str | Path,
    calls: pd.DataFrame | None = None,
    names: Sequence[Sequence[str]] | None = None,
    beside: Sequence[dict[str, Any]] = (),
) -> None:
    """Write one or several steps (their first draws) as Chrome JSON, compressed if the name ends in `.gz`.

    Args:
        timeline: a step, or pairs (step, begin in µs); the begin aligns predicted iterations with measured ones.
        path: the `.json.gz` (or plain `.json`) file to write.
        calls: `calls` table for the kernels' family and op, where there is one.
        names: kernel names per step, in the order of its calls.
        beside: events of other rows on the same time axis, such as the measured step.

    Raises:
        SteptimeError: the file cannot be written.
    """
    steps = [(timeline, 0.0)] if isinstance(timeline, Timeline) else list(timeline)
    events: list[dict[str, Any]] = []
    for number, (step, begin) in enumerate(steps):
        labels = list(names[number]) if names is not None else _labels(step, calls)
        events += _host_events(step, begin) + _device_events(step, begin, labels)
    events = _rows(steps) + events + list(beside)
    content = orjson.dumps({"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": events})
    with atomic_path(path) as part:
        part.write_bytes(gzip.compress(content, 5, mtime=0) if Path(path).suffix == ".gz" else content)


def _labels(step: Timeline, calls: pd.DataFrame | None) -> list[str]:
    if calls is None:
        owner = np.full(step.program.call_count, "", object)
        launching = step.program.call >= 0
        owner[step.program.call[launching]] = step.program.items.name[step.program.item[launching]]
        return [str(name) for name in owner]
    return [f"{family}:{op}" for family, op in zip(calls["family"], calls["op"], strict=True)]


def _host_events(step: Timeline, begin: float) -> list[dict[str, Any]]:
    """Ops as slices, with launches and waits inside them."""
    p = step.program
    on_path = step.critical.rows
    host_begin = np.minimum(
        np.where(p.previous >= 0, step.row_end[p.previous, 0], 0.0) + p.lead_us, step.row_start[:, 0]
    )
    count = len(p.items.node)
    first, last = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(first, p.item, host_begin)
    np.maximum.at(last, p.item, step.row_end[:, 0])
    critical = np.zeros(count, bool)
    np.logical_or.at(critical, p.item, on_path)
    ops = [
        slice_event(str(name), "cpu_op", HOST_PID, int(thread), begin + start, end - start,
               {"phase": str(phase), "critical": bool(crit), "evidence": str(evidence)})
        for name, thread, phase, start, end, crit, evidence in zip(
            p.items.name, p.items.thread, p.items.phase, first, last, critical, p.items.evidence, strict=True)
    ]  # fmt: skip
    acting = np.flatnonzero(p.kind > 0)
    labels = ("", "launch", "wait")
    until = step.row_end[:, 0] - p.tail_us
    calls = [
        slice_event(labels[int(p.kind[i])], "cuda_runtime", HOST_PID, int(p.thread[i]), begin + step.row_start[i, 0],
               max(until[i] - step.row_start[i, 0], 0.0), {"call": int(p.call[i])})
        for i in acting
    ]  # fmt: skip
    return ops + calls


def _device_events(step: Timeline, begin: float, labels: Sequence[str]) -> list[dict[str, Any]]:
    p = step.program
    on_path = step.critical.calls
    rows = np.flatnonzero(p.call >= 0)
    return [
        slice_event(labels[call], "kernel", DEVICE_PID, int(p.streams[p.stream[row]]), begin + step.device_start[call, 0],
               step.device_end[call, 0] - step.device_start[call, 0], {"call": call, "critical": bool(on_path[call])})
        for row, call in zip(rows.tolist(), p.call[rows].tolist(), strict=True)
    ]  # fmt: skip


def slice_event(
    name: str, category: str, pid: int, tid: int, start: float, duration: float, args: dict[str, Any]
) -> dict[str, Any]:
    """A complete event. Times are in µs, rounded to nanoseconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(float(start), 3),
        "dur": round(float(duration), 3), "args": args,
    }  # fmt: skip


def _rows(steps: Sequence[tuple[Timeline, float]]) -> list[dict[str, Any]]:
    """Names of the predicted processes, threads and streams."""
    out = [
        metadata_event("process_name", HOST_PID, 0, "predicted host"),
        metadata_event("process_name", DEVICE_PID, 0, "predicted GPU"),
    ]
    threads = sorted({int(t) for step, _ in steps for t in step.program.items.thread})
    streams = sorted({int(s) for step, _ in steps for s in step.program.streams})
    out += [metadata_event("thread_name", HOST_PID, t, thread_name(t)) for t in threads]
    return out + [metadata_event("thread_name", DEVICE_PID, s, f"stream {s}") for s in streams]


def metadata_event(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    """The name of a process or thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def thread_name(role: int) -> str:
    """Name of the host thread of a role: 0 main, 1 autograd, others by number."""
    return _THREADS[role] if role < len(_THREADS) else f"thread {role}"
