"""Selects iterations of a trace, to take statistics from or to evaluate, and reports what no statistics can predict in them.

That is one-time runtime calls (the start of CUDA, memory from the driver), and long intervals in which the host ran no operator.
These figures come from the evaluated iteration itself and are never used in a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.arrays import Flags, Ints
from pipeline.overheads.extraction import (
    ItemKeys,
    cut_calls,
    extract_overheads,
    item_keys,
    lost_work,
    one_time_calls,
)
from pipeline.simulate.trace_program import Iteration, iterations, shows_queue
from pipeline.simulate.waits import WaitModel
from pipeline.trace.host_activity import Activity, activity
from pipeline.trace.linked_trace import Trace, first_after_warm_up


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
        if not len(self.one_time):
            return self
        cut = TraceSelection.of(cut_calls(self.act.trace, self.one_time))
        return cut.only([each for each in cut.chosen if self.flags[each.number]])


def learn(train: Sequence[TraceSelection], waiting: bool = False) -> tuple[pd.DataFrame, WaitModel]:
    """Overhead observations and stream waits of the training iterations. `waiting` keeps waiting time in T4."""
    samples = [
        extract_overheads(source.act, source.name, source.flags, source.keys, waiting)
        for source in train
    ]
    waits = WaitModel()
    for source in train:
        waits.learn(source.act, source.keys, source.chosen)
    return pd.concat(samples, ignore_index=True), waits


MIN_REPORTED_SHARE = 0.05
"""Share of the span below which a call or gap is not reported."""

MAX_NAMED = 3
"""Number of calls, and of gaps, that are reported per iteration: the longest."""


def unforeseen(source: TraceSelection, iteration: Iteration) -> list[str]:
    """Notes on one-time calls and idle intervals of the host that take a large share of an iteration's span."""
    return [*_calls(source, iteration), *_gaps(source, iteration)]


def not_in_trace(source: TraceSelection) -> list[str]:
    """Notes on work of the chosen iterations that the trace does not hold, as waits of the device and launches show."""
    act, notes = source.act, _first_launches(source)
    span_us = sum(it.span_us for it in source.chosen)
    waits_us = sum(float(act.unrecorded_wait_ns[it.actions].sum()) for it in source.chosen) / 1000.0
    if waits_us >= MIN_REPORTED_SHARE * span_us:
        notes.append(
            f"the host waited {waits_us / span_us:.0%} of the span for work that the trace does not"
            " hold, so the predicted span is too short"
        )
    lost = [
        float(act.unrecorded_ns[it.calls[~shows_queue(act, it)]].sum() / 1000.0)
        for it in source.chosen
    ]
    share = sum(lost) / span_us
    if share >= MIN_REPORTED_SHARE:
        notes.append(
            f"the device idled {share:.0%} of the span although work was queued; this work was not"
            " recorded, so kernel times and the predicted span are too short"
        )
    without = lost_work(act)
    without = without[
        np.isin(act.trace.columns["iteration"][without], [it.number for it in source.chosen])
    ]
    if len(without):
        actions = np.concatenate([it.actions for it in source.chosen])
        launches = np.union1d(without, act.action_event[actions[~act.action_sync[actions]]])
        notes.append(
            f"{len(without)} of {len(launches)} launches have no work in the trace, or work without"
            " duration: the profiler lost it, so kernel times, active time and the predicted span"
            " are too short"
        )
    return notes


def _first_launches(source: TraceSelection) -> list[str]:
    """Notes on work queued before an iteration, and on hosts that are slow to their first launch (`shows_queue`)."""
    act, notes = source.act, []
    ends = {it.number: act.unseen_queue_ns[it.calls[shows_queue(act, it)]] for it in source.chosen}
    waited = [it for it in source.chosen if len(ends[it.number])]
    if waited:
        wait_us = max(float(ends[it.number].max() - it.start_ns) / 1000.0 for it in waited)
        which = (
            f"iteration{'s' * (len(waited) > 1)}"
            f" {', '.join(str(it.number) for it in waited[:MAX_NAMED])}"
        )
        more = f" and {len(waited) - MAX_NAMED} more" if len(waited) > MAX_NAMED else ""
        notes.append(
            f"{which}{more}: the first launch waited {_time(wait_us)} for work that the trace"
            " does not hold; it counts as queued before the step"
        )
    for it in source.chosen:
        if (act.unseen_queue_ns[it.calls] > it.start_ns).sum() > len(ends[it.number]):
            launched = act.action_start[act.call_action[it.calls]].min()
            before_us = float(launched - it.start_ns) / 1000.0
            if before_us >= MIN_REPORTED_SHARE * it.span_us:
                notes.append(
                    f"iteration {it.number}: the host took {_time(before_us)} before its first"
                    " launch (the start of a driver or library?); this counts in the step; record"
                    " after a few warm-up steps"
                )
    return notes


def _calls(source: TraceSelection, iteration: Iteration) -> list[str]:
    trace = source.act.trace
    events = source.one_time[trace.columns["iteration"][source.one_time] == iteration.number]
    duration = trace.columns["dur_ns"][events] / 1000.0
    total = float(duration.sum())
    if total < MIN_REPORTED_SHARE * iteration.span_us:
        return []
    longest = np.argsort(-duration, kind="stable")[:MAX_NAMED]
    named = ", ".join(
        f"{trace.names[events[i]]}{_within(source, int(events[i]))} {_time(duration[i])}"
        for i in longest
    )
    more = f" and {len(events) - MAX_NAMED} more" if len(events) > MAX_NAMED else ""
    return [
        f"iteration {iteration.number}: {_share(total, iteration)} of the span are one-time costs,"
        f" which other steps cannot predict ({named}{more}); record after a few warm-up steps"
    ]


def _within(source: TraceSelection, event: int) -> str:
    top = int(source.act.trace.columns["top"][event])
    return f" in {source.act.trace.names[top]}" if top >= 0 else ""


def _gaps(source: TraceSelection, iteration: Iteration) -> list[str]:
    act, items = source.act, iteration.items
    follows = act.previous[items] >= iteration.items[0]
    items = items[follows & ~act.loading[items]]
    gap = (act.start[items] - act.end[act.previous[items]]) / 1000.0
    longest = np.argsort(-gap, kind="stable")[:MAX_NAMED]
    longest = longest[gap[longest] >= MIN_REPORTED_SHARE * iteration.span_us]
    if not len(longest):
        return []
    named = ", ".join(
        f"{_time(gap[i])} before {act.trace.names[act.item[items[i]]]}" for i in longest
    )
    return [
        f"iteration {iteration.number}: {_share(float(gap[longest].sum()), iteration)} of the span"
        f" lie in gaps of the host without any operator ({named})"
    ]


def _share(part_us: float, iteration: Iteration) -> str:
    return f"{part_us / iteration.span_us:.0%}"


def _time(us: float) -> str:
    if us < 100:
        return f"{us:.0f} µs"
    return f"{us / 1e6:.1f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms"
