"""Reads a profiler trace as linked columns: events, nesting, launches, iterations and phases.

`load_trace` is the complete reader; other packages use its result, a `linked_trace.Trace`. Events are ordered by start,
so the order in the file does not matter. `event_id` is the position in that order. Reading needs only NumPy. pandas and
Arrow take more memory than most traces, and are imported when a table is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.arrays import Ints
from pipeline.errors import TraceError
from pipeline.trace.event_columns import Columns
from pipeline.trace.event_links import link
from pipeline.trace.event_order import in_order, without_duplicates
from pipeline.trace.file_scan import Scanner
from pipeline.trace.kineto_fields import MISSING, STEP_MARKER
from pipeline.trace.linked_trace import Trace


def load_trace(path: str | Path) -> Trace:
    """Read and link a PyTorch profiler trace (`.json` or `.json.gz`, Kineto; NVIDIA, AMD or CPU only).

    Raises:
        TraceError: the file is missing, damaged, cut off or no profiler trace; the message says where.
    """
    path = Path(path)
    scanner, events = Scanner(path), Columns(path)
    for batch in scanner.batches():
        events.add(batch)
    columns, lost = _without_lost(events.finish())
    lost_steps = _step_markers(lost["name"], list(events.vocabulary["name"].codes))
    columns["ts_ns"] += _base_ns(path, scanner.metadata)
    columns, vocabulary = in_order(columns, events.vocabulary)
    columns, duplicates = without_duplicates(columns)
    trace = Trace(
        path=path,
        device="",
        marker="",
        opens=np.empty(0, np.int64),
        closes=np.empty(0, np.int64),
        columns=columns,
        vocabulary=vocabulary,
        metadata=scanner.metadata,
        notes=_notes(events, scanner, duplicates),
    )
    link(trace)
    if len(lost["name"]):
        _leave_out(trace, lost["correlation"], lost_steps)
    return trace


def _without_lost(columns: dict[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Columns without the events whose times the profiler lost, and the columns of these events.

    They begin at 0 and last 0 (pytorch/kineto#109), while all others begin later.
    """
    lost = (columns["ts_ns"] == 0) & (columns["dur_ns"] == 0)
    if not lost.any() or lost.all() or columns["ts_ns"][~lost].min() <= 0:
        lost[:] = False
    kept, left = (
        {name: values[rows] for name, values in columns.items()} for rows in (~lost, lost)
    )
    return kept, left


def _step_markers(codes: Ints, names: list[str]) -> list[str]:
    """The names of events that mark a step, in order of their numbers."""
    marks = [names[code] for code in codes.tolist() if names[code].startswith(STEP_MARKER)]
    return sorted(marks, key=lambda mark: (len(mark), mark))


def _leave_out(trace: Trace, lost: Ints, steps: list[str]) -> None:
    """Take the iterations that miss a launch or its work out of a trace: their events get no iteration.

    Args:
        trace: the trace, without its lost events.
        lost: correlation ids of the lost events.
        steps: names of the steps whose marker is among them; these have no iteration.
    """
    columns = trace.columns
    partners = np.flatnonzero(np.isin(columns["correlation"], lost[lost != MISSING]))
    inside = columns["iteration"][partners]
    # work without its launch has no iteration: it is in the one in which it runs
    at = np.searchsorted(trace.opens, columns["ts_ns"][partners], side="right") - 1
    numbers = np.unique(np.where(inside >= 0, inside, at))
    numbers = numbers[numbers >= 0]
    columns["iteration"][np.isin(columns["iteration"], numbers)] = -1
    left_out = (
        f"; iterations that miss some of it are left out: {', '.join(map(str, numbers))}"
        if len(numbers)
        else ""
    )
    unmarked = f"; steps whose marker is lost are left out: {', '.join(steps)}" if steps else ""
    trace.notes.append(
        f"{len(lost)} events have no time (ts 0): the profiler lost it{left_out}{unmarked}"
    )


def _base_ns(path: Path, metadata: dict[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, bool) or not isinstance(base, int) or not -(10**18) <= base <= 2**61:
        raise TraceError(f"{path}: baseTimeNanoseconds is not a time in nanoseconds")
    return base


def _notes(events: Columns, scanner: Scanner, duplicates: int) -> list[str]:
    notes = []
    if duplicates:
        notes.append(f"{duplicates} duplicate events were dropped")
    if events.clamped:
        notes.append(f"{events.clamped} events have a negative duration, which was read as 0")
    if events.unlinked:
        notes.append(f"{events.unlinked} ids are not 64-bit numbers and were read as absent")
    if events.ignored:
        notes.append(
            f"{events.ignored} begin/end events were dropped, because profilers write complete"
            " events"
        )
    if scanner.repaired:
        notes.append(
            "the file is not valid JSON (unescaped characters in names, or nan and inf); it was"
            " repaired while reading"
        )
    return notes
