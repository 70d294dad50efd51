"""The timeline of a simulated step: host and stream intervals, active and idle time, and the critical path.

The critical path is found by walking back from the row or call that ended last. The walk visits four kinds of moments. Each
has one cause, which is visited next:

- The end of a row is caused by its start and the call itself, or by the call that the host waited for.
- The start of a row is caused by the row before it, its own thread, or the call that made room in the launch queue.
- The end of a call is caused by its begin.
- The begin of a call is caused by its launch, or by the call (or earlier work) that it waited for.

Each interval of time is attributed once, to one of six parts, which add up to the step: host and device; work queued before
the step; latency of launches, gaps between calls, and returns of waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.schemas import SCHEMAS
from pipeline.simulate.program import BACKLOG, NO_CALL, Program


def union_us(start: Array, end: Array) -> Array:
    """Time covered by at least one interval, per draw. The inputs have shape (calls, draws)."""
    if not len(start):
        return np.zeros(start.shape[1])
    order = np.argsort(start, axis=0, kind="stable")
    start, end = np.take_along_axis(start, order, 0), np.take_along_axis(end, order, 0)
    reach = np.maximum.accumulate(end, axis=0)
    covered_from = np.maximum(start[1:], reach[:-1])
    out: Array = (end[0] - start[0]) + np.maximum(end[1:] - covered_from, 0.0).sum(axis=0)
    return out


@dataclass(frozen=True)
class Timeline:
    """Times of a simulated step, all in µs from its begin.

    Attributes:
        program: what ran.
        kernel_us: kernel times, shape (draws, calls).
        carried_us: in a loop, time until the device has finished the step before, shape (draws,). It finishes this step as long
            after the next one has begun. 0 for a step alone.
        row_start: host start of each action, shape (rows, draws).
        row_end: host end of each row, its tail included, shape (rows, draws).
        device_start: start of each call, shape (calls, draws); NaN for calls that are waits.
        device_end: end of each call, shape (calls, draws).
        launch_cause: call whose begin made room in the queue for each row's launch in the first draw;
            `program.NO_CALL` where there was room.
        host_cause: call for whose end each row waited in the first draw; `program.NO_CALL`, or `program.BACKLOG`.
        device_cause: call for which each call waited in the first draw; `program.NO_CALL` if it waited only for its
            launch, or `program.BACKLOG`.
    """

    program: Program
    kernel_us: Array
    carried_us: Array
    row_start: Array
    row_end: Array
    device_start: Array
    device_end: Array
    launch_cause: Ints
    host_cause: Ints
    device_cause: Ints

    @property
    def draws(self) -> int:
        """Number of draws of kernel times."""
        return int(self.kernel_us.shape[0])

    @cached_property
    def host_us(self) -> Array:
        """Time at which the host is done, per draw."""
        return self.row_end.max(axis=0) if len(self.row_end) else np.zeros(self.draws)

    @cached_property
    def step_us(self) -> Array:
        """Step time: when host and device are done, the device but for what it carries to the next step, per draw."""
        ran = self._ran
        if not ran.any():
            return self.host_us
        device_us: Array = self.device_end[ran].max(axis=0) - self.carried_us
        return np.maximum(self.host_us, device_us)

    @cached_property
    def active_us(self) -> Array:
        """Device active time, in which at least one call runs, per draw."""
        return union_us(self.device_start[self._ran], self.device_end[self._ran])

    @property
    def busiest_us(self) -> Array:
        """Time of the calls of the stream with most of it, per draw."""
        p, busy_us = self.program, np.zeros((len(self.program.streams), self.draws))
        launches = p.call >= 0
        lasted = np.nan_to_num(self.device_end - self.device_start)[p.call[launches]]
        np.add.at(busy_us, p.stream[launches], lasted)
        busiest: Array = busy_us.max(axis=0, initial=0.0)
        return busiest

    @property
    def idle_us(self) -> Array:
        """The rest of the step, per draw."""
        return self.step_us - self.active_us

    @cached_property
    def _ran(self) -> Flags:
        return np.asarray(~np.isnan(self.device_start[:, :1]).all(axis=1))

    def active_of(self, calls: Flags) -> Array:
        """Active time of some of the calls (computation, communication), per draw."""
        chosen = calls & self._ran
        return union_us(self.device_start[chosen], self.device_end[chosen])

    @property
    def bound(self) -> str:
        """What takes most of the critical path of the first draw: `host`, `device` (computation) or `communication`."""
        path, lasted = self.critical, (self.device_end - self.device_start)[:, 0]
        moving = float(lasted[path.calls & self.program.communicates].sum())
        parts = {"device": path.device_us - moving, "communication": moving, "host": path.host_us}
        return max(parts, key=lambda name: parts[name])

    @property
    def communication_us(self) -> tuple[float, float]:
        """Time in which collectives run, and the part in which nothing else runs on the device, in the first draw."""
        communicates = self.program.communicates
        computing = float(self.active_of(~communicates)[0])
        return float(self.active_of(communicates)[0]), float(self.active_us[0]) - computing

    @cached_property
    def critical(self) -> CriticalPath:
        """The critical path of the first draw."""
        return critical_path(self)

    @property
    def item_times(self) -> tuple[Array, Array]:
        """Begin and end of each item on the host in the first draw, µs, shape (items,)."""
        p, count = self.program, len(self.program.items.node)
        first, last = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(first, p.item, self._row_begin)
        np.maximum.at(last, p.item, self.row_end[:, 0])
        return first, last

    @property
    def _row_begin(self) -> Array:
        """Begin of each row on the host in the first draw, after the gap before its item, µs."""
        p = self.program
        begin = np.where(p.previous >= 0, self.row_end[p.previous, 0], 0.0) + p.lead_us
        return np.minimum(begin, self.row_start[:, 0])

    def to_frame(self, calls: pd.DataFrame | None = None) -> pd.DataFrame:
        """The timeline of the first draw as a `prediction` table: one row per call, or per host-only item.

        Args:
            calls: the calls of the program, with those of `CALL_COLUMNS` that are known.
        """
        p, items, path = self.program, self.program.items, self.critical
        call = p.call
        runs, at = call >= 0, np.maximum(call, 0)

        def device(values: npt.NDArray[Any], none: object = np.nan) -> npt.NDArray[Any]:
            out = np.full(len(p), none, object if none is None else float)
            if len(values):
                out[runs] = values[at[runs]]
            return out

        def column(table: pd.DataFrame, name: str) -> npt.NDArray[Any]:
            return device(table[name].to_numpy(object), None)

        streams = np.append(p.streams, -1)[p.stream]
        frame: dict[str, Any] = {
            "node_id": items.node[p.item],
            "name": items.name[p.item],
            "thread": p.thread,
            "phase": items.phase[p.item],
            "host_start_us": self._row_begin,
            "host_end_us": self.row_end[:, 0],
            "call": pd.Series(call).where(runs).astype("Int64"),
            "stream": pd.Series(streams).where(runs).astype("Int64"),
            "device_start_us": device(self.device_start[:, 0]),
            "device_end_us": device(self.device_end[:, 0]),
            "kernel_us": device(self.kernel_us[0]),
            "host_evidence": items.evidence[p.item],
            "on_critical_path": path.rows | (runs & np.append(path.calls, False)[at]),
        }
        if calls is not None:
            frame |= {name: column(calls, name) for name in CALL_COLUMNS if name in calls}
        return pd.DataFrame(frame).reindex(columns=SCHEMAS["prediction"].names)


CALL_COLUMNS = (
    "api", "family", "op", "module", "dtype", "flops", "bytes_read", "bytes_written", "p10_us",
    "p90_us", "evidence",
)  # fmt: skip
"""Columns of a table of calls that its `prediction` table has, too."""


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
        begin_us: where the path begins: with the step, or where the device begins it after the step before.
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
    begin_us: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Times of the path by kind, in µs."""
        names = ("host_us", "device_us", "queued_us", "latency_us", "gap_us", "return_us")
        return {name: getattr(self, name) for name in names}


def is_loaded() -> bool:
    """Whether this process has loaded the compiler."""
    return "numba" in sys.modules


@cache
def compiled(function: Callable[..., Any]) -> Any:
    """A compiled function; numba stores the machine code beside its module, or in the user's cache folder."""
    from numba import njit

    return njit(cache=True, nogil=True)(function)


def critical_path(step: Timeline) -> CriticalPath:
    """The critical path of the first draw. The walk is compiled where the process has loaded the compiler."""
    p = step.program
    launch_row = np.full(p.call_count, NO_CALL, np.int64)
    launching = np.flatnonzero(p.call >= 0)
    launch_row[p.call[launching]] = launching
    begin, done = step.device_start[:, 0], step.device_end[:, 0]
    columns: tuple[tuple[npt.NDArray[Any], ...], ...] = (
        (_before_on_thread(p.thread), p.previous, p.stream, step.launch_cause, step.host_cause),
        (p.lead_us + p.gap_us, p.api_us, p.tail_us, step.row_start[:, 0], step.row_end[:, 0]),
        (launch_row, step.device_cause),
        (begin, done, p.backlog_us + step.carried_us[0]),
    )
    # the walk visits both ends of a row or call at most once; plain code reads lists faster than arrays
    moments = np.empty(2 * (len(p) + p.call_count), np.int64)
    places = np.empty_like(moments)
    loaded = is_loaded()
    walk: Any = compiled(_walk_back) if loaded else _walk_back
    read = [
        tuple(np.ascontiguousarray(each) if loaded else each.tolist() for each in part)
        for part in columns
    ]
    last = _last(step)
    count, host, queued, latency, gap, returned = walk(
        *read, float(p.sync_return_us), *last, moments, places
    )
    moments, places = moments[:count].copy(), places[:count].copy()
    rows, calls = np.zeros(len(p), bool), np.zeros(p.call_count, bool)
    rows[places[moments <= _ROW_START]] = True
    begin_us = float(step.carried_us[0]) if last[0] == _CALL_END else 0.0
    if begin_us > 0:
        rows &= step.row_end[:, 0] > begin_us
        earliest = np.array([queued, host, latency])
        before = np.diff(np.minimum(np.cumsum(earliest), begin_us), prepend=0.0)
        queued, host, latency = (earliest - before).tolist()
    calls[places[moments == _CALL_END]] = True
    device = float((done - begin)[calls].sum())
    return CriticalPath(
        rows, calls, host, device, queued, latency, gap, returned, moments, places, begin_us
    )


def _walk_back(  # type: ignore[no-untyped-def]
    rows, row_us, calls, device_us, sync_return, moment, at, moments, places
):
    """Walk back from the last moment of a step, with the data of its first draw.

    It fills `moments` and `places`. Returns their number, and the times of the path: host, queued, latency, gap, return.
    """
    own, previous, stream, launch_cause, host_cause = rows
    lead, api, tail, row_start, row_end = row_us
    launch_row, device_cause = calls
    begin, done, backlog = device_us
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


def _last(step: Timeline) -> tuple[int, int]:
    """Kind and place of the moment that ends the step: the end of a row, or of a call; `NO_CALL` for an empty step."""
    row = int(np.argmax(step.row_end[:, 0])) if len(step.program) else NO_CALL
    if not np.isnan(step.device_end[:, 0]).all():
        call = int(np.nanargmax(step.device_end[:, 0]))
        if step.device_end[call, 0] - step.carried_us[0] > step.row_end[row, 0]:
            return _CALL_END, call
    return _ROW_END, row


def _before_on_thread(thread: Ints) -> Ints:
    """For each row, the row before it on the same thread."""
    order = np.argsort(thread, kind="stable")
    before = np.append(NO_CALL, order[:-1])
    before[np.diff(thread[order], prepend=thread[order[:1]] - 1) != 0] = NO_CALL
    in_row_order = np.empty_like(order)
    in_row_order[order] = before[: len(order)]
    return in_row_order
