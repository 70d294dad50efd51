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
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.simulate.numba_code import compiled, is_loaded
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


class Moment(IntEnum):
    """What happens at a moment of the critical path, to a row or a call."""

    ROW_END = 0
    ROW_START = 1
    CALL_END = 2
    CALL_BEGIN = 3


_ROW_END, _ROW_START, _CALL_END, _CALL_BEGIN = map(int, Moment)


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
        moments: kinds (`Moment`) of the moments of the walk, from the end of the step to its begin.
        places: the row or call of each moment.
    """

    rows: Flags
    calls: Flags
    host_us: float
    device_us: float
    queued_us: float
    latency_us: float
    gap_us: float
    return_us: float
    moments: Ints
    places: Ints

    @property
    def parts(self) -> dict[str, float]:
        """Times of the path by kind, in µs."""
        names = ("host_us", "device_us", "queued_us", "latency_us", "gap_us", "return_us")
        return {name: getattr(self, name) for name in names}


def critical_path(step: SimulatedStep) -> CriticalPath:
    """The critical path of the first draw. The walk is compiled where the process has loaded the compiler."""
    p = step.program
    launch_row = np.full(p.call_count, NO_CALL, np.int64)
    launching = np.flatnonzero(p.call >= 0)
    launch_row[p.call[launching]] = launching
    begin, done = step.device_start[:, 0], step.device_end[:, 0]
    columns = [
        np.ascontiguousarray(column)
        for column in (
            _before_on_thread(p.thread), p.previous, p.lead_us + p.gap_us, p.api_us, p.tail_us, p.stream, p.backlog_us,
            launch_row, step.row_start[:, 0], step.row_end[:, 0], begin, done, step.launch_cause, step.host_cause,
            step.device_cause,
        )
    ]  # fmt: skip
    moments = np.empty(2 * (len(p) + p.call_count), np.int64)  # the walk visits both ends of a row or call at most once
    places = np.empty_like(moments)
    if is_loaded():
        walk, read = compiled(_walk_back), columns
    else:
        walk, read = _walk_back, [column.tolist() for column in columns]  # plain code reads lists faster than arrays
    count, host, queued, latency, gap, returned = walk(*read, float(p.sync_return_us), *_last(step), moments, places)
    moments, places = moments[:count].copy(), places[:count].copy()
    rows, calls = np.zeros(len(p), bool), np.zeros(p.call_count, bool)
    rows[places[moments <= _ROW_START]] = True
    calls[places[moments == _CALL_END]] = True
    device = float((done - begin)[calls].sum())
    return CriticalPath(rows, calls, host, device, queued, latency, gap, returned, moments, places)


def _walk_back(  # type: ignore[no-untyped-def]
    own, previous, lead, api, tail, stream, backlog, launch_row,
    row_start, row_end, begin, done, launch_cause, host_cause, device_cause, sync_return, moment, at, moments, places,
):  # fmt: skip
    """Walk back from the last moment of a step, with the data of its first draw.

    It fills `moments` and `places`. Returns their number, and the times of the path: host, queued, latency, gap, return.
    """
    host = queued = latency = gap = returned = 0.0
    count = 0
    while at >= 0:  # a row or a call, negative where the path ends
        moments[count], places[count] = moment, at
        count += 1
        if moment == _ROW_END:
            host += tail[at]
            awaited = host_cause[at]
            if awaited == NO_CALL:
                host += api[at]
                moment = _ROW_START
                continue
            back = row_end[at] - tail[at]
            if awaited == BACKLOG:
                queued, returned = queued + back - sync_return, returned + sync_return
            else:
                returned += back - done[awaited]
            moment, at = _CALL_END, awaited
        elif moment == _ROW_START:
            made_room = launch_cause[at]
            if made_room != NO_CALL:
                moment, at = _CALL_BEGIN, made_room
                continue
            before, waited = previous[at], lead[at]
            end = row_end[before] if before >= 0 else 0.0
            if own[at] >= 0 and row_end[own[at]] > end + waited:
                before, waited = own[at], 0.0
            host += waited
            moment, at = _ROW_END, before
        elif moment == _CALL_END:
            moment = _CALL_BEGIN
        else:
            awaited, launch = device_cause[at], launch_row[at]
            if awaited == NO_CALL:
                latency += begin[at] - row_start[launch]
                moment, at = _ROW_START, launch
                continue
            before_us = backlog[stream[launch]] if awaited == BACKLOG else done[awaited]
            gap += begin[at] - before_us
            queued += before_us if awaited == BACKLOG else 0.0
            moment, at = _CALL_END, awaited
    return count, host, queued, latency, gap, returned


def _last(step: SimulatedStep) -> tuple[int, int]:
    """Kind and place of the last moment: the end of a row, or of a call if one ends later; `NO_CALL` for an empty step."""
    row = int(np.argmax(step.row_end[:, 0])) if len(step.program) else NO_CALL
    if not np.isnan(step.device_end[:, 0]).all():
        call = int(np.nanargmax(step.device_end[:, 0]))
        if step.device_end[call, 0] > step.row_end[row, 0]:
            return _CALL_END, call
    return _ROW_END, row


def _before_on_thread(thread: Ints) -> Ints:
    """For each row, the row before it on the same thread."""
    order = np.argsort(thread, kind="stable")
    before = np.append(NO_CALL, order[:-1])
    before[np.diff(thread[order], prepend=thread[order[:1]] - 1) != 0] = NO_CALL
    found = np.empty_like(order)
    found[order] = before[: len(order)]
    return found
