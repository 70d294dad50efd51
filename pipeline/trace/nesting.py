"""Nesting of host events: the operator or annotation that encloses each event, per thread, without a loop over
events.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
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
    middle = start + (end - start) // 2
    open_rows = np.flatnonzero(same_thread & (end[:-1] <= middle[1:])) + 1
    ends = np.append(end, np.iinfo(np.int64).max)  # position -1, no interval, ends the search
    while len(open_rows):
        parent[open_rows] = candidate = parent[parent[open_rows]]
        open_rows = open_rows[ends[candidate] <= middle[open_rows]]
    return parent


def nearest(parent: Ints, wanted: Flags) -> Ints:
    """Nearest ancestor that is `wanted`, per row; -1 where there is none."""
    found = parent.copy()
    passed = np.append(~wanted, False)  # position -1, no ancestor, ends the search
    open_rows = np.flatnonzero(passed[found])
    while len(open_rows):
        found[open_rows] = candidate = found[found[open_rows]]
        open_rows = open_rows[passed[candidate]]
    return found


def outermost(parent: Ints, wanted: Flags) -> Ints:
    """Outermost row that is `wanted` among a row and its ancestors; -1 where there is none."""
    above = nearest(parent, wanted)
    root = np.where(wanted, np.arange(len(parent)), above)
    open_rows = np.flatnonzero(root >= 0)
    while len(open_rows):
        higher = above[root[open_rows]]
        open_rows, higher = open_rows[higher >= 0], higher[higher >= 0]
        root[open_rows] = higher
    return root


def highest(parent: Ints, level: Levels) -> Levels:
    """Highest level among a row and its ancestors."""
    out, above = level.copy(), parent.copy()
    open_rows = np.flatnonzero(above >= 0)
    while len(open_rows):  # each round doubles the number of ancestors that a row has seen
        step = above[open_rows]
        out[open_rows] = np.maximum(out[open_rows], out[step])
        above[open_rows] = step = above[step]
        open_rows = open_rows[step >= 0]
    return out
