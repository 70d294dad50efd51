"""Traces that do not hold all work: cut out of a run, with lost events or times, without the GPU's name, of other devices."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.answers.tracker import load_trace as movable_trace
from pipeline.commands import codesign_commands
from pipeline.errors import InputError, SteptimeWarning, TraceError, UnknownNameError
from pipeline.overheads.extraction import extract_overheads
from pipeline.simulate.replay import replay
from pipeline.simulate.replay_result import ReplayResult
from pipeline.trace.host_activity import activity
from pipeline.trace.load import load_trace
from tests.trace.trace_drawing import annotation, api, kernel, launch, op, write

Events = list[dict[str, Any]]

V100 = [{"id": 0, "name": "Tesla V100-PCIE-32GB"}]


def step(at: float, number: int, first: float = 9, hole: float = 1) -> Events:
    """A step of one operator with two kernels of 10 us, `hole` us apart; the first starts `first` us after the step.

    main [mm  L0 L1       ]
    s7          [k0 ]<hole>[k1 ]
    """
    begin, second = at + first, at + first + 10 + hole
    return [
        annotation(f"ProfilerStep#{number}", at, max(second + 15, at + 45)),
        op("aten::mm", at + 1, at + 21),
        launch(at + 3, at + 5, 2 * number + 1),
        kernel("k0", begin, begin + 10, 2 * number + 1),
        launch(at + 6, at + 8, 2 * number + 2),
        kernel("k1", second, second + 10, 2 * number + 2),
    ]


def run(count: int, **figures: float) -> Events:
    return [event for number in range(count) for event in step(2000 * number, number, **figures)]


def told(result: ReplayResult, text: str) -> bool:
    """Whether a note of a replay holds a text."""
    return any(text in note for note in result.notes)


def lose(events: Events, *positions: int) -> Events:
    """The events with the times of some of them lost, as Kineto writes those."""
    for position in positions:
        events[position] |= {"ts": 0, "dur": 0}
    return events


def test_only_steps_with_consecutive_numbers_count_for_the_time_per_batch(tmp_path: Path) -> None:
    begins = {3: 0, 4: 100, 5: 200, 13: 500_000, 14: 500_100, 15: 500_200}
    path = write(tmp_path, [event for number, at in begins.items() for event in step(at, number)])
    assert replay(path).time_per_batch_us == 100
    every_other = [event for number in (0, 2, 4, 6) for event in step(100 * number, number)]
    assert replay(write(tmp_path, every_other)).time_per_batch_us is None


def test_work_that_was_not_recorded_is_said_and_teaches_no_latency(tmp_path: Path) -> None:
    path = write(tmp_path, run(5, hole=1000), deviceProperties=V100)
    result = replay(path)
    # of 1028 us from the operator's begin to the end of the second kernel, the device waits 1000
    assert told(result, "the device idled 97% of the span although work was queued")
    overheads = result.as_dict()["overheads"]
    assert overheads["launch_latency"]["mean_us"] == 6 and "kernel_gap" not in overheads
    said = r"takes 0.0\d+ ms, measured 1.03 ms: its prediction is scaled by that"
    with pytest.warns(SteptimeWarning, match=said):
        here = movable_trace(path).to("V100")
    assert set(here.warnings) <= set(movable_trace(path).advise().warnings)
    assert here.predicted_us == 1028 and here.active_us == 20  # what was recorded, not scaled
    assert "the device idled 97%" in here.warnings[1] and len(here.warnings) == 2


def test_a_whole_trace_has_no_such_notes(tmp_path: Path) -> None:
    path = write(tmp_path, run(5, hole=90), deviceProperties=V100)
    assert replay(path).as_dict()["notes"] == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", SteptimeWarning)
        assert movable_trace(path).to("T4").warnings == ()


@pytest.mark.parametrize("held", [True, False])
def test_launches_without_work_and_work_without_duration_are_counted_and_teach_nothing(
    tmp_path: Path, held: bool
) -> None:
    events = run(5)
    lost = [event | {"dur": 0} for event in events[3::6]]  # the first kernel of each step
    events[3::6] = lost if held else [op("aten::detach", 0, 0)] * 5
    path = write(tmp_path, events, deviceProperties=V100)
    result = replay(path)
    facts = result.as_dict()
    assert told(result, "4 of 8 launches have no work in the trace, or work without duration")
    # the second kernel begins 14 us after its launch, which is no latency, and 11 us after the first kernel began
    assert facts["overheads"].get("launch_latency", {"mean_us": 6})["mean_us"] == 6
    assert "kernel_gap" not in facts["overheads"]
    with pytest.warns(SteptimeWarning, match="1 of 2 launches have no work"):
        movable_trace(path).to("T4")


def test_fills_launches_into_a_graph_and_short_kernels_are_no_lost_work(tmp_path: Path) -> None:
    events = run(10)
    events[9] |= {"dur": 0}  # a kernel of less than 1 us, in a trace in whole us
    calls = "cudaMemsetAsync", "cudaStreamBeginCapture", "cudaLaunchKernel", "cudaStreamEndCapture"
    events += [api(name, 2021 + at, 2022 + at, 96 + at) for at, name in enumerate(calls)]
    assert replay(write(tmp_path, events)).notes == ()
    events[11] |= {"dur": 10.5}  # now times have fractions
    assert told(replay(write(tmp_path, events)), "1 of 18 launches have no work")


def test_a_first_launch_that_waits_shows_work_queued_before_the_step(tmp_path: Path) -> None:
    path = write(tmp_path, step(0, 0, first=400_000), deviceProperties=V100)
    result = replay(path)
    facts = result.as_dict()
    assert facts["queued_us"] == 400_000 - 1 and facts["step_measured_us"] == 21
    assert "launch_latency" not in facts["overheads"]
    said = "iteration 0: the first launch waited 400.0 ms for work that the trace does not hold"
    assert told(result, said)
    with pytest.warns(SteptimeWarning, match="counts as queued before the step"):
        there = movable_trace(path).to("T4")
    assert there.traced is not None and there.traced.queued_us == 399_999
    assert there.predicted_us < 100


def test_a_host_that_is_slow_to_its_first_launch_queues_nothing(tmp_path: Path) -> None:
    """The driver starts in the first operator; the kernel waits 4 ms after its launch, which is at most what was queued.

    main [mm  <800 ms> L0 ]
    s7                     <4 ms> [k0 1 ms]
    """
    events = [
        annotation("ProfilerStep#0", 0, 805_020),
        op("aten::mm", 1, 800_010),
        launch(800_000, 800_005, 1),
        kernel("k0", 804_005, 805_005, 1),
    ]
    path = write(tmp_path, events, deviceProperties=V100)
    result = replay(path)
    facts = result.as_dict()
    assert facts["queued_us"] == 0 and facts["step_measured_us"] == 805_004
    assert facts["step_predicted_us"] == pytest.approx(805_004, rel=0.01)
    assert not told(result, "queued")
    assert told(result, "iteration 0: the host took 800.0 ms before its first launch")
    with pytest.warns(SteptimeWarning, match="before its first launch"):
        assert movable_trace(path).measured.predicted_us == pytest.approx(805_004)


@pytest.mark.parametrize("waits, noted", [(30_000, True), (90, False)])
def test_a_wait_of_the_host_for_work_that_the_trace_does_not_hold_is_noted(
    tmp_path: Path, waits: int, noted: bool
) -> None:
    """Each step begins with a wait for the device, before any launch of the step.

    main [mm [sync <waits>] L0 ] [sync    ]
    s7                          [k0 1 ms]
    """
    events: Events = []
    for number in range(3):
        at = number * (waits + 2_000)
        end = at + waits
        events += [
            annotation(f"ProfilerStep#{number}", at, end + 1_100),
            op("aten::mm", at + 1, end + 20),
            api("cudaDeviceSynchronize", at + 2, end, 100 + number),
            launch(end + 5, end + 10, number + 1),
            kernel("k0", end + 15, end + 1_015, number + 1),
            api("cudaDeviceSynchronize", end + 30, end + 1_020, 200 + number),
        ]
    result = replay(write(tmp_path, events))
    said = "the host waited 97% of the span for work that the trace does not hold"
    assert told(result, said) == told(result, "the host waited") == noted


def test_recorded_work_without_its_launch_is_queued_work_too(tmp_path: Path) -> None:
    earlier = kernel("earlier", -50, 5000, 77)
    path = write(tmp_path, [earlier, *step(0, 0, first=5002)])
    assert replay(path).as_dict()["queued_us"] == 5000 - 1


# positions within a step: 3 is its first kernel, 2 the launch of it
@pytest.mark.parametrize("lost", [3, 2])
def test_iterations_with_lost_times_are_left_out(tmp_path: Path, lost: int) -> None:
    result = replay(write(tmp_path, lose(run(5), 2 * 6 + lost), deviceProperties=V100))
    facts = result.as_dict()
    assert [each["iteration"] for each in facts["per_iteration"]] == [1, 3, 4]
    lacking = "the profiler lost it; iterations that miss some of it are left out: 2"
    assert f"1 events have no time (ts 0): {lacking}" in facts["notes"]
    assert facts["active_measured_us"] == 20 and facts["time_per_batch_us"] == 2000
    moved = movable_trace(result.trace.path)
    assert set(result.trace.notes) <= {*moved.to("T4").notes} & {*moved.advise().warnings}, (
        "as every answer says"
    )
    assert not (extract_overheads(load_trace(result.trace.path))["iteration"] == 2).any()


def test_steps_that_lost_their_marker_are_named(tmp_path: Path) -> None:
    """Steps 9 and 10 of 12 lost all their times, step 2 its marker alone: nothing of them counts, and the note says so."""
    lost = [2 * 6, *range(9 * 6, 11 * 6)]
    facts = replay(write(tmp_path, lose(run(12), *lost))).as_dict()
    assert len(facts["per_iteration"]) == 8, "of nine steps the first is warm-up"
    assert facts["active_measured_us"] == 20
    (note,) = (note for note in facts["notes"] if "ts 0" in note)
    left_out = "steps whose marker is lost are left out: "
    assert note.endswith(left_out + "ProfilerStep#2, ProfilerStep#9, ProfilerStep#10")


def test_a_file_of_which_every_step_lost_a_time_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = r"no operators in any iteration; 3 events have no time \(ts 0\)"
    with pytest.raises(TraceError, match=said):
        replay(write(tmp_path, lose(run(3), 3, 9, 15)))


def test_times_that_begin_at_0_are_no_lost_times(tmp_path: Path) -> None:
    events = run(3)
    for event in events:
        event["ts"] -= 1000  # the first annotation begins at 0
    path = write(tmp_path, [*events, op("aten::detach", -1000, -1000)])
    assert load_trace(path).notes == [] and len(load_trace(path)) == 19


def test_traces_of_other_devices_are_refused_by_their_name(tmp_path: Path) -> None:
    events = run(3)
    for event in events:
        event["cat"] = event["cat"].replace("cuda", "xpu")
    path = write(tmp_path, events)
    said = r"trace\.json: traces of Intel GPUs \(xpu_runtime\) are not supported"
    for answer in (lambda: replay(path), lambda: movable_trace(path).to("V100")):
        with pytest.raises(TraceError, match=said):
            answer()
    assert len(load_trace(path))  # its events can be read


def test_a_trace_without_the_name_of_its_gpu_takes_a_given_one(tmp_path: Path) -> None:
    named = movable_trace(write(tmp_path, run(3), deviceProperties=V100)).to("T4").predicted_us
    mi300x = {"computeMajor": 9, "computeMinor": 4, "numSms": 304, "totalGlobalMem": 206 * 10**9}
    path = write(tmp_path, run(3), deviceProperties=[{"id": 0, "name": "", **mi300x}])
    said = r'trace\.json: the trace does not name its GPU: .*gpu="MI300X"\) \(the nearest'
    with pytest.raises(InputError, match=said):
        movable_trace(path).to("T4")
    assert movable_trace(path, gpu="V100").to("T4").predicted_us == named
    words = ["advise", "--trace", str(path), "gpu=V100", "--json"]
    assert CliRunner().invoke(codesign_commands.app, words).exit_code == 0
    with pytest.raises(UnknownNameError, match="unknown GPU 'V1000'"):
        movable_trace(path, gpu="V1000")


@pytest.mark.parametrize(
    "name, figures, near",
    [
        ("NVIDIA X", (9, 0, 110, 64), "H100-PCIe"),  # AMD's MI250X is 9.0 too, by another count
        ("NVIDIA A2", (8, 6, 10, 16), "NAME"),  # the A10 has seven times as many multiprocessors
        ("NVIDIA H2000", None, "H200"),
    ],
)
def test_an_unknown_name_comes_with_a_gpu_that_is_like_it(
    tmp_path: Path, name: str, figures: tuple[int, ...] | None, near: str
) -> None:
    keys = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
    stated = dict(zip(keys, (*figures[:3], figures[3] << 30), strict=True)) if figures else {}
    idle = {"id": 1, "name": "Tesla T4", **dict.fromkeys(keys, 7)}
    works = {"id": 0, "name": name, "warpSize": 32, **stated}
    path = write(tmp_path, run(3), deviceProperties=[idle, works])
    says = f'no GPU file has the name {name}: .*gpu="{near}"\\).*, .* gpu={near};.*give a file'
    with pytest.raises(InputError, match=says):
        movable_trace(path).to("T4")


def test_the_gpu_is_the_one_that_worked_also_where_ids_are_text(tmp_path: Path) -> None:
    events = run(3)
    for event in events:
        event["args"] |= {"device": "1"} if event["cat"] == "kernel" else {}
    two = [{"id": "0", "name": "Tesla T4"}, {"id": "1", "name": "Tesla P4"}]
    assert load_trace(write(tmp_path, events, deviceProperties=two)).device == "Tesla P4"


def test_streams_that_are_not_named_are_the_threads_of_the_gpu(tmp_path: Path) -> None:
    events = [op("aten::mm", 1, 21), launch(3, 5, 1), kernel("k0", 9, 29, 1), launch(6, 8, 2)]
    events.append(kernel("k1", 12, 20, 2, stream=8))
    for event in events:
        event["args"].pop("stream", None)
    assert sorted(activity(load_trace(write(tmp_path, events))).call_stream.tolist()) == [7, 8]
