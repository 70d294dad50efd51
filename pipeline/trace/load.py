"""A profiler trace as linked columns: events, nesting, launches, iterations and phases.

`load_trace` is the whole reader; `Trace` holds what the other rooms work on. Events are ordered by start, so that the
order in the file does not matter; `event_id` is the position in that order. Reading needs NumPy alone: pandas and Arrow,
which take more memory than most traces, are imported where a table is asked for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import TraceError
from pipeline.trace.event_columns import Columns
from pipeline.trace.event_links import link
from pipeline.trace.event_order import ordered, without_copies
from pipeline.trace.file_scan import Scanner
from pipeline.trace.iterations import first_settled

if TYPE_CHECKING:
    import pandas as pd


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass
class Trace:
    """A linked trace.

    Attributes:
        path: the file.
        device: name of the GPU, `cpu` where nothing ran on a GPU.
        process: the process whose steps count, where several ran operators.
        marker: what marked the iterations; empty where nothing did and the trace is one iteration.
        opens: start of each iteration's window, ns.
        closes: end of each iteration's window, ns.
        columns: int64 arrays, one per column, in event order; text as codes into `vocabulary`.
        vocabulary: per text column an array of its texts.
        metadata: everything in the file outside the event array.
        notes: what was odd about the file and how it was read, one sentence each.
    """

    path: Path
    device: str
    marker: str
    opens: Ints
    closes: Ints
    columns: dict[str, Ints]
    vocabulary: dict[str, npt.NDArray[np.object_]]
    metadata: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    process: int = 0

    def __len__(self) -> int:
        return len(self.columns["ts_ns"])

    @property
    def settled(self) -> Flags:
        """Iterations to learn overheads from, shape (iterations,)."""
        return np.arange(len(self.opens)) >= first_settled(len(self.opens))

    def is_category(self, *categories: str) -> Flags:
        """Which events belong to one of the categories."""
        return self.texts_in("category", set(categories))

    def texts_in(self, column: str, texts: set[str] | frozenset[str]) -> Flags:
        """Which events have one of the texts in a text column."""
        hits = np.array([text in texts for text in self.vocabulary[column]] + [False], bool)
        out: Flags = hits[self.columns[column]]
        return out

    @cached_property
    def names(self) -> npt.NDArray[np.object_]:
        """Name of every event."""
        out: npt.NDArray[np.object_] = self.vocabulary["name"][self.columns["name"]]
        return out

    @cached_property
    def end_ns(self) -> Ints:
        """End of every event, ns."""
        return self.columns["ts_ns"] + self.columns["dur_ns"]

    @property
    def iterations(self) -> pd.DataFrame:
        """One row per iteration: `iteration`, `start_ns`, `end_ns` of its window."""
        import pandas as pd

        return pd.DataFrame({"iteration": np.arange(len(self.opens)), "start_ns": self.opens, "end_ns": self.closes})

    @cached_property
    def events(self) -> pd.DataFrame:
        """All events as an `events` table (pipeline/schemas.py); text columns are categorical."""
        from pipeline.trace.event_tables import events_frame

        return events_frame(self)


def load_trace(path: str | Path) -> Trace:
    """Read and link a PyTorch profiler trace (`.json` or `.json.gz`, Kineto; NVIDIA, AMD or CPU only).

    Raises:
        TraceError: the file is missing, damaged, cut off or no profiler trace; the message says where.
    """
    path = Path(path)
    scanner, raw = Scanner(path), Columns(path)
    with _collector_paused():
        for batch in scanner.batches():
            raw.add(batch)
    columns = raw.finish()
    base = _base_ns(path, scanner.metadata)
    columns["ts_ns"] = columns["ts_ns"] + base
    columns["category"] = columns.pop("cat")
    columns, vocabulary = ordered(columns, raw)
    columns, copies = without_copies(columns)
    trace = Trace(
        path=path,
        device="",
        marker="",
        opens=np.empty(0, np.int64),
        closes=np.empty(0, np.int64),
        columns=columns,
        vocabulary=vocabulary,
        metadata=scanner.metadata,
        notes=_notes(raw, scanner, copies),
    )
    link(trace)
    return trace


def _base_ns(path: Path, metadata: dict[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, bool) or not isinstance(base, int) or not -(10**18) <= base <= 2**61:
        raise TraceError(f"{path}: baseTimeNanoseconds is no time in nanoseconds")
    return base


def _notes(raw: Columns, scanner: Scanner, copies: int) -> list[str]:
    notes = []
    if copies:
        notes.append(f"{copies} events are exact copies of others and were left out")
    if raw.clamped:
        notes.append(f"{raw.clamped} events have a negative duration, read as 0")
    if raw.unlinked:
        notes.append(f"{raw.unlinked} ids are no 64-bit numbers, read as absent")
    if raw.ignored:
        notes.append(f"{raw.ignored} begin/end events were left out: profilers write complete events")
    if scanner.mended:
        notes.append(
            "the file is not valid JSON (unescaped characters in names, or nan and inf); it was mended while reading"
        )
    return notes


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes millions of short-lived containers without cycles; the collector would scan them in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
