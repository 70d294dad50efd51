"""Reports what statistics of other steps cannot predict in an iteration, to explain a large error.

It reports one-time runtime calls (the start of CUDA, memory from the driver), and long intervals in which the host ran
no operator. The figures come from the evaluated iteration itself and are never used in a prediction.
"""

from __future__ import annotations

import numpy as np

from pipeline.simulate.trace_program import Iteration
from pipeline.simulate.trace_selection import TraceSelection

MIN_REPORTED_SHARE = 0.05
"""Share of the span below which a call or gap is not reported."""

MAX_NAMED = 3
"""Number of calls, and of gaps, that are reported per iteration: the longest."""


def unforeseen(source: TraceSelection, iteration: Iteration) -> list[str]:
    """Notes on one-time calls and idle intervals of the host that take a large share of an iteration's span."""
    return [*_calls(source, iteration), *_gaps(source, iteration)]


def _calls(source: TraceSelection, iteration: Iteration) -> list[str]:
    trace = source.act.trace
    events = source.one_time[trace.columns["iteration"][source.one_time] == iteration.number]
    duration = trace.columns["dur_ns"][events] / 1000.0
    total = float(duration.sum())
    if total < MIN_REPORTED_SHARE * iteration.span_us:
        return []
    longest = np.argsort(-duration, kind="stable")[:MAX_NAMED]
    named = ", ".join(
        f"{trace.names[events[i]]}{_within(source, int(events[i]))} {_time(duration[i])}" for i in longest
    )
    more = f" and {len(events) - MAX_NAMED} more" if len(events) > MAX_NAMED else ""
    return [
        f"iteration {iteration.number}: {_share(total, iteration)} of the span are one-time costs, which other steps "
        f"cannot predict ({named}{more}); record after a few warm-up steps"
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
    named = ", ".join(f"{_time(gap[i])} before {act.trace.names[act.item[items[i]]]}" for i in longest)
    return [
        f"iteration {iteration.number}: {_share(float(gap[longest].sum()), iteration)} of the span lie in gaps of the "
        f"host without any operator ({named})"
    ]


def _share(part_us: float, iteration: Iteration) -> str:
    return f"{part_us / iteration.span_us:.0%}"


def _time(us: float) -> str:
    if us < 100:
        return f"{us:.0f} µs"
    return f"{us / 1e6:.1f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms"
