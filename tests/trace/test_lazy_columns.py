"""Columns that are made when they are first read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.trace.event_columns import LINKING_ARGS
from pipeline.trace.iterations import iteration_of
from pipeline.trace.kineto_fields import INTEGER_ARGS, MISSING, TEXT_ARGS
from pipeline.trace.lazy_columns import LazyColumns
from pipeline.trace.load import load_trace


def _kernel(ts: int, grid: list[int], **more: Any) -> dict[str, Any]:
    args = {"stream": 7, "device": 0, "correlation": 5, "grid": grid, "block": [32, 1, 1]} | more
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": 3, "args": args}


def _write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return path


def test_a_column_is_made_once_and_only_when_it_is_read() -> None:
    calls: list[str] = []

    def make(name: str) -> npt.NDArray[np.int64]:
        calls.append(name)
        return np.arange(2)

    columns = LazyColumns({"a": np.zeros(2)}, {name: lambda name=name: make(name) for name in "bcd"})  # type: ignore[misc]
    assert sorted(columns) == list("abcd") and len(columns) == 4 and "b" in columns and "e" not in columns
    assert calls == []
    assert columns["b"].tolist() == [0, 1] and columns["b"] is columns["b"] and calls == ["b"]
    columns["c"] = np.ones(2)
    del columns["d"]
    assert dict(columns).keys() == {"a", "b", "c"} and calls == ["b"]
    for name in ("d", "e"):
        with pytest.raises(KeyError):
            columns[name]
        with pytest.raises(KeyError):
            del columns[name]


def test_a_copy_replaces_columns_and_leaves_the_others_to_be_made() -> None:
    columns = LazyColumns({"a": np.zeros(1)}, {"b": lambda: np.ones(1), "c": lambda: 1 / 0})  # type: ignore[dict-item, return-value]
    copy = columns.replaced({"a": np.full(1, 5.0), "c": np.full(1, 6.0)})
    assert [copy[name].tolist() for name in "abc"] == [[5.0], [1.0], [6.0]]
    assert columns["a"].tolist() == [0.0] and "b" not in columns.made


def test_linking_makes_no_column_of_an_argument_that_it_does_not_need(tmp_path: Path) -> None:
    events = _kernel(9, [2, 1, 1], **{"registers per thread": 40}), _kernel(1, [3, 1, 1]), _kernel(4, [2, 1, 1])
    trace = load_trace(_write(tmp_path / "t.json", *events))
    assert {"grid", "block", "registers"}.isdisjoint(trace.columns.made)
    assert {*LINKING_ARGS, *INTEGER_ARGS, *TEXT_ARGS} <= {*trace.columns}
    assert trace.columns["registers"].tolist() == [MISSING, MISSING, 40]  # in the order of the starts
    assert trace.vocabulary["grid"][trace.columns["grid"]].tolist() == ["[3,1,1]", "[2,1,1]", "[2,1,1]"]
    assert trace.columns["input_shapes"].tolist() == [-1, -1, -1] and len(trace.vocabulary["input_shapes"]) == 0


def test_an_argument_that_is_only_read_later_tells_events_apart(tmp_path: Path) -> None:
    """Both are equal by what orders and links them; if the other arguments are equal, too, one is a duplicate."""
    apart = load_trace(_write(tmp_path / "t.json", _kernel(1, [2, 1, 1]), _kernel(1, [3, 1, 1])))
    assert len(apart) == 2 and set(apart.vocabulary["grid"][apart.columns["grid"]]) == {"[2,1,1]", "[3,1,1]"}
    twice = load_trace(_write(tmp_path / "t.json", _kernel(1, [2, 1, 1]), _kernel(1, [2, 1, 1]), _kernel(8, [3, 1, 1])))
    assert len(twice) == 2 and twice.notes[0] == "1 duplicate events were dropped"
    assert twice.vocabulary["grid"][twice.columns["grid"]].tolist() == ["[2,1,1]", "[3,1,1]"]


@given(
    st.lists(st.integers(0, 50), max_size=30).map(sorted),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6).map(sorted),
)
def test_the_iteration_of_a_timestamp_is_the_latest_that_began_unless_it_has_ended(
    stamps: list[int], spans: list[tuple[int, int]]
) -> None:
    opens, closes = [begin for begin, _ in spans], [begin + length for begin, length in spans]
    expected = []
    for stamp in stamps:
        latest = max((i for i, begin in enumerate(opens) if begin <= stamp), default=-1)
        expected.append(latest if latest >= 0 and stamp < closes[latest] else -1)
    found = iteration_of(np.array(stamps, np.int64), np.array(opens, np.int64), np.array(closes, np.int64))
    assert found.tolist() == expected
