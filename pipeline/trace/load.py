"""Reads a profiler trace as linked columns: events, nesting, launches, iterations and phases.

`load_trace` is the complete reader; other packages use its result, a `linked_trace.Trace`. Events are ordered by start,
so the order in the file does not matter. `event_id` is the position in that order. Reading needs only NumPy. pandas and
Arrow take more memory than most traces, and are imported when a table is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import TraceError
from pipeline.garbage_collector import collector_paused
from pipeline.trace.event_columns import Columns
from pipeline.trace.event_links import link
from pipeline.trace.event_order import in_order, without_duplicates
from pipeline.trace.file_scan import Scanner
from pipeline.trace.free_memory import keep_freed_memory
from pipeline.trace.linked_trace import Trace
from pipeline.trace.typed_events import EventDecoder

Ints = npt.NDArray[np.int64]


def load_trace(path: str | Path) -> Trace:
    """Read and link a PyTorch profiler trace (`.json` or `.json.gz`, Kineto; NVIDIA, AMD or CPU only).

    Raises:
        TraceError: the file is missing, damaged, cut off or no profiler trace; the message says where.
    """
    path = Path(path)
    keep_freed_memory()
    decoder = EventDecoder()
    scanner, raw = Scanner(path, decoder.parse), Columns(path, decoder)
    with collector_paused():
        try:
            for batch in scanner.batches():
                raw.add(batch)
        except TraceError:
            raw.add_held()  # an error in an earlier event comes first
            raise
        raw.add_held()
    columns = raw.finish()
    base = _base_ns(path, scanner.metadata)
    columns["ts_ns"] = columns["ts_ns"] + base
    columns["category"] = columns.pop("cat")
    ordered, vocabulary = in_order(columns, raw)
    ordered, copies = without_duplicates(ordered)
    trace = Trace(
        path=path,
        device="",
        marker="",
        opens=np.empty(0, np.int64),
        closes=np.empty(0, np.int64),
        columns=ordered,
        vocabulary=vocabulary,
        metadata=scanner.metadata,
        notes=_notes(raw, scanner, copies),
    )
    link(trace)
    return trace


def _base_ns(path: Path, metadata: dict[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, bool) or not isinstance(base, int) or not -(10**18) <= base <= 2**61:
        raise TraceError(f"{path}: baseTimeNanoseconds is not a time in nanoseconds")
    return base


def _notes(raw: Columns, scanner: Scanner, copies: int) -> list[str]:
    notes = []
    if copies:
        notes.append(f"{copies} duplicate events were dropped")
    if raw.clamped:
        notes.append(f"{raw.clamped} events have a negative duration, which was read as 0")
    if raw.unlinked:
        notes.append(f"{raw.unlinked} ids are not 64-bit numbers and were read as absent")
    if raw.ignored:
        notes.append(f"{raw.ignored} begin/end events were dropped, because profilers write complete events")
    if scanner.repaired:
        notes.append(
            "the file is not valid JSON (unescaped characters in names, or nan and inf); it was repaired while reading"
        )
    return notes
