"""Nesting against a loop over rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.arrays import Ints
from pipeline.trace import nesting

INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40
)


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


@settings(max_examples=100, deadline=None)
@given(INTERVALS)
def test_the_enclosing_interval_is_the_innermost_open_one(
    intervals: list[tuple[int, int, int]],
) -> None:
    drawn = _drawn(intervals)
    assert nesting.enclosing(*drawn).tolist() == _enclosing(*drawn)
