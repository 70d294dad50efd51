"""The critical path of a simulated step: the rows and calls that determine its end.

The path is found by walking back from the row or call that ended last. The walk visits four kinds of moments. Each has
one cause, which is visited next:

- The end of a row is caused by its start and the call itself, or by the call that the host waited for.
- The start of a row is caused by the row before it, its own thread, or the call that made room in the launch queue.
- The end of a call is caused by its begin.
- The begin of a call is caused by its launch, or by the call (or earlier work) that it waited for.

Each interval of time is attributed once, to one of six parts, which add up to the step:

- host and device;
- work queued before the step;
- latency of launches, gaps between calls, and returns of waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.simulate.step_program import Program

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NO_CALL, BACKLOG = -1, -2
"""Values used instead of the index of an awaited call: -1 for no wait, -2 for work queued before the step."""


class SimulatedStep(Protocol):
    """The data of a simulated step that the walk reads. `timeline.Timeline` explains each array."""

    @property
    def program(self) -> Program:
        """What ran."""

    @property
    def row_start(self) -> Floats:
        """Host start of each action, shape (rows, draws), µs."""

    @property
    def row_end(self) -> Floats:
        """Host end of each row, shape (rows, draws), µs."""

    @property
    def device_start(self) -> Floats:
        """Start of each call, shape (calls, draws), µs."""

    @property
    def device_end(self) -> Floats:
        """End of each call, shape (calls, draws), µs."""

    @property
    def launch_cause(self) -> Ints:
        """Call whose begin made room in the launch queue for each row's launch."""

    @property
    def host_cause(self) -> Ints:
        """Call that each row waited for."""

    @property
    def device_cause(self) -> Ints:
        """Call that each call waited for."""


class Moment(Enum):
    """What happens at a moment of the critical path, to a row or a call."""

    ROW_END = auto()
    ROW_START = auto()
    CALL_END = auto()
    CALL_BEGIN = auto()


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of the first draw of a step. Its times, in µs, add up to the step.

    Attributes:
        rows: rows of the program with host time on the path, or whose wait ends on it.
        calls: calls that run on the path.
        host_us: host time on it.
        device_us: time of its calls.
        queued_us: time until a stream has finished work that was launched before the step.
        latency_us: from the starts of launches to the starts of their calls.
        gap_us: between the ends of calls and the starts of calls that waited for them.
        return_us: from the ends of calls to the returns of host waits for them.
        moments: the moments of the walk with their row or call, from the end of the step to its begin.
    """

    rows: Flags
    calls: Flags
    host_us: float
    device_us: float
    queued_us: float
    latency_us: float
    gap_us: float
    return_us: float
    moments: tuple[tuple[Moment, int], ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """Times of the path by kind, in µs."""
        names = ("host_us", "device_us", "queued_us", "latency_us", "gap_us", "return_us")
        return {name: getattr(self, name) for name in names}


def critical_path(step: SimulatedStep) -> CriticalPath:
    """The critical path of the first draw."""
    p = step.program
    rows, calls = np.zeros(len(p), bool), np.zeros(p.call_count, bool)
    launch_row = np.full(p.call_count, NO_CALL, np.int64)
    launching = np.flatnonzero(p.call >= 0)
    launch_row[p.call[launching]] = launching
    own = _before_on_thread(p.thread.tolist())
    row_start, row_end = step.row_start[:, 0], step.row_end[:, 0]
    begin, done = step.device_start[:, 0], step.device_end[:, 0]
    host = queued = latency = gap = returned = 0.0
    moments: list[tuple[Moment, int]] = []
    moment, at = _last(step)  # `at` is a row or a call, negative where the path ends
    while at >= 0:
        moments.append((moment, int(at)))
        if moment == Moment.ROW_END:
            rows[at] = True
            host += float(p.tail_us[at])
            awaited = int(step.host_cause[at])
            if awaited == NO_CALL:
                host += float(p.api_us[at])
                moment = Moment.ROW_START
                continue
            back = float(row_end[at] - p.tail_us[at])
            if awaited == BACKLOG:
                queued, returned = queued + back - p.sync_return_us, returned + p.sync_return_us
            else:
                returned += back - float(done[awaited])
            moment, at = Moment.CALL_END, awaited
        elif moment == Moment.ROW_START:
            rows[at] = True
            made_room = int(step.launch_cause[at])
            if made_room != NO_CALL:
                moment, at = Moment.CALL_BEGIN, made_room
                continue
            before, lead = int(p.previous[at]), float(p.lead_us[at] + p.gap_us[at])
            end = row_end[before] if before >= 0 else 0.0
            if own[at] >= 0 and row_end[own[at]] > end + lead:
                before, lead = own[at], 0.0
            host += lead
            moment, at = Moment.ROW_END, before
        elif moment == Moment.CALL_END:
            calls[at] = True
            moment = Moment.CALL_BEGIN
        else:
            awaited, launch = int(step.device_cause[at]), int(launch_row[at])
            if awaited == NO_CALL:
                latency += float(begin[at] - row_start[launch])
                moment, at = Moment.ROW_START, launch
                continue
            before_us = float(p.backlog_us[p.stream[launch]] if awaited == BACKLOG else done[awaited])
            gap += float(begin[at]) - before_us
            queued += before_us if awaited == BACKLOG else 0.0
            moment, at = Moment.CALL_END, awaited
    device = float((done - begin)[calls].sum())
    return CriticalPath(rows, calls, host, device, queued, latency, gap, returned, tuple(moments))


def _last(step: SimulatedStep) -> tuple[Moment, int]:
    """The row, or the call if one ends later, whose end is the end of the step; `NO_CALL` for an empty step."""
    row = int(np.argmax(step.row_end[:, 0])) if len(step.program) else NO_CALL
    if not np.isnan(step.device_end[:, 0]).all():
        call = int(np.nanargmax(step.device_end[:, 0]))
        if step.device_end[call, 0] > step.row_end[row, 0]:
            return Moment.CALL_END, call
    return Moment.ROW_END, row


def _before_on_thread(thread: list[int]) -> list[int]:
    """For each row, the row before it on the same thread."""
    latest: dict[int, int] = {}
    out = []
    for row, which in enumerate(thread):
        out.append(latest.get(which, NO_CALL))
        latest[which] = row
    return out
