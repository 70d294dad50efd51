"""Events of the Chrome trace format: slices, arrows between slices, names and order of rows. Times are in µs.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = dict[str, Any]

_THREADS = ("main", "autograd")


def slice_event(
    name: str, category: str, pid: int, tid: int, start: float, duration: float, args: Mapping[str, Any]
) -> Event:
    """A complete event. Times are in µs, rounded to nanoseconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(float(start), 3),
        "dur": round(float(duration), 3), "args": args,
    }  # fmt: skip


def arrow_events(number: int, name: str, source: Event, target: Event) -> tuple[Event, Event]:
    """An arrow from the begin of one slice to the begin of another; `number` is its own in the file."""

    def end(phase: str, at: Event) -> Event:
        return {
            "ph": phase,
            "cat": name,
            "name": name,
            "id": number,
            "pid": at["pid"],
            "tid": at["tid"],
            "ts": at["ts"],
        }

    # `bp: e` binds the end to the slice around its time, not to the next one
    return end("s", source), end("f", target) | {"bp": "e"}


def process_events(pid: int, name: str, order: int) -> list[Event]:
    """Name of a process and its place among the processes, first the smallest."""
    return [_metadata("process_name", pid, 0, {"name": name}),
            _metadata("process_sort_index", pid, 0, {"sort_index": order})]  # fmt: skip


def row_events(pid: int, tid: int, name: str) -> list[Event]:
    """Name of a thread or stream; the rows of a process are in the order of their ids."""
    return [_metadata("thread_name", pid, tid, {"name": name}),
            _metadata("thread_sort_index", pid, tid, {"sort_index": tid})]  # fmt: skip


def _metadata(kind: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def thread_name(role: int) -> str:
    """Name of the host thread of a role: 0 main, 1 autograd, others by number."""
    return _THREADS[role] if role < len(_THREADS) else f"thread {role}"
