"""Unusual events are read as the same events in the usual form, and whatever is odd elsewhere changes nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.trace import file_scan
from pipeline.trace.kineto_fields import MISSING, base_api_name
from pipeline.trace.load import load_trace
from tests.trace.test_fuzz import EVENTS
from tests.trace.trace_drawing import MAIN, kernel, trace


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
        ({"ts": 1.5e3, "dur": -3}, {"ts_ns": 1500_000, "dur_ns": 0}),
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
        ({"cat": "cuda_runtime", "name": "INVALID", "args": {"cbid": [505]}}, {"name": "INVALID"}),
        ({"name": "µ", "args": None}, {"name": "µ", "external_id": None}),
        ({"args": {"external id": 5}}, {"external_id": 5}),
        ({"args": {"External id": None, "external id": 5}}, {"external_id": 5}),
        ({"args": {"External id": 4, "external id": 5}}, {"external_id": 4}),
        ({"args": {"External id": "6"}}, {"external_id": 6}),
        ({"args": {"External id": 2**64 - 1}}, {"external_id": -1}),
        (
            {"args": {"Input dims": [], "Input type": "float"}},
            {"input_shapes": "[]", "input_dtypes": "float"},
        ),
        ({"args": {"Concrete Inputs": [1.5, None, "µ"]}}, {"input_values": '[1.5,null,"µ"]'}),
        ({"args": []}, {"external_id": None}),
    ],
)
def test_an_unusual_event_is_read(
    change: dict[str, Any], expected: dict[str, Any], file: Path
) -> None:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": MAIN,
        "ts": 5,
        "dur": 3,
        "args": {},
    }
    columns = read(trace([event | change]), file)
    assert {name: columns[name][0] for name in expected} == expected


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "i", "args": 5},
        {"ph": "C", "ts": "x"},
        {"ph": "M", "args": {"name": [1]}},
        {"ph": []},
    ],
)
def test_events_that_are_not_read_may_hold_anything(odd: dict[str, Any], file: Path) -> None:
    assert read(trace([odd, *EVENTS, odd]), file) == read(trace(EVENTS), file)


def test_a_number_that_no_float_can_hold_is_empty_in_its_argument(file: Path) -> None:
    events = copy.deepcopy(EVENTS)
    events[0] |= {"cat": "cpu_op", "args": {"Input Dims": [[4, 77777]]}}
    assert "[[4,null]]" in read(trace(events).replace(b"77777", b"1e999"), file)["input_shapes"]


def test_a_window_that_needs_repair_is_read_as_the_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        kernel(f"k{number}", 10 * number, 10 * number + 5, number, grid=[number, 1, 1])
        for number in range(400)
    ]
    monkeypatch.setattr(file_scan, "WINDOW_BYTES", 4096)
    expected = read(trace(events), file)
    damaged = json.dumps(json.loads(trace(events)), indent=2).replace('"k200"', '"k \\d"').encode()
    columns = read(damaged, file)
    position = int(np.flatnonzero(np.array(columns["name"]) == "k \\d")[0])
    assert (
        position == 200
        and columns["grid"] == expected["grid"]
        and columns["ts_ns"] == expected["ts_ns"]
    )


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaStreamSynchronize_ptsz", "cudaStreamSynchronize"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaDeviceSynchronize_v3020", "cudaDeviceSynchronize"),
        ("__cudaLaunchKernel_v13000", "__cudaLaunchKernel"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync"),
        ("hipLaunchKernel", "hipLaunchKernel"),
        ("cutlass_gemm_v2", "cutlass_gemm_v2"),
        ("aten::add", "aten::add"),
        ("cudnn_conv_v7", "cudnn_conv_v7"),
    ],
)
def test_forms_of_a_runtime_call_are_one(name: str, plain: str) -> None:
    assert base_api_name(name) == plain
