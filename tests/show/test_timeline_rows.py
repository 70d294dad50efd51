"""Rows of a timeline beside its operators: modules, evidence, work of the step before, and the difference to a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.simulate import measured_rows
from pipeline.simulate import timeline_events as predicted_rows
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.measured_rows import shifted_rows
from pipeline.simulate.replay import replay
from pipeline.simulate.step_rows import EARLIER, PID, idle_slices
from pipeline.simulate.timeline_events import timeline_events
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.load import load_trace
from tests.show.timelines import Event, Step, slices
from tests.simulate.programs import program
from tests.simulate.programs import row as action
from tests.trace.trace_drawing import annotation, kernel, launch, op, write


def test_modules_lie_above_the_kernels_each_inside_the_one_that_holds_it(
    step: Step, events: list[Event]
) -> None:
    modules = slices(events, lambda e: e["cat"] == "module")
    assert {(e["pid"], e["tid"]) for e in modules} == {
        (predicted_rows.DEVICE_PID, predicted_rows.MODULES)
    }
    assert min(step.timeline.program.streams) > predicted_rows.MODULES, (
        "rows are in the order of their ids"
    )
    names = [e["name"] for e in modules]
    assert names.count("Dlrm") == 2 and {
        "Dlrm.bottom",
        "Dlrm.top",
        "inputs",
        "loss",
        "optimizer",
    } <= set(names)
    for event in modules:
        path, begin, end = event["name"], event["ts"], event["ts"] + event["dur"]
        if "." in path:
            above = [
                e
                for e in modules
                if e["name"] == path.rpartition(".")[0] and e["args"] == event["args"]
            ]
            assert any(e["ts"] <= begin and end <= e["ts"] + e["dur"] + 1e-6 for e in above), path
    inside = [
        e
        for e in slices(events, lambda e: e["cat"] == "kernel")
        if e["args"]["operator"] == "aten::linear"
    ]
    first = next(e for e in modules if e["name"] == "Dlrm.bottom.0")
    assert first["ts"] == inside[0]["ts"]


def test_a_kernel_says_its_interval_and_its_evidence(step: Step, events: list[Event]) -> None:
    calls = step.prediction.calls
    assert calls is not None
    (first, *_) = slices(events, lambda e: e["cat"] == "kernel" and e["name"].startswith("gemm"))
    call = calls.query(f"call == {first['args']['call']}").iloc[0]
    assert first["args"]["p10 to p90"] == f"{call['p10_us']:.3g} to {call['p90_us']:.3g} µs"
    assert first["args"]["evidence"] == call["evidence"] in step.prediction.evidence


def test_work_of_the_step_before_is_not_idle() -> None:
    """
    us        0         10        20
    earlier   |---------|
    host      |-launch 4|
    stream              .|--5--|      after a gap of 1
    """
    timeline = simulate(program(action(api=4.0), backlog=(10.0,)), np.array([5.0]))
    assert idle_slices(timeline) == [(EARLIER, 0.0, 10.0), ("idle", 10.0, 11.0)]
    (event,) = [e for e in timeline_events(timeline) if e.get("cat") == "step"]
    assert (event["dur"], event["args"]["idle_us"]) == (16.0, 1.0)


def test_a_replay_draws_the_measured_step_and_the_difference_below_the_predicted_one() -> None:
    timeline = simulate(program(action(api=4.0)), np.array([5.0]))  # from 1 to 6 µs
    events = timeline_events([(timeline, 100.0)], measured_us=[8.0])
    rows = {e["cat"]: (e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert rows["step"] == ("step", 100.0, 6.0) and rows["measured step"] == (
        "measured",
        100.0,
        8.0,
    )
    assert rows["difference"] == ("predicted 25.00% too short", 106.0, 2.0)
    order = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == PID]
    assert order[:3] == ["step", "measured step", "difference"]


def test_a_replay_draws_where_predicted_kernels_begin_later_or_earlier(tmp_path: Path) -> None:
    """Four kernels of 10 µs, every 20 µs; the last two are predicted 30 and 31 µs late: one slice from the third on.

    measured   k0  k1  k2  k3
    predicted  k0  k1        k2  k3
    """
    events = [annotation("ProfilerStep#0", 0, 120)]
    for number in range(4):
        at = 20.0 * number
        events += [
            op("aten::mm", at + 1, at + 9),
            launch(at + 3, at + 4, number),
            kernel("gemm", at + 6, at + 16, number),
        ]
    (done,) = replay(write(tmp_path, events)).replayed
    source = TraceSelection.of(load_trace(tmp_path / "trace.json"))
    measured = (source.act.call_start[done.iteration.calls] - done.iteration.start_ns) / 1e3
    start = measured + np.array([0.0, 0.0, 30.0, 31.0])
    late = replace(done.timeline, device_start=start[:, None], device_end=start[:, None] + 10.0)
    found = [e for e in shifted_rows(source.act, [(done.iteration, late, 100.0)]) if e["ph"] == "X"]
    assert [e["name"] for e in found] == ["30 µs later than measured", "31 µs later than measured"]
    assert (found[0]["ts"], found[-1]["ts"] + found[-1]["dur"]) == pytest.approx(
        (100.0 + start[2], 100.0 + start[3] + 10.0)
    )
    exact = replace(
        done.timeline, device_start=measured[:, None], device_end=measured[:, None] + 10.0
    )
    assert not [
        e for e in shifted_rows(source.act, [(done.iteration, exact, 100.0)]) if e["ph"] == "X"
    ]


def test_measured_rows_lie_below_the_predicted_ones_of_their_kind(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#0", 0, 190),
        op("aten::mm", 1, 10),
        launch(3, 4, 1),
        kernel("gemm", 5, 18, 1),
    ]
    replay(write(tmp_path, events), timeline=tmp_path / "timeline.json")
    trace = json.loads((tmp_path / "timeline.json").read_text())
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
        measured_rows.HOST,
        "predicted GPU",
        measured_rows.DEVICE,
        measured_rows.SHIFT,
    ]
    assert not slices(trace["traceEvents"], lambda e: e["cat"] == "module"), (
        "a trace has no modules"
    )
