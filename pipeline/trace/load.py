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
from pipeline.trace import tree
from pipeline.trace.columns import Columns
from pipeline.trace.fields import API_CATEGORIES, DEVICE_CATEGORIES, HOST_CATEGORIES, Category
from pipeline.trace.iterations import assign, first_settled, windows
from pipeline.trace.link import launches
from pipeline.trace.order import ordered, without_copies
from pipeline.trace.phases import PHASES, phases
from pipeline.trace.scan import Scanner

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.prediction import Prediction

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass
class Trace:
    """A linked trace.

    Attributes:
        path: the file.
        device: name of the GPU, `cpu` where nothing ran on a GPU.
        kind: `kineto`.
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
    kind: str
    marker: str
    opens: Ints
    closes: Ints
    columns: dict[str, Ints]
    vocabulary: dict[str, npt.NDArray[np.object_]]
    metadata: dict[str, Any]
    bytes_read: int
    notes: list[str] = field(default_factory=list)
    process: int = 0

    def __len__(self) -> int:
        return len(self.columns["ts_ns"])

    def to(self, gpu: str) -> Prediction:
        """The traced step on another GPU, from its measured kernels; see `pipeline.transfer.tracker.TrackedTrace`.

        Raises:
            InputError: nothing ran on a GPU, or one of the two GPUs has no specification.
        """
        from pipeline.transfer.tracker import TrackedTrace

        return TrackedTrace(self).to(gpu)

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
        from pipeline.trace.export import events_frame

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
        kind="kineto",
        marker="",
        opens=np.empty(0, np.int64),
        closes=np.empty(0, np.int64),
        columns=columns,
        vocabulary=vocabulary,
        metadata=scanner.metadata,
        bytes_read=scanner.bytes_read,
        notes=_notes(raw, scanner, copies),
    )
    _link(trace)
    return trace


def _link(trace: Trace) -> None:
    """Fill in nesting, launches, iterations and phases."""
    columns = trace.columns
    host = np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    annotation = trace.is_category(Category.ANNOTATION)
    op = trace.is_category(Category.OP)
    thread = _threads(columns["pid"][host], columns["tid"][host])
    rank = np.select([annotation[host], op[host]], [0, 1], 2)
    order = np.lexsort((host, rank, -columns["dur_ns"][host], columns["ts_ns"][host], thread))
    rows = host[order]
    start, end = columns["ts_ns"][rows], trace.end_ns[rows]
    is_op, is_frame = op[rows], op[rows] | annotation[rows]
    raw_parent = tree.enclosing(thread[order], start, end)
    parent = tree.nearest(raw_parent, is_frame)
    operator = is_op & ~_label(trace, rows, parent, is_op)

    def to_events(local: Ints) -> Ints:
        out = np.full(len(trace), -1, np.int64)
        out[rows] = np.where(local >= 0, rows[local], -1)
        return out

    columns["parent"] = to_events(parent)
    columns["top"] = to_events(tree.outermost(parent, operator))
    columns["op"] = np.where(op, -1, to_events(tree.nearest(parent, is_op)))
    columns["launch"] = np.full(len(trace), -1, np.int64)
    device = np.flatnonzero(trace.is_category(*DEVICE_CATEGORIES))
    runtime = np.flatnonzero(trace.is_category(*API_CATEGORIES))
    linked = launches(
        columns["correlation"][device], columns["ts_ns"][device],
        columns["correlation"][runtime], columns["ts_ns"][runtime],
        columns["device"][device], columns["pid"][runtime],
    )  # fmt: skip
    found = linked >= 0
    launch = np.where(found, runtime[linked] if len(runtime) else -1, -1)
    columns["launch"][device] = launch
    for column in ("top", "op"):
        columns[column][device] = np.where(found, columns[column][launch], -1)
    if (~found).any():
        trace.notes.append(f"{int((~found).sum())} of {len(device)} device events have no launch in the trace")
    trace.device = _device_name(trace.metadata, columns, device)
    _iterate(trace, annotation, host, device, launch, found)
    columns["phase"] = phases(trace, rows, parent, device, launch)
    trace.vocabulary["phase"] = np.array(PHASES, object)


def _iterate(trace: Trace, annotation: Flags, host: Ints, device: Ints, launch: Ints, found: Flags) -> None:
    columns = trace.columns
    trace.process = _main_process(trace)
    main = columns["pid"] == trace.process
    marks = np.flatnonzero(annotation & main)
    busy = np.concatenate([host, device])
    span = (int(columns["ts_ns"][busy].min()), int(trace.end_ns[busy].max())) if len(busy) else (0, 0)
    trace.marker, trace.opens, trace.closes = windows(
        trace.names[marks], columns["ts_ns"][marks], trace.end_ns[marks], span
    )
    if not len(busy):
        trace.opens = trace.closes = np.empty(0, np.int64)
    iteration = np.full(len(trace), -1, np.int64)
    own = host[main[host]]
    iteration[own] = assign(columns["ts_ns"][own], trace.opens, trace.closes) if len(trace.opens) else -1
    iteration[device] = np.where(found, iteration[launch], -1)
    columns["iteration"] = iteration


def _main_process(trace: Trace) -> int:
    """The process whose steps count: the one with most operators (the first of equals)."""
    columns = trace.columns
    ops = np.flatnonzero(trace.is_category(Category.OP))
    ops = ops if len(ops) else np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    if not len(ops):
        return 0
    processes, count = np.unique(columns["pid"][ops], return_counts=True)
    main = int(processes[np.argmax(count)])
    if len(processes) > 1:
        trace.notes.append(
            f"{len(processes)} processes ran operators; iterations are those of process {main}, "
            "give each rank's trace on its own to see the others"
        )
    return main


def _label(trace: Trace, rows: Ints, parent: Ints, is_op: Flags) -> Flags:
    """Ops that only name a stretch of code: no namespace (`DistributedDataParallel.forward`) but ops inside."""
    plain = np.array([":" not in name for name in trace.vocabulary["name"]], bool)
    has_child = np.zeros(len(rows), bool)
    has_child[parent[is_op & (parent >= 0)]] = True
    return plain[trace.columns["name"][rows]] & has_child & is_op


def _threads(pid: Ints, tid: Ints) -> Ints:
    """Small consecutive number of each (process, thread)."""
    if not len(pid):
        return np.empty(0, np.int64)
    pid_rank, tid_rank = np.unique(pid, return_inverse=True)[1], np.unique(tid, return_inverse=True)[1]
    both = np.unique(pid_rank * (int(tid_rank.max()) + 1) + tid_rank, return_inverse=True)[1]
    return np.asarray(both, np.int64)


def _base_ns(path: Path, metadata: dict[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, bool) or not isinstance(base, int) or not -(10**18) <= base <= 2**61:
        raise TraceError(f"{path}: baseTimeNanoseconds is no time in nanoseconds")
    return base


def _device_name(metadata: dict[str, Any], columns: dict[str, Ints], device: Ints) -> str:
    """The GPU on which the device events of the trace ran; `cpu` where there are none."""
    if not len(device):
        return "cpu"
    properties = metadata.get("deviceProperties")
    listed = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    used = int(columns["device"][device[0]])
    named = [str(p["name"]) for p in listed if p.get("id") == used and "name" in p]
    return (named or [str(p["name"]) for p in listed if "name" in p] or ["unknown"])[0]


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
        notes.append("the file is not valid JSON (unescaped characters in names); it was mended while reading")
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
