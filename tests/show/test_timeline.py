"""The predicted timeline is a trace that Perfetto opens, and a page that a browser opens without a network."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.pages.chromium import Page
from pipeline.prediction import Prediction
from pipeline.show.html_report import page_policy
from pipeline.simulate import measured_rows
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.replay import replay
from pipeline.simulate.step_rows import EARLIER, critical_slices, idle_slices, lanes
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.timeline_events import DEVICE_PID, timeline_events
from pipeline.simulate.timeline_page import page_data, write_timeline
from tests.trace.trace_drawing import annotation, kernel, launch, op, write


@dataclass(frozen=True)
class Step:
    """A predicted step with its calls."""

    prediction: Prediction
    timeline: Timeline
    calls: pd.DataFrame


@pytest.fixture(scope="module")
def step() -> Step:
    """A small step, predicted from shipped models."""
    from pipeline.answers.engine import engine
    from pipeline.question.question import ask

    question = ask(["gpu=H100", "model=dlrm_small", "batch_size=64", "predict.draws=10"])
    answer = engine(None).predict_one(question)
    return Step(answer.prediction, answer.timeline, answer.calls)


@pytest.fixture(scope="module")
def trace(step: Step, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = tmp_path_factory.mktemp("trace") / "timeline.json.gz"
    write_timeline(step.timeline, path, step.calls)
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
        if event["ph"] in "sf":
            assert isinstance(event["id"], int) and event["cat"]
            assert event.get("bp") == ("e" if event["ph"] == "f" else None)
        if event["ph"] == "M":
            assert event["name"] in (
                "process_name",
                "thread_name",
                "process_sort_index",
                "thread_sort_index",
            )
            assert event["args"]


def test_every_row_that_holds_slices_has_a_name(trace: dict[str, object]) -> None:
    events = trace["traceEvents"]
    assert isinstance(events, list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    names = {e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    assert {
        "main",
        "autograd",
        "predicted step",
        "predicted host",
        "predicted GPU",
        "critical path",
        "GPU idle",
    } <= names
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
            {
                **host,
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "ts": begin,
                "dur": 60,
            },
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin + 1, "dur": 19},
            {
                **host,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": begin + 4,
                "dur": 6,
                "args": {"correlation": 50 + step},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": begin + 12,
                "dur": 20 + longer,
                "args": {"correlation": 50 + step, "stream": 7, "device": 0},
            },
        ]
    file = tmp_path / "kineto.json"
    file.write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": "V100"}], "traceEvents": events})
    )
    rows = measured_events(file)
    assert {e["args"]["name"] for e in rows if e["name"] in ("process_name", "thread_name")} == {
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
    processor = pytest.importorskip(
        "perfetto.trace_processor", reason="the perfetto package is not installed"
    )
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(trace))
    try:
        opened = processor.TraceProcessor(trace=str(file))
    except Exception as error:  # whatever it meets while fetching its program
        pytest.skip(
            "perfetto's trace processor is fetched at first use, and cannot be fetched here"
            f" ({error})"
        )
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
        rows.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    tolerance = 0.0025  # times are rounded to nanoseconds, begin and length apart
    for slices in rows.values():
        open_ends: list[float] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= begin + tolerance:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + tolerance
            open_ends.append(end)


def slices(trace: dict[str, Any], chosen: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and chosen(event)]


def test_an_arrow_leads_from_each_launch_to_its_kernel(trace: dict[str, Any]) -> None:
    launches = {e["args"]["call"]: e for e in slices(trace, lambda e: e["name"] == "launch")}
    kernels = {e["args"]["call"]: e for e in slices(trace, lambda e: e["cat"] == "kernel")}
    begins = {
        e["id"]: (e["pid"], e["tid"], e["ts"]) for e in trace["traceEvents"] if e["ph"] == "s"
    }
    ends = {e["id"]: (e["pid"], e["tid"], e["ts"]) for e in trace["traceEvents"] if e["ph"] == "f"}
    assert launches.keys() == kernels.keys() and len(kernels) == len(begins) == len(ends) > 10
    drawn = {begins[number]: ends[number] for number in begins}
    for call, begin in launches.items():
        end = kernels[call]
        assert drawn[begin["pid"], begin["tid"], begin["ts"]] == (end["pid"], end["tid"], end["ts"])
        assert begin["ts"] < end["ts"]


def test_the_critical_path_fills_the_step_without_a_gap(step: Step) -> None:
    timeline = step.timeline
    labels = [f"call {number}" for number in range(timeline.program.call_count)]
    path = critical_slices(timeline, labels)
    assert path[0][1] == 0.0 and path[-1][2] == pytest.approx(timeline.step_us[0])
    assert [begin for _, begin, _ in path[1:]] == pytest.approx([end for *_, end in path[:-1]])
    on_device = sum(end - begin for name, begin, end in path if name in labels)
    assert on_device == pytest.approx(timeline.critical.device_us)


def test_two_operators_of_one_name_are_two_slices_of_the_path(step: Step) -> None:
    timeline = step.timeline
    operators = [
        name
        for name, *_ in critical_slices(timeline, [""] * timeline.program.call_count)
        if "::" in name
    ]
    on_path = np.unique(timeline.program.item[timeline.critical.rows])
    assert len(operators) >= 0.9 * len(on_path) > 10, "some operators take no time of the path"


def test_idle_gaps_add_up_to_the_idle_time(step: Step) -> None:
    gaps = idle_slices(step.timeline)
    idle = sum(end - begin for name, begin, end in gaps if name != EARLIER)
    assert idle == pytest.approx(step.timeline.idle_us[0]) and gaps[0][0] == EARLIER
    assert all(begin < end for _, begin, end in gaps)


def test_phases_follow_each_other_in_the_order_of_a_training_step(trace: dict[str, Any]) -> None:
    for row in ("phase on the host", "phase on the GPU"):
        phases = [e["name"] for e in slices(trace, lambda e, row=row: e["cat"] == row)]
        assert phases == ["inputs", "forward", "loss", "backward", "optimizer"]


def test_rows_are_sorted_summary_first_and_measured_last(trace: dict[str, Any]) -> None:
    order = {
        e["pid"]: e["args"]["sort_index"]
        for e in trace["traceEvents"]
        if e["name"] == "process_sort_index"
    }
    names = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert [names[pid] for pid in sorted(order, key=order.__getitem__)] == [
        "predicted step",
        "predicted host",
        "predicted GPU",
    ]


def test_collectives_of_the_backward_phase_are_communication(tmp_path: Path) -> None:
    # us         0         10        20        30
    # main       |-- mm --||-- mm --|
    # stream 7        |--- gemm ---||-- ncclDevKernel --|
    events: list[dict[str, object]] = [annotation("ProfilerStep#0", 0, 190)]
    for number, (name, begin, end) in enumerate(
        (("gemm", 5, 18), ("ncclDevKernel_AllReduce_Sum_f32", 19, 39))
    ):
        events += [
            op("aten::mm", 1 + 10 * number, 10 + 10 * number),
            launch(3 + 10 * number, 4 + 10 * number, number + 1),
            kernel(name, begin, end, number + 1),
        ]
    out = tmp_path / "timeline.json"
    replay(write(tmp_path, events), timeline=out)
    trace = json.loads(out.read_text())
    (moving,) = slices(trace, lambda e: e["cat"] == "communication")
    (collective,) = slices(trace, lambda e: e["name"].startswith("nccl") and e["pid"] == DEVICE_PID)
    assert (
        (moving["ts"], moving["dur"])
        == (collective["ts"], collective["dur"])
        == (pytest.approx(1019, abs=3), 20.0)
    )


def test_steps_that_overlap_get_rows_of_their_own() -> None:
    # us   0    10    20    30
    #      |--1--|  |--3--|
    #         |--2--|
    assert lanes([(0, 10), (5, 10), (15, 10)]) == [0, 1, 0]


@pytest.fixture(scope="module")
def html(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "timeline.html"
    write_timeline(step.timeline, file, step.calls, title="dlrm <small> & more")
    return file


GPU_ROW = (
    "timeline.data.rows.findIndex(row => row.group === 'predicted GPU' && row.name !== 'module')"
)


def opened(page: Page, file: Path, width: int = 1280) -> None:
    page.size(width, 800)
    page.open(file.as_uri())
    page.wait("window.timeline && timeline.state.drawn > 0")


def test_the_page_needs_no_network_and_draws_every_slice(
    page: Page, html: Path, trace: dict[str, Any], step: Step
) -> None:
    assert not re.search(r"https?://", html.read_text()), "one file, nothing loaded"
    before = len(page.requests)
    opened(page, html)
    assert page.errors == []
    assert page.requests[before:] == [html.as_uri()]
    assert page.value("document.title") == "dlrm <small> & more"
    drawn = page.value("timeline.state.drawn")
    assert drawn == page.value("timeline.state.slices") == len(slices(trace, lambda e: True))
    calls = step.prediction.calls["device_start_us"].notna().sum()
    assert page.value(f"timeline.data.rows[{GPU_ROW}].at.length") == calls, "the calls of the table"
    assert page.value("timeline.data.arrows.length") == calls


def test_the_timeline_is_drawn_in_the_frame_of_a_report(
    page: Page, html: Path, tmp_path: Path
) -> None:
    text, report = html.read_text(encoding="utf-8"), tmp_path / "report.html"
    policy = escape(page_policy([text]))
    report.write_text(
        f"""<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">
        <iframe style="width: 100%; height: 700px" srcdoc="{escape(text)}"></iframe>""",
        encoding="utf-8",
    )
    page.size(1280, 800)
    page.errors.clear()
    page.open(report.as_uri())
    page.wait("frames[0].timeline && frames[0].timeline.state.drawn > 0")
    assert page.errors == []


def test_pointing_at_a_kernel_names_it_with_its_time_and_sizes(
    page: Page, html: Path, step: Step
) -> None:
    opened(page, html)
    table = step.prediction.calls.dropna(subset=["device_start_us"]).sort_values("device_start_us")
    number = int(np.argmax(np.where(table["family"] == "gemm", table["kernel_us"], 0.0)))
    longest = table.iloc[number]
    at = page.value(f"timeline.place({GPU_ROW}, {number})")
    page.mouse(at["x"], at["y"])
    tip = page.wait(
        "document.getElementById('tip').style.display === 'block' &&"
        " document.getElementById('tip').textContent"
    )
    assert tip.startswith(f"{longest['family']}:{longest['op']}  ·  {longest['kernel_us']:.2f} µs")
    sizes = step.calls.loc[int(longest["call"]), ["B", "M", "N", "K"]].astype(int)
    for name, value in sizes.items():
        assert f"{name}={value}" in tip
    assert "operator: " in tip
    page.mouse(at["x"], at["y"], "mousePressed", button="left", clickCount=1)
    page.mouse(at["x"], at["y"], "mouseReleased", button="left", clickCount=1)
    assert page.wait("timeline.state.chosen")[1] == number


def test_wheel_keys_and_buttons_change_the_part_that_is_shown(page: Page, html: Path) -> None:
    opened(page, html)
    span = "timeline.view.to - timeline.view.from"
    whole = page.value(span)
    box = page.value(
        "(b => [b.left + b.width / 4, b.top +"
        " 60])(document.getElementById('chart').getBoundingClientRect())"
    )
    width = "document.getElementById('chart').clientWidth"
    time = f"(px => timeline.view.from + px / {width} * ({span}))"
    under = page.value(f"{time}({box[0]})")
    page.mouse(*box, "mouseWheel", deltaX=0, deltaY=-500)
    page.wait(f"{span} < {0.6 * whole}")
    assert page.value(f"{time}({box[0]})") == pytest.approx(under, rel=1e-6), (
        "what lies under the mouse stays there"
    )
    page.wait("timeline.state.drawn < timeline.state.slices")
    begin = page.value("timeline.view.from")
    page.key("d")
    page.wait(f"timeline.view.from > {begin}")
    page.key("f")
    assert page.wait(f"({span}) === {whole}")
    page.value("document.getElementById('in').click()")
    assert page.value(span) == pytest.approx(whole / 2)


def test_a_search_finds_every_slice_of_that_name_and_goes_to_the_next(
    page: Page, html: Path, trace: dict[str, Any]
) -> None:
    opened(page, html)
    page.key("/")
    for letter in "gemm":
        page.key(letter)
    expected = slices(trace, lambda e: "gemm" in e["name"])
    kernels = [e["dur"] for e in expected if e["cat"] == "kernel"]
    page.wait(
        f"document.getElementById('found').textContent === '{len(kernels)} kernels,"
        f" {sum(kernels):.2f} µs in all'"
    )
    page.key("Enter")
    page.wait(f"document.getElementById('found').textContent === '1 of {len(expected)}'")
    assert page.value(f"timeline.state.matches[0][0] === {GPU_ROW}"), "kernels come first"


def test_the_page_fits_a_phone(page: Page, html: Path) -> None:
    opened(page, html, 390)
    assert page.value("document.documentElement.scrollWidth") == 390
    assert page.errors == []


@pytest.mark.nightly
def test_fifty_thousand_slices_are_drawn_in_time_for_a_movement(
    page: Page, tmp_path: Path, step: Step
) -> None:
    own = sum(len(row["begin"]) for row in page_data(timeline_events(step.timeline), "")["rows"])
    copies = -(-50_000 // own)
    length = float(step.timeline.step_us[0])
    file = tmp_path / "long.html"
    write_timeline([(step.timeline, number * length) for number in range(copies)], file)
    assert file.stat().st_size < 4_000_000
    opened(page, file)
    assert page.value("timeline.state.slices") == own * copies >= 50_000
    page.value("timeline.paintAll()")
    took = page.value(
        "(start => { for (let i = 0; i < 10; i++) timeline.paintAll(); return performance.now() -"
        " start })(performance.now())"
    )
    assert took / 10 < 500, "milliseconds a frame, on a machine that does other work too"


def test_names_that_do_not_fit_keep_their_end(page: Page, html: Path) -> None:
    opened(page, html)
    page.value("timeline.pen.font = '12px system-ui, sans-serif'")
    room = "timeline.pen.measureText('conv…weight').width + 2"
    cuts = [
        page.value(f"timeline.cut('conv2d_backward_{what}', {room})") for what in ("weight", "data")
    ]
    assert (
        all("…" in text for text in cuts) and cuts[0].endswith("eight") and cuts[1].endswith("ata")
    )
    assert (
        page.value(
            "timeline.cut('ResNet.layer1.0.conv1', timeline.pen.measureText('conv1').width + 1)"
        )
        == "conv1"
    )
    shorter = {"gemm:mm": "gemm", "Addmm backward": "Addmm", "fbgemm::lookup": "fbgemm::lookup"}
    for name, text in shorter.items():
        assert (
            page.value(f"timeline.cut('{name}', timeline.pen.measureText('{text}').width)") == text
        )
    assert page.value("timeline.cut('gemm', 1)") == ""
    assert (
        page.value("timeline.cut('embedding_backward', timeline.pen.measureText('e…d').width + 1)")
        == ""
    ), "no riddles"


def test_no_two_kinds_of_rows_have_one_grey(page: Page, html: Path) -> None:
    opened(page, html)
    kinds = ["cuda_runtime", "host time", "step", "other kernels", "inputs"]
    hues = [page.value(f"timeline.FIXED['{kind}']") for kind in kinds]
    apart = [
        max(abs(int(a[i : i + 2], 16) - int(b[i : i + 2], 16)) for i in (1, 3, 5))
        for a in hues
        for b in hues
        if a < b
    ]
    assert min(apart) > 48
