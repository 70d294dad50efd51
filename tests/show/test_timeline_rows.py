"""Rows of a timeline beside its operators: modules, evidence, work of the step before, and the difference to a trace."""

from __future__ import annotations

import numpy as np

from pipeline.simulate import timeline_events as predicted_rows
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.step_rows import EARLIER, idle_slices
from pipeline.simulate.timeline_events import timeline_events
from tests.show.timelines import Event, Step, slices
from tests.simulate.programs import program
from tests.simulate.programs import row as action


def test_modules_lie_above_the_kernels_each_inside_the_one_that_holds_it(
    step: Step, events: list[Event]
) -> None:
    modules = slices(events, lambda e: e["cat"] == "module")
    assert {(e["pid"], e["tid"]) for e in modules} == {
        (predicted_rows.DEVICE_PID, predicted_rows.MODULES)
    }
    names = [e["name"] for e in modules]
    assert names.count("Dlrm") == 2 and {"Dlrm.bottom", "inputs", "loss", "optimizer"} <= {*names}
    for event in (e for e in modules if "." in e["name"]):
        begin, end = event["ts"], event["ts"] + event["dur"]
        above = [e for e in modules if e["name"] == event["name"].rpartition(".")[0]]
        assert any(e["ts"] <= begin and end <= e["ts"] + e["dur"] + 1e-6 for e in above), event
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
