"""Training iterations in a trace: where each begins and ends (docs/replay.md).

The window of an iteration begins at a marker, the first available of:

1. `ProfilerStep#n`, which also gives the end of the window;
2. the data loader's `__next__`: the window lasts from the end of one loader call to the begin of the next;
3. `Optimizer.zero_grad`: the window ends at the next marker, and events after the last marker are no whole iteration;
4. a single call of the loader: the window lasts to the end of the trace.

Data loading is not part of a step. A window from `zero_grad` to `zero_grad` would contain the wait for the next batch,
which no model of the step can predict.

`zero_grad` may be called before the forward pass, between forward and backward, or at the end of a step. In each case
the time from one call to the next is one step. A single call bounds no step, and the trace is then one iteration.
Several optimizers that are cleared one after the other begin one step.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Ints, Texts
from pipeline.trace.kineto_fields import LOADER_MARKER, STEP_MARKER, ZERO_GRAD_MARKER
from pipeline.trace.linked_trace import Trace


def windows(
    names: Texts,
    start: Ints,
    end: Ints,
    span: Ints,
    learning: Ints,
) -> tuple[str, Ints, Ints]:
    """Marker and the (start, end) of each iteration, ns.

    Args:
        names: names of the annotations of the trace.
        start: their starts, ns.
        end: their ends, ns.
        span: start and end of the whole trace, the one iteration of a trace without a marker, ns.
        learning: starts of backward nodes and optimizer steps, of which every step has one, ns.
    """
    marks = {
        marker: _rows(names, start, marker)
        for marker in (STEP_MARKER, ZERO_GRAD_MARKER, LOADER_MARKER)
    }
    if len(marks[STEP_MARKER]):
        rows = marks[STEP_MARKER]
        return STEP_MARKER, start[rows], end[rows]
    if len(marks[LOADER_MARKER]) > 1:
        rows = _not_nested(marks[LOADER_MARKER], start, end)
        if len(rows) > 1:
            return LOADER_MARKER, end[rows[:-1]], start[rows[1:]]
    rows = _not_nested(marks[ZERO_GRAD_MARKER], start, end)
    rows = _first_of_each_step(rows, start, learning) if len(rows) > 1 else rows
    if len(rows) > 1:
        return ZERO_GRAD_MARKER, start[rows[:-1]], start[rows[1:]]
    if len(marks[LOADER_MARKER]):
        return LOADER_MARKER, start[marks[LOADER_MARKER][:1]], span[1:]
    return "", span[:1], span[1:]


def _rows(names: Texts, start: Ints, marker: str) -> Ints:
    rows = np.flatnonzero([name.startswith(marker) for name in names])
    return rows[np.argsort(start[rows], kind="stable")]


def _not_nested(rows: Ints, start: Ints, end: Ints) -> Ints:
    """Markers that do not begin inside an earlier one (two optimizers, nested loaders)."""
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(end[rows])
    return rows[np.concatenate(([True], start[rows][1:] >= reach[:-1]))]


def _first_of_each_step(rows: Ints, start: Ints, learning: Ints) -> Ints:
    """The first marker of each step: a step with several optimizers has several."""
    if not len(learning):
        return rows
    learned = np.searchsorted(np.sort(learning), start[rows])
    return rows[np.concatenate(([True], np.diff(learned) > 0))]


def step_number(trace: Trace, iteration: int) -> int | None:
    """The number that `ProfilerStep#n` gives to an iteration of a trace; None without such a marker."""
    if trace.marker != STEP_MARKER:
        return None
    columns, opens = trace.columns, trace.opens[iteration]
    first, end = np.searchsorted(columns["ts_ns"], [opens, opens + 1])
    for event in range(first, end):  # those that begin with the iteration
        prefix, _, number = trace.names[event].partition("#")
        if prefix == STEP_MARKER and number.isdecimal() and columns["pid"][event] == trace.process:
            return int(number)
    return None


def iteration_of(stamps: Ints, opens: Ints, closes: Ints) -> Ints:
    """Iteration of each timestamp; -1 if it is in none. Timestamps and starts are ascending.

    A timestamp belongs to the latest iteration that began before it, if that has not ended.
    """
    first = np.searchsorted(stamps, opens)
    end = np.searchsorted(stamps, closes)
    bounds = np.empty((len(opens), 2), np.int64)
    bounds[:, 0], bounds[:, 1] = (
        first,
        np.maximum(np.minimum(end, np.append(first[1:], len(stamps))), first),
    )
    number = np.full((len(opens), 2), -1)
    number[:, 1] = np.arange(len(opens))
    lengths = np.diff(bounds.ravel(), prepend=0, append=len(stamps))
    return np.repeat(np.append(number.ravel(), -1), lengths)
