"""Nesting of host events: the operator or annotation that encloses each event, per thread, without a loop over
events.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Flags, Ints

Levels = npt.NDArray[np.int8]


def enclosing(thread: Ints, start: Ints, end: Ints) -> Ints:
    """Position of the innermost interval that encloses each interval on its thread; -1 if there is none.

    Rows must be sorted by thread, start, then longer first. An interval is inside an earlier one if its middle is.
    Timestamps are rounded, so a child may end slightly after its parent.

    If the candidate of a row does not enclose it, the candidate's own candidate is tried next. All rows advance at
    once, which halves the number of siblings still to skip in each round (pointer doubling).
    """
    parent = np.arange(-1, len(start) - 1, dtype=np.int64)  # the first candidate is the row before
    same_thread = thread[1:] == thread[:-1]
    parent[1:][~same_thread] = -1
    middle = end - start
    middle //= 2
    middle += start
    open_rows = np.flatnonzero(same_thread & (end[:-1] <= middle[1:])) + 1
    middle = middle.take(open_rows)
    while len(open_rows):
        parent[open_rows] = candidate = parent.take(parent.take(open_rows))
        still = (candidate >= 0) & (end.take(candidate) <= middle)
        open_rows, middle = open_rows.compress(still), middle.compress(still)
    return parent


def nearest(parent: Ints, wanted: Flags) -> Ints:
    """Nearest ancestor that is `wanted`, per row; -1 where there is none."""
    ancestor = parent.copy()
    passed = np.append(~wanted, False)  # position -1, no ancestor, ends the search
    open_rows = np.flatnonzero(passed.take(ancestor))
    while len(open_rows):
        ancestor[open_rows] = candidate = ancestor.take(ancestor.take(open_rows))
        open_rows = open_rows.compress(passed.take(candidate))
    return ancestor


def outermost(parent: Ints, wanted: Flags) -> Ints:
    """Outermost row that is `wanted` among a row and its ancestors; -1 where there is none."""
    above = nearest(parent, wanted)
    top = _self_if_none(above)
    while ((higher := top.take(top)) != top).any():
        top = higher
    top[(above < 0) & ~wanted] = -1
    return top


def highest(parent: Ints, level: Levels) -> Levels:
    """Highest level among a row and its ancestors."""
    out, above = level, _self_if_none(parent)
    while True:  # each round doubles the number of ancestors that a row has seen
        out = np.maximum(out, out.take(above))
        if ((higher := above.take(above)) == above).all():
            return out
        above = higher


def _self_if_none(ancestor: Ints) -> Ints:
    """An ancestor of each row, and the row itself where it has none, so that a further step stays there."""
    return np.where(ancestor >= 0, ancestor, np.arange(len(ancestor)))
