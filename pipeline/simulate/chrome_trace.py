"""Events of the Chrome trace format: slices, arrows between them, and names of rows. Times are in µs.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = dict[str, Any]


def slice_event(
    name: str,
    category: str,
    row: tuple[int, int],
    start: float,
    duration: float,
    args: Mapping[str, Any] | None = None,
) -> Event:
    """A complete event on a row (process and thread id).

    Its begin and end are in µs, rounded to nanoseconds: equal ends stay equal, whatever begins.
    """
    begin, end = round(float(start), 3), round(float(start + duration), 3)
    place = {"pid": row[0], "tid": row[1], "ts": begin, "dur": round(end - begin, 3)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args or {}}


def launch_arrow(number: int, launch: Event, kernel: Event) -> tuple[Event, Event]:
    """An arrow from the begin of a launch to the begin of its kernel; `number` is its own in the file."""

    def end(phase: str, at: Event) -> Event:
        place = {key: at[key] for key in ("pid", "tid", "ts")}
        return {"ph": phase, "cat": "launch", "name": "launch", "id": number, **place}

    # `bp: e` binds the end to the slice around its time, not to the next one
    return end("s", launch), end("f", kernel) | {"bp": "e"}


def process_events(pid: int, name: str, order: int) -> list[Event]:
    """Name and sort index of a process; the smallest index is shown first."""
    return _named("process", pid, 0, name, order)


def row_events(pid: int, tid: int, name: str) -> list[Event]:
    """Name of a thread or stream; the rows of a process are in the order of their ids."""
    return _named("thread", pid, tid, name, tid)


def _named(what: str, pid: int, tid: int, name: str, order: int) -> list[Event]:
    place = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def thread_name(role: int) -> str:
    """Name of the host thread of a role: 0 main, 1 autograd, others by number."""
    return ("main", "autograd")[role] if role < 2 else f"thread {role}"
