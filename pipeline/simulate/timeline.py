"""The timeline of a simulated step: host and stream intervals, active and idle time, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.schemas import SCHEMAS
from pipeline.simulate.path_walk import CriticalPath, critical_path
from pipeline.simulate.step_program import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def union_us(start: Floats, end: Floats) -> Floats:
    """Time covered by at least one interval, per draw. The inputs have shape (calls, draws)."""
    if not len(start):
        return np.zeros(start.shape[1])
    order = np.argsort(start, axis=0, kind="stable")
    start, end = np.take_along_axis(start, order, 0), np.take_along_axis(end, order, 0)
    reach = np.maximum.accumulate(end, axis=0)
    covered_from = np.maximum(start[1:], reach[:-1])
    out: Floats = (end[0] - start[0]) + np.maximum(end[1:] - covered_from, 0.0).sum(axis=0)
    return out


@dataclass(frozen=True)
class Timeline:
    """Times of a simulated step, all in µs from its begin.

    Attributes:
        program: what ran.
        kernel_us: kernel times, shape (draws, calls).
        row_start: host start of each action, shape (rows, draws).
        row_end: host end of each row, its tail included, shape (rows, draws).
        device_start: start of each call, shape (calls, draws); NaN for calls that are waits.
        device_end: end of each call, shape (calls, draws).
        launch_cause: call whose begin made room in the queue for each row's launch in the first draw;
            `path_walk.NO_CALL` where there was room.
        host_cause: call for whose end each row waited in the first draw; `path_walk.NO_CALL`, or `path_walk.BACKLOG`.
        device_cause: call for which each call waited in the first draw; `path_walk.NO_CALL` if it waited only for its
            launch, or `path_walk.BACKLOG`.
    """

    program: Program
    kernel_us: Floats
    row_start: Floats
    row_end: Floats
    device_start: Floats
    device_end: Floats
    launch_cause: Ints
    host_cause: Ints
    device_cause: Ints

    @property
    def draws(self) -> int:
        """Number of draws of kernel times."""
        return int(self.kernel_us.shape[0])

    @cached_property
    def host_us(self) -> Floats:
        """Time at which the host is done, per draw."""
        return self.row_end.max(axis=0) if len(self.row_end) else np.zeros(self.draws)

    @cached_property
    def step_us(self) -> Floats:
        """Step time: when host and device are done, per draw."""
        ran = self._ran
        return np.maximum(self.host_us, self.device_end[ran].max(axis=0)) if ran.any() else self.host_us

    @cached_property
    def active_us(self) -> Floats:
        """Device active time, in which at least one call runs, per draw."""
        return union_us(self.device_start[self._ran], self.device_end[self._ran])

    @property
    def idle_us(self) -> Floats:
        """The rest of the step, per draw."""
        return self.step_us - self.active_us

    @cached_property
    def _ran(self) -> Flags:
        ran: Flags = ~np.isnan(self.device_start[:, 0]) if self.draws else np.zeros(len(self.device_start), bool)
        return ran

    def active_of(self, calls: Flags) -> Floats:
        """Active time of some of the calls (computation, communication), per draw."""
        chosen = calls & self._ran
        return union_us(self.device_start[chosen], self.device_end[chosen])

    @property
    def bound(self) -> str:
        """What limits the step in the first draw: `host` if most of its critical path is host time."""
        return "host" if self.critical.host_us > self.critical.device_us else "device"

    @cached_property
    def critical(self) -> CriticalPath:
        """The critical path of the first draw."""
        return critical_path(self)

    @property
    def item_times(self) -> tuple[Floats, Floats]:
        """Begin and end of each item on the host in the first draw, µs, shape (items,)."""
        p, count = self.program, len(self.program.items.node)
        begin = np.where(p.previous >= 0, self.row_end[p.previous, 0], 0.0) + p.lead_us
        first, last = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(first, p.item, np.minimum(begin, self.row_start[:, 0]))
        np.maximum.at(last, p.item, self.row_end[:, 0])
        return first, last

    def to_frame(self, calls: pd.DataFrame | None = None, predicted: pd.DataFrame | None = None) -> pd.DataFrame:
        """The timeline of the first draw as a `prediction` table: one row per call, or per host-only item.

        Args:
            calls: the `calls` table of the program, for family and op.
            predicted: kernel predictions in the order of `calls`, with `p10_us`, `p90_us`, `evidence` where known.
        """
        p, items = self.program, self.program.items
        begin = np.where(p.previous >= 0, self.row_end[p.previous, 0], 0.0) + p.lead_us
        begin = np.minimum(begin, self.row_start[:, 0])
        rows_on_path, calls_on_path = self.critical.rows, self.critical.calls
        call = p.call
        runs = call >= 0
        at = np.maximum(call, 0)

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
            "host_start_us": begin,
            "host_end_us": self.row_end[:, 0],
            "call": pd.Series(call).where(runs).astype("Int64"),
            "stream": pd.Series(streams).where(runs).astype("Int64"),
            "device_start_us": device(self.device_start[:, 0]),
            "device_end_us": device(self.device_end[:, 0]),
            "kernel_us": device(self.kernel_us[0]),
            "host_evidence": items.evidence[p.item],
            "on_critical_path": rows_on_path | (runs & (calls_on_path[at] if len(calls_on_path) else False)),
        }
        if calls is not None:
            frame |= {name: column(calls, name) for name in ("api", "family", "op") if name in calls}
        if predicted is not None:
            frame |= {name: column(predicted, name) for name in ("p10_us", "p90_us", "evidence") if name in predicted}
        return pd.DataFrame(frame).reindex(columns=SCHEMAS["prediction"].names)
