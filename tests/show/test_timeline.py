"""The predicted timeline is a trace that Perfetto opens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.step_rows import EARLIER, critical_slices, idle_slices
from tests.show.timelines import Event, Step, slices
from tests.trace.trace_drawing import annotation, kernel, launch, op, write


def test_events_follow_the_trace_event_format(events: list[Event]) -> None:
    for event in events:
        assert event["ph"] in ("X", "M", "s", "f", "i", "C")
        assert event["name"] and event["ts"] >= 0
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["cat"]
        if event["ph"] in "sf":
            assert isinstance(event["id"], int) and event["cat"]
            assert event.get("bp") == ("e" if event["ph"] == "f" else None)
        if event["ph"] == "M":
            assert re.fullmatch("(process|thread)_(name|sort_index)", event["name"])
            assert event["args"]


def test_every_row_that_holds_slices_has_a_name(events: list[Event]) -> None:
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"main", "autograd", "critical path", "GPU idle"} <= names


def test_the_measured_step_lies_below_the_predicted_one(tmp_path: Path) -> None:
    # us        0        10        20        30
    # main      |--- aten::mm ---|                 in all steps, the second as measured 4 us longer, the third 9
    #              |launch|
    # stream 7            |---- kernel ----|
    measured: list[Event] = []
    for number, (at, end) in enumerate([(0, 32), (100, 136), (200, 241)]):
        measured += [
            annotation(f"ProfilerStep#{number}", at, at + 60),
            op("aten::mm", at + 1, at + 20),
            launch(at + 4, at + 10, number + 1),
            kernel("gemm", at + 12, end, number + 1),
        ]
    rows = measured_events(write(tmp_path, measured))
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
    def place(event: Event) -> tuple[float, int, int]:
        return event["ts"], event["pid"], event["tid"]

    begins, ends = ({e["id"]: place(e) for e in events if e["ph"] == ph} for ph in "sf")
    launches = slices(events, lambda e: e["name"] == "launch")
    kernels = {e["args"]["call"]: place(e) for e in slices(events, lambda e: e["cat"] == "kernel")}
    assert len(launches) == len(kernels) > 10
    drawn = sorted((begins[number], ends[number]) for number in begins)
    assert drawn == sorted((place(e), kernels[e["args"]["call"]]) for e in launches)
    assert all(begin < end for begin, end in drawn)


def test_the_critical_path_fills_the_step_without_a_gap(step: Step) -> None:
    timeline = step.timeline
    labels = [f"call {number}" for number in range(timeline.program.call_count)]
    path = critical_slices(timeline, labels)
    assert path[0][1] == 0.0 and path[-1][2] == pytest.approx(timeline.step_us[0])
    assert [begin for _, begin, _ in path[1:]] == pytest.approx([end for *_, end in path[:-1]])
    on_device = sum(end - begin for name, begin, end in path if name in labels)
    assert on_device == pytest.approx(timeline.critical.device_us)


def test_idle_gaps_add_up_to_the_idle_time(step: Step) -> None:
    gaps = idle_slices(step.timeline)
    idle = sum(end - begin for name, begin, end in gaps if name != EARLIER)
    assert idle == pytest.approx(step.timeline.idle_us[0]) and gaps[0][0] == EARLIER
    assert all(begin < end for _, begin, end in gaps)


def test_phases_follow_each_other_in_the_order_of_a_training_step(events: list[Event]) -> None:
    for row in ("phase on the host", "phase on the GPU"):
        phases = [e["name"] for e in slices(events, lambda e, row=row: e["cat"] == row)]
        assert phases == ["inputs", "forward", "loss", "backward", "optimizer"]
