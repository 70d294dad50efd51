"""One-time costs, idle stretches of the host, and hosts of another speed: named, left out, or scaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.overheads.extraction import one_time_calls
from pipeline.overheads.trace_overheads import extract_traces
from pipeline.simulate.replay import replay
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.host_activity import activity
from pipeline.trace.load import load_trace
from tests.trace.trace_drawing import annotation, api, kernel, launch, op, write


def steps(count: int, slow: int = -1, speed: float = 1.0, idle: int = -1) -> list[dict[str, Any]]:
    """Equal iterations of 4 ops; number `slow` gets memory from the driver for 40 ms, `idle` waits 30 ms in Python.

    [aten::mm  (cudaMalloc)  L ]     [aten::view]  [aten::t] [aten::size]
                              [gemm]
    """
    events = []
    for i in range(count):
        at = 200_000 * i
        wait, pause = (40_000 if i == slow else 0), (30_000 if i == idle else 0)
        events += [
            annotation(f"ProfilerStep#{i}", at, at + 190_000),
            op("aten::mm", at + 1, at + 1 + 40 * speed + wait),
        ]
        if wait:
            events += [api("cudaMalloc", at + 2, at + 2 + wait, 1000 + i)]
        begin = at + 1 + 20 * speed + wait
        events += [
            launch(begin, begin + 6 * speed, i + 1),
            kernel("gemm", begin + 8, begin + 18, i + 1),
        ]
        late = at + 1 + wait + pause
        for name, first, last in (("view", 50, 60), ("t", 65, 70), ("size", 75, 80)):
            events += [op(f"aten::{name}", late + first * speed, late + last * speed)]
    return events


def test_a_long_wait_of_the_host_is_no_one_time_cost(tmp_path: Path) -> None:
    blocked = [*steps(1), api("cudaStreamSynchronize", 60, 90_000, 77)]
    assert not len(one_time_calls(activity(load_trace(write(tmp_path, blocked)))))


def test_a_one_time_cost_neither_rules_statistics_nor_goes_unnamed(tmp_path: Path) -> None:
    figures = replay(write(tmp_path, steps(5, slow=3))).as_dict()
    errors = {row["iteration"]: row["error"] for row in figures["per_iteration"]}
    assert errors.pop(3) < -0.9
    assert max(map(abs, errors.values())) < 0.2
    notes = " ".join(figures["notes"])
    assert "iteration 3: 100% of the span are one-time costs" in notes
    assert "cudaMalloc in aten::mm 40.0 ms" in notes and "exclude 1 one-time call" in notes


@pytest.mark.parametrize("evaluated_us", [3, 30])
def test_evaluated_iterations_do_not_decide_what_statistics_leave_out(
    tmp_path: Path, evaluated_us: int
) -> None:
    """Launches take 3 us and one of them 2 ms, in iterations 1 and 2; those of the evaluated 3 and 4 take 3 or 30 us."""
    events = []
    for step in range(5):
        usual, late = (3 if step in (1, 2) else evaluated_us if step > 2 else 30), 0
        events += [annotation(f"ProfilerStep#{step}", 20_000 * step, 20_000 * step + 19_000)]
        for number in range(6):
            took = 2000 if (step, number) == (1, 2) else usual
            at, ids = 20_000 * step + 100 * number + late, 100 * step + number + 1
            late += took - usual
            events += [
                op("aten::mm", at, at + took + 10),
                launch(at + 2, at + 2 + took, ids),
                kernel("gemm", at + took + 4, at + took + 14, ids),
            ]
    found = {r.iteration.number: r for r in replay(write(tmp_path, events)).replayed}
    assert found[3].program.api_us.mean() == pytest.approx(3.6, abs=0.5)  # 3 us, and 10 once


def test_shared_statistics_are_free_of_one_time_costs(tmp_path: Path) -> None:
    samples = extract_traces([("drawn", write(tmp_path, steps(5, slow=3)))])
    host = samples[samples["type"].isin(["T1", "T2", "T3", "T5"])]
    assert set(samples["iteration"]) == {1, 2, 3, 4} and host["value_us"].max() < 100


def test_a_long_stretch_without_any_operator_is_named(tmp_path: Path) -> None:
    notes = replay(write(tmp_path, steps(4, idle=2))).as_dict()["notes"]
    assert any(
        note.startswith("iteration 2:") and "30.0 ms before aten::view" in note for note in notes
    )


def test_one_factor_brings_the_overheads_of_a_slower_host_to_this_one(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    donor, target = write(slow, steps(4, speed=3.0)), write(tmp_path, steps(6))
    plain, scaled = (
        replay(target, [donor]).as_dict(),
        replay(target, [donor], calibrate=2).as_dict(),
    )
    assert plain["error"] > 1.5 and abs(scaled["error"]) < 0.02
    assert [row["iteration"] for row in scaled["per_iteration"]] == [3, 4, 5]
    assert "times 0.33" in " ".join(scaled["notes"])


def test_a_factor_needs_iterations_of_its_own(tmp_path: Path) -> None:
    target = write(tmp_path, steps(6))
    with pytest.raises(InputError, match="leaves none"):
        replay(target, [target], calibrate=5)


def test_overheads_from_a_trace_that_starts_cuda_stay_sane(datasets: Path) -> None:
    folder = datasets / "traces"
    result = replay(
        folder / "a100_alexnet" / "kineto.json.gz", [folder / "a100x8_dlrm" / "kineto.json.gz"]
    )
    notes = " ".join(result.as_dict()["notes"])
    assert "cudaDeviceGetStreamPriorityRange in aten::to 29.9 s" in notes and "warm-up" in notes
    assert TraceSelection.of(result.trace).without_one_time_costs.chosen[0].span_us < 2e6
