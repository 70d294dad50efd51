"""Nesting, ancestors and iterations against loops over rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.arrays import Ints
from pipeline.trace import nesting
from pipeline.trace.iterations import iteration_of

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


@settings(max_examples=100, deadline=None)
@given(INTERVALS, st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_ancestors_are_those_of_a_walk_to_the_root(
    intervals: list[tuple[int, int, int]], drawn: list[int]
) -> None:
    parent = nesting.enclosing(*_drawn(intervals))
    level = np.array(drawn[: len(parent)], np.int8)
    wanted = level > 1
    nearest, outermost, highest = [], [], []
    for row in range(len(parent)):
        path = [row]
        while parent[path[-1]] >= 0:
            path.append(int(parent[path[-1]]))
        nearest.append(next((above for above in path[1:] if wanted[above]), -1))
        outermost.append(next((above for above in reversed(path) if wanted[above]), -1))
        highest.append(int(level[path].max()))
    assert nesting.nearest(parent, wanted).tolist() == nearest
    assert nesting.outermost(parent, wanted).tolist() == outermost
    assert nesting.highest(parent, level).tolist() == highest


@given(
    st.lists(st.integers(0, 50), max_size=30).map(sorted),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6).map(sorted),
)
def test_a_timestamp_belongs_to_the_latest_iteration_that_has_begun_unless_it_has_ended(
    stamps: list[int], spans: list[tuple[int, int]]
) -> None:
    opens, closes = [begin for begin, _ in spans], [begin + length for begin, length in spans]
    expected = []
    for stamp in stamps:
        latest = max((i for i, begin in enumerate(opens) if begin <= stamp), default=-1)
        expected.append(latest if latest >= 0 and stamp < closes[latest] else -1)
    numbers = iteration_of(
        np.array(stamps, np.int64), np.array(opens, np.int64), np.array(closes, np.int64)
    )
    assert numbers.tolist() == expected
