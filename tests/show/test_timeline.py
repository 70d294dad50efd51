"""The predicted timeline is a trace that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.simulate import measured_rows
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.replay import replay
from pipeline.simulate.step_rows import EARLIER, critical_slices, idle_slices, lanes
from pipeline.simulate.timeline_events import DEVICE_PID
from tests.show.timelines import Event, Step, slices
from tests.trace.trace_drawing import annotation, kernel, launch, op, write


def test_events_follow_the_trace_event_format(events: list[Event]) -> None:
    for event in events:
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


def test_every_row_that_holds_slices_has_a_name(events: list[Event]) -> None:
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
    # main      |--- aten::mm ---|                 in all steps, the second as measured 4 us longer, the third 9
    #              |launch|
    # stream 7            |---- kernel ----|
    measured: list[Event] = []
    for number, longer in enumerate((0, 4, 9)):
        at = 100 * number
        measured += [
            annotation(f"ProfilerStep#{number}", at, at + 60),
            op("aten::mm", at + 1, at + 20),
            launch(at + 4, at + 10, number + 1),
            kernel("gemm", at + 12, at + 32 + longer, number + 1),
        ]
    rows = measured_events(write(tmp_path, measured))
    assert {e["args"]["name"] for e in rows if e["name"] in ("process_name", "thread_name")} == {
        measured_rows.HOST,
        measured_rows.DEVICE,
        "main",
        "stream 7",
    }
    drawn = {e["name"]: e for e in slices(rows, lambda e: True)}
    assert drawn["gemm"]["dur"] == 29.0, "of the two settled steps the later one of the middle"
    assert drawn["gemm"]["ts"] == 11.0, "counted from the first operator"
    assert drawn["cudaLaunchKernel"]["pid"] == drawn["aten::mm"]["pid"] != drawn["gemm"]["pid"]


def test_slices_of_one_row_nest_or_follow_each_other(events: list[Event]) -> None:
    # |---- op ----|        allowed        |---- op ----|         not allowed
    #    |launch|                               |--- op ---|
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in (e for e in events if e["ph"] == "X"):
        rows.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    tolerance = 0.0025  # times are rounded to nanoseconds, begin and length apart
    for spans in rows.values():
        open_ends: list[float] = []
        for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= begin + tolerance:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + tolerance
            open_ends.append(end)


def test_an_arrow_leads_from_each_launch_to_its_kernel(events: list[Event]) -> None:
    launches = {e["args"]["call"]: e for e in slices(events, lambda e: e["name"] == "launch")}
    kernels = {e["args"]["call"]: e for e in slices(events, lambda e: e["cat"] == "kernel")}
    begins = {e["id"]: (e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "s"}
    ends = {e["id"]: (e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "f"}
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


def test_phases_follow_each_other_in_the_order_of_a_training_step(events: list[Event]) -> None:
    for row in ("phase on the host", "phase on the GPU"):
        phases = [e["name"] for e in slices(events, lambda e, row=row: e["cat"] == row)]
        assert phases == ["inputs", "forward", "loss", "backward", "optimizer"]


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
    drawn = json.loads(out.read_text())["traceEvents"]
    (moving,) = slices(drawn, lambda e: e["cat"] == "communication")
    (collective,) = slices(drawn, lambda e: e["name"].startswith("nccl") and e["pid"] == DEVICE_PID)
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
