"""Nesting of host events: the operator or annotation that encloses each event, per thread, without a loop over
events.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def enclosing(thread: Ints, start: Ints, end: Ints) -> Ints:
    """Position of the innermost interval that encloses each interval on its thread; -1 if there is none.

    Rows must be sorted by thread, start, then longer first. An interval is inside an earlier one if its middle is.
    Timestamps are rounded, so a child may end slightly after its parent.

    If the candidate of a row does not enclose it, the candidate's own candidate is tried next. All rows advance at
    once, which halves the number of siblings still to skip in each round (pointer doubling).
    """
    count = len(start)
    parent = np.arange(-1, count - 1, dtype=np.int64)
    if not count:
        return parent
    middle = start + (end - start) // 2
    open_rows = np.arange(1, count, dtype=np.int64)
    parent[np.concatenate(([True], thread[1:] != thread[:-1]))] = -1
    while len(open_rows):
        candidate = parent[open_rows]
        searching = candidate >= 0
        open_rows, candidate = open_rows[searching], candidate[searching]
        missed = end[candidate] <= middle[open_rows]
        same_instant = (start[candidate] == start[open_rows]) & (end[candidate] == end[open_rows])
        missed &= ~(same_instant & (end[candidate] > start[candidate]))
        open_rows, candidate = open_rows[missed], candidate[missed]
        parent[open_rows] = parent[candidate]
    return parent


def nearest(parent: Ints, wanted: Flags) -> Ints:
    """Nearest ancestor that is `wanted`, per row; -1 where there is none."""
    found = parent.copy()
    while True:
        skip = (found >= 0) & ~wanted[found]
        if not skip.any():
            return found
        found[skip] = found[found[skip]]


def outermost(parent: Ints, wanted: Flags) -> Ints:
    """Outermost row that is `wanted` among a row and its ancestors; -1 where there is none."""
    above = nearest(parent, wanted)
    root = np.where(wanted, np.arange(len(parent)), above)
    while True:
        higher = np.where(root >= 0, above[root], -1)
        if not (higher >= 0).any():
            return root
        root = np.where(higher >= 0, higher, root)


def inherited(parent: Ints, flag: Flags) -> Flags:
    """Whether a row or any of its ancestors has a flag."""
    return flag | (nearest(parent, flag) >= 0)
