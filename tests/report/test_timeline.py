"""The predicted timeline is a trace that Chrome and Perfetto open."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.simulate import measured_rows
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.perfetto import write_timeline


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The timeline of a small step, predicted with physics alone."""
    from pipeline.answers.gpu_figures import gpu_of
    from pipeline.answers.host_overheads import overhead_model
    from pipeline.answers.kernel_models import kernel_predictor
    from pipeline.answers.predict_step import Subject, predict_from_parts
    from pipeline.config import expand
    from pipeline.graph.capture import capture
    from pipeline.graph.device_calls import map_calls

    point = expand(["gpu=H100", "model=dlrm_small", "batch_size=64", "predict.draws=10"])[0]
    gpu, graph = gpu_of(point.settings.gpu), capture(point.settings.model.plain(), point.batch_size)
    calls = map_calls(graph, gpu, graph.device)
    subject = Subject(point.model, point.variant, point.batch_size, graph.memory_bytes, settings=point.settings.predict)
    overheads = overhead_model(point.gpu, point.settings.overheads, None, point.workload)
    _, timeline = predict_from_parts(subject, gpu, graph.table, calls, kernel_predictor(gpu, "auto", None), overheads)
    path = tmp_path_factory.mktemp("trace") / "timeline.json.gz"
    write_timeline(timeline, path, calls)
    loaded: dict[str, object] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def test_events_follow_the_trace_event_format(trace: dict[str, object]) -> None:
    assert isinstance(trace["traceEvents"], list)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M", "s", "f", "i", "C")
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert np.isfinite(event["ts"]) and event["ts"] >= 0
        if event["ph"] == "X":
            assert np.isfinite(event["dur"]) and event["dur"] >= 0
            assert isinstance(event["cat"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
            assert event["args"]


def test_every_row_that_holds_slices_has_a_name(trace: dict[str, object]) -> None:
    events = trace["traceEvents"]
    assert isinstance(events, list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"main", "autograd", "predicted host", "predicted GPU"} <= names
    assert any(name.startswith("stream") for name in names)


def test_the_measured_step_lies_below_the_predicted_one(tmp_path: Path) -> None:
    # us        0        10        20        30
    # main      |--- aten::mm ---|                 in both steps, the second as measured 4 us longer
    #              |launch|
    # stream 7            |---- kernel ----|
    events: list[dict[str, object]] = []
    for step, (begin, longer) in enumerate(((0, 0), (100, 4), (200, 9))):
        host = {"ph": "X", "pid": 5, "tid": 5, "args": {"External id": 10 + step}}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 60},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin + 1, "dur": 19},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 4, "dur": 6,
             "args": {"correlation": 50 + step}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": begin + 12, "dur": 20 + longer,
             "args": {"correlation": 50 + step, "stream": 7, "device": 0}},
        ]  # fmt: skip
    file = tmp_path / "kineto.json"
    file.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "V100"}], "traceEvents": events}))
    rows = measured_events(file)
    assert {e["args"]["name"] for e in rows if e["ph"] == "M"} == {
        measured_rows.HOST,
        measured_rows.DEVICE,
        "main",
        "stream 7",
    }
    slices = {e["name"]: e for e in rows if e["ph"] == "X"}
    assert slices["gemm"]["dur"] == 29.0, "of the two settled steps the later one of the middle"
    assert slices["gemm"]["ts"] == 11.0, "counted from the first operator"
    assert slices["cudaLaunchKernel"]["pid"] == slices["aten::mm"]["pid"] != slices["gemm"]["pid"]


def test_perfetto_reads_every_slice(trace: dict[str, object], tmp_path: Path) -> None:
    processor = pytest.importorskip("perfetto.trace_processor", reason="the perfetto package is not installed")
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(trace))
    try:
        opened = processor.TraceProcessor(trace=str(file))
    except Exception as error:  # whatever it meets while fetching its program
        pytest.skip(f"perfetto's trace processor is fetched at first use, and cannot be fetched here ({error})")
    events = trace["traceEvents"]
    assert isinstance(events, list)
    with opened:
        counted = [row.n for row in opened.query("select count(*) as n from slice")]
        names = {row.name for row in opened.query("select name from thread") if row.name}
    assert counted == [sum(event["ph"] == "X" for event in events)]
    assert {"main", "autograd"} <= names


def test_slices_of_one_row_nest_or_follow_each_other(trace: dict[str, object]) -> None:
    # |---- op ----|        allowed        |---- op ----|         not allowed
    #    |launch|                               |--- op ---|
    events = trace["traceEvents"]
    assert isinstance(events, list)
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in (e for e in events if e["ph"] == "X"):
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    tolerance = 0.0025  # times are rounded to nanoseconds, begin and length apart
    for slices in rows.values():
        open_ends: list[float] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= begin + tolerance:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + tolerance
            open_ends.append(end)
