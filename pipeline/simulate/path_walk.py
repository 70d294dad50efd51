"""The critical path of a simulated step: what the end of the step rests on, found by walking back from what ended last.

The walk stands at one of four moments, each of which follows from one other:
- the end of a row: its start and the call itself, or what the host waited for;
- the start of a row: the row before it, its own thread, or the call that made room in the launch queue as it began;
- the end of a call: its begin;
- the begin of a call: its launch, or the call (or earlier work) that it waited for.
Time counts once, for host or device. What remains of the step is latency, gaps between kernels, returns of waits, and
work queued before it.
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

NOTHING, BACKLOG = -1, -2
"""In place of a call that something waited for: nothing, and work queued before the step."""


class SimulatedStep(Protocol):
    """What the walk reads of a simulated step; `timeline.Timeline` explains each array."""

    @property
    def program(self) -> Program:
        """What ran."""

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
        """Call that made room in the queue for each row's launch."""

    @property
    def host_cause(self) -> Ints:
        """Call that each row waited for."""

    @property
    def device_cause(self) -> Ints:
        """Call that each call waited for."""


@dataclass(frozen=True)
class CriticalPath:
    """What the first draw of a step rests on.

    Attributes:
        rows: rows of the program with host time on the path, or whose wait ends on it.
        calls: calls that run on the path.
        host_us: host time on it.
        device_us: time of its calls.
    """

    rows: Flags
    calls: Flags
    host_us: float
    device_us: float


class _Moment(Enum):
    ROW_END = auto()
    ROW_START = auto()
    CALL_END = auto()
    CALL_BEGIN = auto()


def critical_path(step: SimulatedStep) -> CriticalPath:
    """The critical path of the first draw."""
    p = step.program
    rows, calls = np.zeros(len(p), bool), np.zeros(p.call_count, bool)
    launch_row = np.full(p.call_count, NOTHING, np.int64)
    launching = np.flatnonzero(p.call >= 0)
    launch_row[p.call[launching]] = launching
    own = _before_on_thread(p.thread.tolist())
    host = 0.0
    moment, at = _last(step)  # `at` is a row or a call, negative where the path ends
    while at >= 0:
        if moment == _Moment.ROW_END:
            rows[at] = True
            host += float(p.tail_us[at])
            awaited = int(step.host_cause[at])
            if awaited == NOTHING:
                host += float(p.api_us[at])
                moment = _Moment.ROW_START
            else:
                moment, at = _Moment.CALL_END, awaited
        elif moment == _Moment.ROW_START:
            rows[at] = True
            made_room = int(step.launch_cause[at])
            if made_room != NOTHING:
                moment, at = _Moment.CALL_BEGIN, made_room
                continue
            before, lead = int(p.previous[at]), float(p.lead_us[at] + p.gap_us[at])
            end = step.row_end[before, 0] if before >= 0 else 0.0
            if own[at] >= 0 and step.row_end[own[at], 0] > end + lead:
                before, lead = own[at], 0.0
            host += lead
            moment, at = _Moment.ROW_END, before
        elif moment == _Moment.CALL_END:
            calls[at] = True
            moment = _Moment.CALL_BEGIN
        else:
            awaited = int(step.device_cause[at])
            moment, at = (_Moment.ROW_START, int(launch_row[at])) if awaited == NOTHING else (_Moment.CALL_END, awaited)
    return CriticalPath(rows, calls, host, float((step.device_end - step.device_start)[calls, 0].sum()))


def _last(step: SimulatedStep) -> tuple[_Moment, int]:
    """The end that is the step's: of a row, or of a call where that ends later; `NOTHING` for an empty step."""
    row = int(np.argmax(step.row_end[:, 0])) if len(step.program) else NOTHING
    if not np.isnan(step.device_end[:, 0]).all():
        call = int(np.nanargmax(step.device_end[:, 0]))
        if step.device_end[call, 0] > step.row_end[row, 0]:
            return _Moment.CALL_END, call
    return _Moment.ROW_END, row


def _before_on_thread(thread: list[int]) -> list[int]:
    """Row before each one on its own thread."""
    latest: dict[int, int] = {}
    out = []
    for row, which in enumerate(thread):
        out.append(latest.get(which, NOTHING))
        latest[which] = row
    return out
