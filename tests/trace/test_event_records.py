"""Unusual events are read as the same events in the usual form, and whatever is odd elsewhere changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from pipeline.trace.kineto_fields import MISSING, base_api_name
from pipeline.trace.load import load_trace
from tests.trace.test_fuzz import EVENTS
from tests.trace.trace_drawing import op, trace


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "trace.json"


def read(content: bytes, path: Path) -> dict[str, list[Any]]:
    """Columns of a trace, text as text and None for absent values."""
    path.write_bytes(content)
    trace = load_trace(path)
    texts = {name: [*vocabulary, None] for name, vocabulary in trace.vocabulary.items()}
    return {
        name: [texts[name][code] for code in values]
        if name in texts
        else [None if v == MISSING else v for v in values]
        for name, values in ((name, values.tolist()) for name, values in trace.columns.items())
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ts": 1661203463018514.5, "dur": 2.0625}, {"ts_ns": 1661203463018514500, "dur_ns": 2062}),
        ({"tid": "12"}, {"tid": 12}),
        ({"tid": "stream 7", "pid": 2}, {"pid": 2}),
        (
            {"cat": "Kernel", "args": {"stream": 7, "bytes": 5}},
            {"category": "kernel", "stream": 7, "bytes": None},
        ),
        (
            {"cat": "python_function", "args": {"Python id": 3, "stream": 7}},
            {"category": "python_function", "stream": None},
        ),
        (
            {"cat": "cuda_runtime", "name": "INVALID", "args": {"cbid": 505}},
            {"name": "cudaLaunchKernel"},
        ),
        ({"name": "µ", "args": None}, {"name": "µ", "external_id": None}),
        ({"args": {"external id": 5}}, {"external_id": 5}),
        ({"args": {"External id": 4, "external id": 5}}, {"external_id": 4}),
        ({"args": {"External id": "6"}}, {"external_id": 6}),
        ({"args": {"External id": 2**64 - 1}}, {"external_id": -1}),
        (
            {"args": {"Input dims": [], "Input type": "float"}},
            {"input_shapes": "[]", "input_dtypes": "float"},
        ),
        ({"args": {"Concrete Inputs": [1.5, None, "µ"]}}, {"input_values": '[1.5,null,"µ"]'}),
    ],
)
def test_an_unusual_event_is_read(
    change: dict[str, Any], expected: dict[str, Any], file: Path
) -> None:
    columns = read(trace([op("aten::mm", 5, 8) | change]), file)
    assert {name: columns[name][0] for name in expected} == expected


def test_events_that_are_not_read_may_hold_anything(file: Path) -> None:
    odd = [{"ph": "i", "args": 5}, {"ph": "C", "ts": "x"}, {"ph": "M", "args": {"name": [1]}}]
    assert read(trace([*odd, *EVENTS, {"ph": []}]), file) == read(trace(EVENTS), file)


def test_a_number_that_no_float_can_hold_is_empty_in_its_argument(file: Path) -> None:
    events = copy.deepcopy(EVENTS)
    events[0] |= {"cat": "cpu_op", "args": {"Input Dims": [[4, 77777]]}}
    assert "[[4,null]]" in read(trace(events).replace(b"77777", b"1e999"), file)["input_shapes"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaDeviceSynchronize_v3020", "cudaDeviceSynchronize"),
        ("__cudaLaunchKernel_v13000", "__cudaLaunchKernel"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync"),
        ("cudnn_conv_v7", "cudnn_conv_v7"),
    ],
)
def test_forms_of_a_runtime_call_are_one(name: str, plain: str) -> None:
    assert base_api_name(name) == plain
