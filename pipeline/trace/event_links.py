"""Links the events of a trace: nesting, launches, iterations and phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.trace import nesting as tree
from pipeline.trace.event_order import tied_rows
from pipeline.trace.iterations import iteration_of, windows
from pipeline.trace.kineto_fields import (
    API_CATEGORIES,
    BACKWARD_PREFIX,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    LOADER_MARKER,
    MISSING,
    OPTIMIZER_PREFIX,
    OPTIMIZER_STEP,
    STEP_MARKER,
    ZERO_GRAD_MARKER,
    Category,
)
from pipeline.trace.launches import distinct, launches
from pipeline.trace.linked_trace import Trace
from pipeline.trace.phases import PHASES, phases

CLOCK_NS = 2_000
"""Time in ns by which a device event may begin before its launch, because both timestamps are rounded to a
microsecond."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def link(trace: Trace) -> None:
    """Fill in the columns that link events, the device, and the windows of the iterations."""
    _mark_annotations(trace)
    columns = trace.columns
    host = np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    annotation = trace.is_category(Category.ANNOTATION)
    op = trace.is_category(Category.OP)
    rows, enclosing = _nested(columns, host, annotation, op)
    is_op = op.take(rows)
    is_frame = is_op | annotation.take(rows)
    parent = tree.nearest(enclosing, is_frame)
    del enclosing
    operator = is_op & ~_label_sections(trace, rows, parent, is_op)

    def to_events(local: Ints) -> Ints:
        out = np.full(len(trace), -1, np.int64)
        out[rows] = np.append(rows, -1).take(local)  # position -1 means none
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
    trace.notes += _link_warnings(trace, device, launch, runtime)
    trace.device = _device_name(trace.metadata, columns, device)
    _find_iterations(trace, annotation, host, device, launch, found)
    columns["phase"] = phases(trace, rows, parent, device, launch)
    trace.vocabulary["phase"] = np.array(PHASES, object)


def _nested(columns: Mapping[str, Ints], host: Ints, annotation: Flags, op: Flags) -> tuple[Ints, Ints]:
    """Host events in nesting order (thread, start, longer first), and for each the position of the event that encloses it,
    or -1. Of two with the same start and end, an annotation encloses an operator, and either a runtime call.

    Args:
        columns: of the trace, sorted by start, then longer first.
        host: the host events, ascending.
        annotation: which events of the trace are annotations.
        op: which are operators.
    """
    thread = thread_numbers(columns["pid"].take(host), columns["tid"].take(host))
    order = np.argsort(thread, kind="stable")
    rows, thread = host.take(order), thread.take(order)
    start, duration = columns["ts_ns"].take(rows), columns["dur_ns"].take(rows)
    same = (thread[1:] == thread[:-1]) & (start[1:] == start[:-1]) & (duration[1:] == duration[:-1])
    tied = tied_rows(same)
    equal = rows[tied]
    level = np.where(annotation[equal], 0, np.where(op[equal], 1, 2))
    rows[tied] = equal[np.lexsort((equal, level, -duration[tied], start[tied], thread[tied]))]
    del order, same
    duration += start
    return rows, tree.enclosing(thread, start, duration)


def _mark_annotations(trace: Trace) -> None:
    """Mark steps, optimizers and loaders as annotations, because PyTorch 1.8 recorded them as operators."""
    columns, vocabulary = trace.columns, trace.vocabulary
    marked = trace.names_begin_with(STEP_MARKER, OPTIMIZER_PREFIX, LOADER_MARKER)
    wrong = marked[vocabulary["category"][columns["category"][marked]] == Category.OP]
    if not len(wrong):
        return
    known = np.flatnonzero(vocabulary["category"] == Category.ANNOTATION)
    if not len(known):
        known = np.array([len(vocabulary["category"])])
        vocabulary["category"] = np.append(vocabulary["category"], str(Category.ANNOTATION)).astype(object)
    columns["category"][wrong] = known[0]


def _find_iterations(trace: Trace, annotation: Flags, host: Ints, device: Ints, launch: Ints, found: Flags) -> None:
    columns = trace.columns
    trace.process = _main_process(trace, launch[found])
    main = columns["pid"] == trace.process
    marks = np.flatnonzero(annotation & main)
    names = trace.vocabulary["name"][columns["name"][marks]]
    own = host.compress(main.take(host))

    def span() -> tuple[int, int]:
        busy = np.concatenate([host, device])
        return int(columns["ts_ns"][busy].min()), int((columns["ts_ns"][busy] + columns["dur_ns"][busy]).max())

    def learning() -> Ints:
        return columns["ts_ns"].take(np.intersect1d(trace.names_begin_with(BACKWARD_PREFIX, OPTIMIZER_STEP), own))

    trace.opens = trace.closes = np.empty(0, np.int64)
    if len(host) or len(device):
        begins = columns["ts_ns"][marks]
        ends = begins + columns["dur_ns"][marks]
        trace.marker, trace.opens, trace.closes = windows(names, begins, ends, span, learning)
    if not trace.marker and any(name.startswith(ZERO_GRAD_MARKER) for name in names):
        trace.notes.append(
            f"a single {ZERO_GRAD_MARKER} does not separate steps, so the whole trace counts as one iteration; to "
            "separate them, mark steps with profiler.step()"
        )
    iteration = np.full(len(trace), -1, np.int64)
    iteration[own] = iteration_of(columns["ts_ns"].take(own), trace.opens, trace.closes)
    iteration[device] = np.where(found, iteration.take(launch), -1)
    columns["iteration"] = iteration


def _main_process(trace: Trace, launches: Ints) -> int:
    """The process whose steps count: of those that launched work, the one with the most operators (the first if equal)."""
    columns = trace.columns
    ops = np.flatnonzero(trace.is_category(Category.OP))
    ops = ops if len(ops) else np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    if not len(ops):
        return 0
    processes, count = np.unique(columns["pid"].take(ops), return_counts=True)
    launched = np.isin(processes, columns["pid"][launches])
    main = int(processes[np.argmax(np.where(launched, count + len(ops), count))])
    if len(processes) > 1:
        trace.notes.append(
            f"{len(processes)} processes ran operators; the iterations are those of process {main}; give each rank's "
            "trace separately to see the others"
        )
    return main


def _label_sections(trace: Trace, rows: Ints, parent: Ints, is_op: Flags) -> Flags:
    """Ops that only name a section of code: without namespace (`DistributedDataParallel.forward`), and with ops inside."""
    plain = np.array([":" not in name for name in trace.vocabulary["name"]], bool)
    has_child = np.zeros(len(rows), bool)
    has_child[parent[is_op & (parent >= 0)]] = True
    return plain.take(trace.columns["name"].take(rows)) & has_child & is_op


def thread_numbers(pid: Ints, tid: Ints) -> Ints:
    """Small consecutive number of each (process, thread), in the order of their ids, shape (events,)."""
    if not len(pid):
        return np.empty(0, np.int64)
    threads = _ranks(tid)
    if (pid != pid[0]).any():
        threads = _ranks(_ranks(pid) * (int(threads.max()) + 1) + threads)
    return threads.astype(np.int32)


def _ranks(values: Ints) -> Ints:
    """Position of each value among the distinct values; these are few, so that a search is faster than a sort."""
    return np.searchsorted(distinct(values), values)


def _link_warnings(trace: Trace, device: Ints, launch: Ints, runtime: Ints) -> list[str]:
    """Notes on what makes the links between device and host unreliable, one sentence each."""
    columns, notes = trace.columns, []
    if not len(device):
        if trace.metadata.get("deviceProperties") and len(runtime) == 0 and trace.is_category(Category.OP).any():
            notes.append(
                "the trace lists GPUs but has no events of them, so the CPU counts as the device; if a GPU was used, "
                "record "
                "the trace with activities=[CPU, CUDA]"
            )
        return notes
    device, launch = device[launch >= 0], launch[launch >= 0]
    early = int((columns["ts_ns"][device] + CLOCK_NS < columns["ts_ns"][launch]).sum())
    if early:
        notes.append(
            f"{early} of {len(device)} device events begin before their launch: the clocks of host and GPU disagree, and "
            "latencies and waits learned from this trace are wrong; record it again"
        )
    ids = np.sort(columns["correlation"].take(runtime))
    if not ((ids[1:] == ids[:-1]) & (ids[1:] != MISSING)).any():
        return notes
    order = runtime[np.lexsort((columns["correlation"][runtime], columns["pid"][runtime]))]
    same = np.diff(columns["correlation"][order]) == 0
    same &= (np.diff(columns["pid"][order]) == 0) & (columns["correlation"][order[1:]] != MISSING)
    shared = np.zeros(len(trace), bool)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    repeated = int(shared[launch].sum())
    if repeated:
        notes.append(
            f"{repeated} of {len(device)} device events have a correlation id that several calls have; each is linked "
            "to the "
            "latest such call before it"
        )
    return notes


def _device_name(metadata: dict[str, Any], columns: Mapping[str, Ints], device: Ints) -> str:
    """The GPU on which the device events of the trace ran; `cpu` where there are none."""
    if not len(device):
        return "cpu"
    properties = metadata.get("deviceProperties")
    listed = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    used = int(columns["device"][device[0]])
    named = [str(p["name"]) for p in listed if p.get("id") == used and "name" in p]
    return (named or [str(p["name"]) for p in listed if "name" in p] or ["unknown"])[0]
