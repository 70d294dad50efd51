"""Links the events of a trace: nesting, launches, iterations and phases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.arrays import Flags, Ints
from pipeline.errors import TraceError
from pipeline.trace import nesting
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
    OTHER_DEVICES,
    STEP_MARKER,
    ZERO_GRAD_MARKER,
    Category,
)
from pipeline.trace.linked_trace import UNNAMED, Trace

CLOCK_NS = 2_000
"""Time in ns by which a device event may begin before its launch, because both timestamps are rounded to a
microsecond."""

OWNED_SHARE = 0.9
"""A process uses a device if its calls match at least this share of the device events that the ids of all processes
match. The share does not refer to all events of the device. Profilers lose launches (a fifth of them in two ranks of
v100x8_dlrm), and their ids match calls of other processes by chance."""

PHASES = ("forward", "loss", "backward", "optimizer", "data", "communication")
FORWARD, LOSS, BACKWARD, OPTIMIZER, DATA, COMMUNICATION = range(6)

_PHASE_RULES = (
    (LOSS, r"aten::(?ais:.*loss)"),
    (OPTIMIZER, re.escape(OPTIMIZER_PREFIX) + "|## optimizer"),
    (BACKWARD, re.escape(BACKWARD_PREFIX)),
    (DATA, re.escape(LOADER_MARKER)),
    (COMMUNICATION, "nccl:|c10d::|record_param_comms|gloo:"),
)
"""Patterns of how a name begins, and the phase of the event and of everything inside it. Of the phases of several
enclosing events, the later rule has priority."""

_RULE = re.compile("|".join(f"({pattern})" for _, pattern in _PHASE_RULES))


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
    parent = nesting.nearest(enclosing, is_frame)
    operator = is_op & ~_label_sections(trace, rows, parent, is_op)

    def to_events(local: Ints) -> Ints:
        out = np.full(len(trace), -1)
        out[rows] = np.append(rows, -1).take(local)  # position -1 means none
        return out

    columns["parent"] = to_events(parent)
    columns["top"] = to_events(nesting.outermost(parent, operator))
    columns["op"] = np.where(op, -1, to_events(nesting.nearest(parent, is_op)))
    columns["launch"] = np.full(len(trace), -1)
    device = np.flatnonzero(trace.is_category(*DEVICE_CATEGORIES))
    unnamed = device[(columns["stream"][device] == MISSING) & (columns["tid"][device] >= 0)]
    columns["stream"][unnamed] = columns["tid"][unnamed]  # Kineto shows streams as threads
    streams = columns["stream"][device]
    unknown = (streams < 0) & (streams != MISSING)  # Kineto's number of a stream it does not know
    columns["stream"][device[unknown]] = max(streams.max(initial=0), 0) - streams[unknown]
    runtime = np.flatnonzero(trace.is_category(*API_CATEGORIES))
    launch = _launches(columns, device, runtime)
    is_linked = launch >= 0
    columns["launch"][device] = launch
    for column in ("top", "op"):
        columns[column][device] = np.where(is_linked, columns[column][launch], -1)
    if not is_linked.all():
        trace.notes.append(
            f"{int((~is_linked).sum())} of {len(device)} device events have no launch in the trace"
        )
    trace.notes += _link_warnings(trace, device, launch, runtime)
    trace.device = _device_name(trace.metadata, columns, device)
    _find_iterations(trace, annotation, host, device, launch)
    columns["phase"] = _phases(trace, rows, parent, device, launch)
    trace.vocabulary["phase"] = np.array(PHASES, object)


def _nested(
    columns: Mapping[str, Ints], host: Ints, annotation: Flags, op: Flags
) -> tuple[Ints, Ints]:
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
    return rows, nesting.enclosing(thread, start, start + duration)


def _mark_annotations(trace: Trace) -> None:
    """Mark steps, optimizers and loaders as annotations, because PyTorch 1.8 recorded them as operators."""
    columns, vocabulary = trace.columns, trace.vocabulary
    marked = trace.names_begin_with(STEP_MARKER, OPTIMIZER_PREFIX, LOADER_MARKER)
    marked = marked[trace.is_category(Category.OP)[marked]]
    if not len(marked):
        return
    categories = vocabulary["category"].tolist()
    if Category.ANNOTATION not in categories:
        categories.append(str(Category.ANNOTATION))
        vocabulary["category"] = np.array(categories, object)
    columns["category"][marked] = categories.index(Category.ANNOTATION)


def _find_iterations(
    trace: Trace, annotation: Flags, host: Ints, device: Ints, launch: Ints
) -> None:
    columns = trace.columns
    trace.process = _main_process(trace, launch[launch >= 0])
    main = columns["pid"] == trace.process
    marks = np.flatnonzero(annotation & main)
    names = trace.vocabulary["name"][columns["name"][marks]]
    main_host = host[main[host]]

    trace.opens = trace.closes = np.empty(0, np.int64)
    if len(busy := np.concatenate([host, device])):
        start, end = columns["ts_ns"], trace.end_ns
        span = np.array([start[busy].min(), end[busy].max() + 1])
        learning = start[
            np.intersect1d(trace.names_begin_with(BACKWARD_PREFIX, OPTIMIZER_STEP), main_host)
        ]
        trace.marker, trace.opens, trace.closes = windows(
            names, start[marks], end[marks], span, learning
        )
    if not trace.marker and any(name.startswith(ZERO_GRAD_MARKER) for name in names):
        trace.notes.append(
            f"a single {ZERO_GRAD_MARKER} does not separate steps, so the whole trace counts as one"
            " iteration; to separate them, mark steps with profiler.step()"
        )
    iteration = np.full(len(trace), -1)
    iteration[main_host] = iteration_of(columns["ts_ns"][main_host], trace.opens, trace.closes)
    iteration[device] = np.where(launch >= 0, iteration[launch], -1)
    columns["iteration"] = iteration


def _main_process(trace: Trace, launching: Ints) -> int:
    """The process whose steps count: of those that launched work, the one with the most operators (the first if equal)."""
    columns = trace.columns
    ops = np.flatnonzero(trace.is_category(Category.OP))
    ops = ops if len(ops) else np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    if not len(ops):
        return 0
    processes, count = np.unique(columns["pid"].take(ops), return_counts=True)
    launched = np.isin(processes, columns["pid"][launching])
    main = int(processes[np.argmax(np.where(launched, count + len(ops), count))])
    if len(processes) > 1:
        trace.notes.append(
            f"{len(processes)} processes ran operators; the iterations are those of process {main};"
            " give each rank's trace separately to see the others"
        )
    return main


def _label_sections(trace: Trace, rows: Ints, parent: Ints, is_op: Flags) -> Flags:
    """Ops that only name a section of code: without namespace (`DistributedDataParallel.forward`), and with ops inside."""
    plain = trace.where("name", lambda name: ":" not in name)
    has_child = np.zeros(len(rows), bool)
    has_child[parent[is_op & (parent >= 0)]] = True
    return plain.take(rows) & has_child & is_op


def thread_numbers(pid: Ints, tid: Ints) -> Ints:
    """Small consecutive number of each (process, thread), in the order of their ids, shape (events,)."""
    if not len(pid):
        return np.empty(0, np.int64)
    threads = _ranks(tid)
    if (pid != pid[0]).any():
        threads = _ranks(_ranks(pid) * (int(threads.max()) + 1) + threads)
    return threads.astype(np.int32)


def _ranks(values: Ints) -> Ints:
    """Position of each value among the distinct values."""
    return np.searchsorted(
        np.unique(values), values
    )  # faster than the inverse of `unique`: few values are distinct


def _link_warnings(trace: Trace, device: Ints, launch: Ints, runtime: Ints) -> list[str]:
    """Notes on what makes the links between device and host unreliable, one sentence each."""
    columns, notes = trace.columns, []
    if not len(device):
        if (
            trace.metadata.get("deviceProperties")
            and len(runtime) == 0
            and trace.is_category(Category.OP).any()
        ):
            notes.append(
                "the trace lists GPUs but has no events of them, so the CPU counts as the device;"
                " if a GPU was used, record the trace with activities=[CPU, CUDA]"
            )
        return notes
    device, launch = device[launch >= 0], launch[launch >= 0]
    early = int((columns["ts_ns"][device] + CLOCK_NS < columns["ts_ns"][launch]).sum())
    if early:
        notes.append(
            f"{early} of {len(device)} device events begin before their launch: the clocks of host"
            " and GPU disagree, and latencies and waits learned from this trace are wrong; record"
            " it again"
        )
    ids = np.sort(columns["correlation"].take(runtime))
    if not ((ids[1:] == ids[:-1]) & (ids[1:] != MISSING)).any():
        return notes
    known = runtime[columns["correlation"][runtime] != MISSING]
    calls = np.column_stack([columns["pid"][known], columns["correlation"][known]])
    _, which, count = np.unique(calls, axis=0, return_inverse=True, return_counts=True)
    repeated = int(np.isin(launch, known[count[which.ravel()] > 1]).sum())
    if repeated:
        notes.append(
            f"{repeated} of {len(device)} device events have a correlation id that several calls"
            " have; each is linked to the latest such call before it"
        )
    return notes


def refuse_other_devices(trace: Trace) -> None:
    """Raise for a trace of a device that is neither a GPU of NVIDIA or AMD nor the CPU.

    Raises:
        TraceError: the trace holds runtime calls of such a device.
    """
    for category in trace.vocabulary["category"]:
        for prefix, maker in OTHER_DEVICES.items():
            if category.startswith(prefix):
                raise TraceError(
                    f"{trace.path}: traces of {maker} ({category}) are not supported; Steptime"
                    " reads traces of NVIDIA and AMD GPUs, and of the CPU alone"
                )


def _device_name(metadata: dict[str, Any], columns: Mapping[str, Ints], device: Ints) -> str:
    """The GPU on which the device events of the trace ran; `cpu` where there are none."""
    if not len(device):
        return "cpu"
    properties = metadata.get("deviceProperties")
    listed = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    used = int(columns["device"][device[0]])
    named = [(str(p.get("id")) != str(used), str(p["name"])) for p in listed if p.get("name")]
    return min(named, key=lambda each: each[0], default=(True, UNNAMED))[1]


def _launches(columns: Mapping[str, Ints], device: Ints, runtime: Ints) -> Ints:
    """The runtime call that launched each device event; -1 where no call carries its correlation id.

    Each process counts its ids from 1, so in a file of several ranks an id alone is ambiguous. Every device is assigned
    to the process whose launches precede its events most closely.
    """
    process, of_device = columns["pid"][runtime], columns["device"][device]
    processes = np.unique(process)
    if len(processes) < 2:
        return _by_id(columns, device, runtime)
    out = np.full(len(device), -1)
    for gpu in np.unique(of_device):
        events = device[of_device == gpu]
        of_any = _by_id(columns, events, runtime)
        best = (np.inf, of_any)
        for user in processes:
            launch = _by_id(columns, events, runtime[process == user])
            linked = launch >= 0
            if linked.any() and linked.sum() >= OWNED_SHARE * (of_any >= 0).sum():
                apart = np.abs(columns["ts_ns"][events] - columns["ts_ns"][launch])[linked]
                best = min(best, (float(np.median(apart)), launch), key=lambda pair: pair[0])
        out[of_device == gpu] = best[1]
    return out


def _by_id(columns: Mapping[str, Ints], device: Ints, runtime: Ints) -> Ints:
    """Launches by id only; -1 where there is none.

    If several calls have the same id (damaged files), the latest one that began before the device event is used. One
    call may launch many device events (CUDA graphs).
    """
    correlation, start = columns["correlation"], columns["ts_ns"]
    calls = runtime[correlation[runtime] != MISSING]
    calls = calls[np.lexsort((start[calls], correlation[calls]))]
    out = np.full(len(device), -1)
    if not len(calls):
        return out
    wanted = correlation[device]
    ids = np.append(correlation[calls], [MISSING, MISSING])
    first = np.searchsorted(ids[:-2], wanted)
    is_known = (ids[first] == wanted) & (wanted != MISSING)
    # rare: an id that occurs more than once
    for row in np.flatnonzero(is_known & (ids[first + 1] == wanted)):
        last = int(np.searchsorted(ids[:-2], wanted[row], side="right"))
        before = np.searchsorted(start[calls[first[row] : last]], start[device[row]], side="right")
        first[row] += max(int(before) - 1, 0)
    out[is_known] = calls[first[is_known]]
    return out


def _rule(name: str) -> int:
    """Number of the rule for a name, counted from 1; 0 where none applies."""
    match = _RULE.match(name)
    return (match.lastindex or 0) if match else 0


def _phases(trace: Trace, rows: Ints, parent: Ints, device: Ints, launch: Ints) -> Ints:
    """Code into `PHASES` per event, -1 for events that are neither host nor device work.

    Args:
        trace: the trace; names are read from it.
        rows: host events in nesting order.
        parent: for each of `rows` the position (in `rows`) of the event that encloses it, or -1.
        device: device events.
        launch: for each of `device` the event that launched it, or -1.
    """
    out = np.full(len(trace), -1)
    rule = np.array([_rule(text) for text in trace.vocabulary["name"]], np.int8)
    codes = np.array([FORWARD, *(code for code, _ in _PHASE_RULES)])
    of_row = rule.take(trace.columns["name"].take(rows))
    out[rows] = codes.take(nesting.highest(parent, of_row))
    out[device] = np.where(launch >= 0, out[launch], FORWARD)
    collective = trace.where("name", lambda name: "nccl" in name or "rccl" in name)
    out[device[collective[device]]] = COMMUNICATION
    return out
