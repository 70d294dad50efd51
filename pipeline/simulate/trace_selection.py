"""Selects iterations of a trace, to take statistics from or to evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.overheads.extraction import ItemKeys, extract_overheads, item_keys
from pipeline.overheads.one_time import one_time_calls, without_one_time_costs
from pipeline.simulate.trace_program import Iteration, iterations
from pipeline.simulate.waits import WaitModel
from pipeline.trace.host_activity import Activity, activity
from pipeline.trace.linked_trace import Trace, first_after_warm_up

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TraceSelection:
    """A trace to take statistics from or to evaluate: its activity, keys, and the chosen iterations."""

    act: Activity
    keys: ItemKeys
    chosen: tuple[Iteration, ...]

    @classmethod
    def of(cls, trace: Trace | Activity) -> TraceSelection:
        """A source with all iterations of a trace that contain work."""
        act = trace if isinstance(trace, Activity) else activity(trace)
        return cls(act, item_keys(act), tuple(iterations(act)))

    def only(self, chosen: Sequence[Iteration]) -> TraceSelection:
        """The same trace with fewer iterations."""
        return TraceSelection(self.act, self.keys, tuple(chosen))

    @property
    def after_warm_up(self) -> TraceSelection:
        """The source without the warm-up iteration (`first_after_warm_up`)."""
        return self.only(self.chosen[first_after_warm_up(len(self.chosen)) :])

    @property
    def name(self) -> str:
        """Name of the file with its folder, because many traces are named `kineto.json.gz`."""
        path = self.act.trace.path
        return str(Path(path.parent.name) / path.name)

    @property
    def flags(self) -> Flags:
        """Which iterations of the trace are chosen."""
        out = np.zeros(len(self.act.trace.opens), bool)
        out[[iteration.number for iteration in self.chosen]] = True
        return out

    @cached_property
    def one_time(self) -> Ints:
        """Events of one-time runtime calls within the chosen iterations."""
        return one_time_calls(self.act, self.flags)

    @cached_property
    def without_one_time_costs(self) -> TraceSelection:
        """The source without the time of its one-time calls. Statistics are taken from it."""
        act = without_one_time_costs(self.act, self.flags)
        if act is self.act:
            return self
        cut = TraceSelection.of(act)
        numbers = {iteration.number for iteration in self.chosen}
        return cut.only([iteration for iteration in cut.chosen if iteration.number in numbers])


def learn(train: Sequence[TraceSelection], waiting: bool = False) -> tuple[pd.DataFrame, WaitModel]:
    """Overhead observations and stream waits of the training iterations. `waiting` keeps waiting time in T4."""
    samples = [extract_overheads(source.act, source.name, source.flags, source.keys, waiting) for source in train]
    waits = WaitModel()
    for source in train:
        waits.learn(source.act, source.keys, source.chosen)
    return pd.concat(samples, ignore_index=True), waits
