"""The events that a GPU adds to a profiler trace, derived from the CPU's operators. The times have no meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Event = dict[str, Any]

NOT_ON_THE_DEVICE = re.compile(
    r"aten::(empty|empty_like|empty_strided|view|_unsafe_view|_reshape_alias|reshape|flatten|"
    r"as_strided|t|transpose|permute"
    r"|expand|expand_as|unsqueeze|squeeze|detach|detach_|alias|select|slice|narrow|split|"
    r"unbind|resize_|set_|lift_fresh"
    r"|result_type|to|_to_copy|contiguous|item|_local_scalar_dense|is_nonzero|numpy_T|unfold|"
    r"chunk|pin_memory|is_pinned"
    r"|size|stride|record_stream|_pack_padded_sequence|_coo_.*|_indices|_values|_nnz|"
    r"broadcast_tensors|diagonal)|detach"
)
"""Operators that launch no kernel."""

GEOMETRY = {
    "registers per thread": 32,
    "shared memory": 0,
    "grid": [132, 1, 1],
    "block": [256, 1, 1],
    "blocks per SM": 1.0,
}
DEVICE = {"id": 0, "name": "NVIDIA H200"}


class Gpu(Protocol):
    """What the events depend on: how many kernels sessions lose, and waits with their time (ns) and duration (µs)."""

    drops: int
    sessions: int
    log: list[tuple[str, int, float]]


class Call(NamedTuple):
    """One piece of device work: when the host asks for it (µs), its name, its duration (µs), and who asked."""

    start: float
    name: str
    dur: float
    operator: Event | None = None


def add_device_events(path: Path, gpu: Gpu, opened: int) -> None:
    """Add a GPU's events to a trace: one kernel per leaf operator, the calls that launched them, and waits."""
    trace = json.loads(path.read_text(), strict=False)
    events = trace["traceEvents"]
    complete = [
        e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")
    ]
    if not complete:
        return
    base = int(trace.get("baseTimeNanoseconds", 0))
    begun = base + 1e3 * min(e["ts"] for e in complete)
    before = sum(name == "spin_kernel" and opened <= at < begun for name, at, _ in gpu.log)
    missing = max(gpu.drops * gpu.sessions - before, 0)
    free = 0.0  # when the device is done, µs
    for number, call in enumerate(
        sorted([*_of_operators(complete), *_of_log(gpu, base, complete)], key=lambda call: call[0]),
        1001,
    ):
        host = call.operator or complete[0]
        asked = {"ph": "X", "cat": "cuda_runtime", "pid": host["pid"], "tid": host["tid"]}
        asked |= {"ts": call.start, "args": {"correlation": number}}
        if call.name.endswith("Synchronize"):
            events.append({**asked, "name": call.name, "dur": max(free - call.start, 0) + call.dur})
            continue
        begin = max(call.start + 1.4, free + 0.8)
        free = begin + call.dur
        launched, work = _launched(call, asked, begin)
        events.append(launched)
        if work["cat"] == "kernel" and missing:
            missing -= 1
            continue
        flow = {"cat": "ac2g", "name": "ac2g", "id": number}
        events += [
            work,
            {**flow, "ph": "s", "pid": host["pid"], "tid": host["tid"], "ts": call.start},
            {**flow, "ph": "f", "pid": 0, "tid": 7, "ts": begin, "bp": "e"},
        ]
    # GPU-side annotations repeat the host's annotations
    labels = [e for e in complete if e["cat"] == "user_annotation"]
    events += [{**label, "cat": "gpu_user_annotation", "pid": 0, "tid": 7} for label in labels]
    path.write_text(json.dumps({**trace, "deviceProperties": [DEVICE]}))


def _launched(call: Call, asked: Event, begin: float) -> tuple[Event, Event]:
    """The host's call and the work on the device that it launches."""
    kind = next((kind for kind in ("Memset", "Memcpy") if kind in call.name), "kernel")
    api = "cudaLaunchKernel" if kind == "kernel" else f"cuda{call.name.split()[0]}Async"
    facts = dict(asked["args"])
    if call.operator is not None:
        facts["External id"] = call.operator["args"].get("External id", 0)
    moved = {"bytes": 4096, "memory bandwidth (GB/s)": 10.0}
    work = {"device": 0, "context": 1, "stream": 7, **facts}
    return {**asked, "name": api, "dur": 0.4, "args": facts}, {
        "ph": "X",
        "cat": kind if kind == "kernel" else f"gpu_{kind.lower()}",
        "name": call.name,
        "pid": 0,
        "tid": 7,
        "ts": begin,
        "dur": call.dur,
        "args": work | (GEOMETRY if kind == "kernel" else moved),
    }


def _of_operators(complete: list[Event]) -> Iterator[Call]:
    """One call per operator with device work that contains no other such operator; a `foreach` operator is one call."""
    operators = sorted(
        (e for e in complete if e["cat"] == "cpu_op"),
        key=lambda e: (str(e["tid"]), e["ts"], -e["dur"]),
    )
    open_: list[tuple[Event, bool]] = []
    for event in [*operators, None]:
        while open_ and not (event is not None and _holds(open_[-1][0], event)):
            closed, busy = open_.pop()
            name = closed["name"]
            plain = name.removeprefix("aten::")
            within = any(outer["name"].startswith("aten::_foreach") for outer, _ in open_)
            works = name.startswith("aten::") and not NOT_ON_THE_DEVICE.fullmatch(name)
            if works and not within and (not busy or plain.startswith("_foreach")):
                busy = True
                moved = {"copy_": "Memcpy HtoD (Pinned -> Device)", "zero_": "Memset (Device)"}
                kernel = f"void at::native::{plain}_kernel<float, (int)4>(int, float*)"
                dur = closed["dur"]
                begin = closed["ts"] + 0.3 * dur
                yield Call(begin, moved.get(plain, kernel), max(0.4 * dur, 1.2), closed)
            if open_ and busy:
                open_[-1] = (open_[-1][0], True)
        if event is not None:
            open_.append((event, False))


def _holds(outer: Event, inner: Event) -> bool:
    return str(outer["tid"]) == str(inner["tid"]) and bool(inner["ts"] < outer["ts"] + outer["dur"])


def _of_log(gpu: Gpu, base: int, complete: list[Event]) -> Iterator[Call]:
    """Waits and empty kernels that were requested during the trace."""
    first = min(e["ts"] for e in complete)
    last = max(e["ts"] + e["dur"] for e in complete)
    for name, at, dur in gpu.log:
        when = (at - base) / 1e3
        if first <= when <= last + 50:
            yield Call(when, name, dur)
