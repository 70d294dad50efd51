"""Nesting and ancestors against loops over rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.trace import nesting
from pipeline.trace.growing_column import FIRST_ROWS, GrowingColumn

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)
Ints = npt.NDArray[np.int64]


def _drawn(intervals: list[tuple[int, int, int]]) -> tuple[Ints, Ints, Ints]:
    """Threads, starts and ends in nesting order."""
    rows = sorted(intervals, key=lambda row: (row[0], row[1], -row[2]))
    thread, start, duration = np.array(rows, np.int64).reshape(-1, 3).T
    return thread, start, start + duration


def _enclosing(thread: Ints, start: Ints, end: Ints) -> list[int]:
    """By a stack of the intervals that are open."""
    out, stack = [], list[int]()
    for row in range(len(start)):
        middle = start[row] + (end[row] - start[row]) // 2
        while stack and (thread[stack[-1]] != thread[row] or end[stack[-1]] <= middle):
            stack.pop()
        out.append(stack[-1] if stack else -1)
        stack.append(row)
    return out


@settings(max_examples=300, deadline=None)
@given(INTERVALS)
def test_the_enclosing_interval_is_the_innermost_open_one(intervals: list[tuple[int, int, int]]) -> None:
    drawn = _drawn(intervals)
    assert nesting.enclosing(*drawn).tolist() == _enclosing(*drawn)


@settings(max_examples=300, deadline=None)
@given(INTERVALS, st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_ancestors_are_those_of_a_walk_to_the_root(intervals: list[tuple[int, int, int]], drawn: list[int]) -> None:
    parent = nesting.enclosing(*_drawn(intervals))
    level = np.array(drawn[: len(parent)], np.int8)
    wanted = level > 1
    nearest, outermost, highest = [], [], []
    for row in range(len(parent)):
        path = [row]
        while parent[path[-1]] >= 0:
            path.append(int(parent[path[-1]]))
        nearest.append(next((each for each in path[1:] if wanted[each]), -1))
        outermost.append(next((each for each in reversed(path) if wanted[each]), -1))
        highest.append(int(level[path].max()))
    assert nesting.nearest(parent, wanted).tolist() == nearest
    assert nesting.outermost(parent, wanted).tolist() == outermost
    assert nesting.highest(parent, level).tolist() == highest


def test_a_column_grows_and_rows_that_nobody_wrote_are_absent() -> None:
    column = GrowingColumn(np.array([-1]))
    column.at(3, 2)[:] = 7, 8
    column.at(3, 2)[0] = 9
    column.at(FIRST_ROWS, 1)[:] = 5
    values = column.finish(FIRST_ROWS + 2)
    assert values[:6].tolist() == [-1, -1, -1, 9, 8, -1]
    assert values[FIRST_ROWS - 1 :].tolist() == [-1, 5, -1]
