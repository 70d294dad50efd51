"""Reading and linking profiler traces."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import TraceError
from pipeline.trace import file_scan as scan
from pipeline.trace.load import load_trace
from tests.trace.trace_drawing import (
    AUTOGRAD,
    annotation,
    api,
    equal_steps,
    kernel,
    launch,
    op,
    trace,
    write,
)

#            0    5    10   15   20   25
#   main     [aten::linear      ]
#             [aten::addmm     ]
#                 L0
#   s7                [gemm   ]
STEP = [
    op("aten::linear", 0, 20),
    op("aten::addmm", 1, 19),
    launch(5, 8, 1),
    kernel("gemm", 10, 22, 1),
]


def test_a_kernel_is_linked_to_its_launch_and_the_ops_around_it(tmp_path: Path) -> None:
    loaded = load_trace(write(tmp_path, STEP))
    events = loaded.events.set_index("name")
    assert events.loc["gemm", "launch"] == events.loc["cudaLaunchKernel", "event_id"]
    assert events.loc["gemm", "op"] == events.loc["aten::addmm", "event_id"]
    assert events.loc["gemm", "top"] == events.loc["aten::linear", "event_id"]
    assert events.loc["aten::addmm", "parent"] == events.loc["aten::linear", "event_id"]
    assert loaded.device == "Test GPU"


def test_the_order_of_events_in_the_file_does_not_matter(tmp_path: Path) -> None:
    expected = load_trace(write(tmp_path, STEP)).events
    shuffled = STEP.copy()
    random.Random(1).shuffle(shuffled)
    found = load_trace(write(tmp_path, shuffled)).events
    assert expected.astype(object).equals(found.astype(object))


@pytest.mark.parametrize("window", [64, 1000])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_window_of_the_reader_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, indent: int | None
) -> None:
    path = tmp_path / "trace.json"
    later = [{**event, "ts": event["ts"] + 50 * number} for number in range(20) for event in STEP]
    path.write_text(json.dumps(json.loads(trace(later)), indent=indent))
    monkeypatch.setattr(scan, "WINDOW_BYTES", window)
    assert len(load_trace(path)) == 80


@pytest.mark.parametrize(
    ("stamp", "before", "behind", "expected"),
    [
        ("1712195495505582", "", "", 1712195495505582000),
        ("1712195495505582.988", "", "", 1712195495505582988),  # a float would round this to .0
        ("12.345", "", ', "baseTimeNanoseconds": 1712195495000000000', 1712195495000012345),
        ("12.345", '"baseTimeNanoseconds": 1712195495000000000, ', "", 1712195495000012345),
    ],
)
def test_stamps_become_exact_nanoseconds(
    tmp_path: Path, stamp: str, before: str, behind: str, expected: int
) -> None:
    event = json.dumps({**STEP[0], "ts": "STAMP"}).replace('"STAMP"', stamp)
    path = tmp_path / "t.json"
    path.write_text(f'{{{before}"traceEvents": [{event}]{behind}}}')
    assert load_trace(path).columns["ts_ns"].tolist() == [expected]


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(trace(STEP)))
    assert len(load_trace(path)) == 4


def test_amd_and_driver_launches_count_as_launches(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 30),
        api("hipExtModuleLaunchKernel", 2, 4, 1),
        kernel("Cijk_Ailk", 6, 9, 1),
        {**api("cuLaunchKernel", 12, 14, 2), "cat": "cuda_driver"},
        kernel("triton_0", 16, 18, 2),
    ]
    loaded = load_trace(write(tmp_path, events))
    assert (loaded.columns["launch"] >= 0).sum() == 2


@pytest.mark.parametrize(
    ("launched", "ran", "linked"), [(2**64 - 1, 2**64 - 1, 1), (2**70, 2**70 + 1, 0)]
)
def test_ids_of_64_bits_link_and_larger_ones_never_by_accident(
    tmp_path: Path, launched: int, ran: int, linked: int
) -> None:
    events = [op("aten::mm", 0, 30), launch(2, 4, launched), kernel("k", 6, 9, ran)]
    loaded = load_trace(write(tmp_path, events))
    assert (loaded.columns["launch"] >= 0).sum() == linked
    assert any("64-bit" in note for note in loaded.notes) == (not linked)


def test_of_launches_with_one_id_the_latest_before_the_kernel_is_taken(tmp_path: Path) -> None:
    again = [{**event, "ts": event["ts"] + 30} for event in STEP]
    loaded = load_trace(write(tmp_path, [*STEP, *again]))
    launches = loaded.columns["launch"][loaded.is_category("kernel")]
    assert np.diff(loaded.columns["ts_ns"][launches]).tolist() == [30_000]


def test_doubtful_links_are_told(tmp_path: Path) -> None:
    #  main  [mm L1 L2 L2]     k1 begins 6 us before L1; two calls carry id 2
    events = [
        op("aten::mm", 0, 40),
        launch(10, 12, 1),
        launch(15, 17, 2),
        kernel("k2", 25, 30, 2),
    ]
    doubtful = [*events, kernel("k1", 4, 9, 1), launch(20, 22, 2)]
    early, shared = load_trace(write(tmp_path, doubtful)).notes
    assert early.startswith("1 of 2 device events begin before their launch")
    assert shared.startswith("1 of 2 device events have a correlation id that several calls have")
    assert not load_trace(write(tmp_path, [*events, kernel("k1", 9, 14, 1)])).notes


def test_a_machine_with_gpus_whose_work_is_not_recorded_is_told(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 40)]
    assert "lists GPUs but has no events of them" in load_trace(write(tmp_path, events)).notes[0]
    assert not load_trace(write(tmp_path, events, deviceProperties=[])).notes


def test_negative_durations_count_as_zero_and_are_reported(tmp_path: Path) -> None:
    loaded = load_trace(write(tmp_path, [op("aten::a", 5, 3)]))
    assert loaded.columns["dur_ns"].tolist() == [0]
    assert "negative" in loaded.notes[0]


def test_names_with_control_characters_quotes_and_bad_utf8_are_mended(tmp_path: Path) -> None:
    raw = trace(STEP).replace(b"aten::linear", b'operator "x" \x01 \xff \\d')
    path = tmp_path / "t.json"
    path.write_bytes(raw)
    loaded = load_trace(path)
    assert len(loaded) == 4
    assert any("not valid JSON" in note for note in loaded.notes)


@pytest.mark.parametrize("number", ["-nan", "inf", "Infinity"])
def test_what_is_no_number_in_an_argument_is_read_past(tmp_path: Path, number: str) -> None:
    path = write(tmp_path, STEP)
    text = path.read_text().replace('"device": 0', f'"blocks per SM": {number}, "device": 0')
    path.write_text(text)
    assert list(load_trace(path).names) == [event["name"] for event in STEP]


def test_phases_follow_annotations_and_backward_wrappers(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 5),
        op("aten::mse_loss", 6, 9),
        op("autograd::engine::evaluate_function: MmBackward0", 10, 20, AUTOGRAD),
        op("aten::mm", 12, 18, AUTOGRAD),
        annotation("Optimizer.step#SGD.step", 30, 40),
        op("aten::add_", 31, 35),
        op("c10d::allreduce_", 50, 55),
    ]
    loaded = load_trace(write(tmp_path, events))
    phases = "forward loss backward backward optimizer optimizer communication"
    assert list(loaded.events["phase"]) == phases.split()


def test_waiting_for_the_loader_is_outside_every_iteration(tmp_path: Path) -> None:
    #   0        10       20                    50     60
    #   [loader]  a  zero  b  [loader..........] a zero b [loader]
    loader = "enumerate(DataLoader)#_Iter.__next__"
    events = [
        annotation(loader, 0, 8),
        op("aten::a", 10, 12),
        annotation("Optimizer.zero_grad#SGD", 13, 14),
        annotation(loader, 20, 50),
        op("aten::a", 52, 54),
        annotation("Optimizer.zero_grad#SGD", 55, 56),
        annotation(loader, 60, 61),
    ]
    iterations = load_trace(write(tmp_path, events)).iterations
    assert iterations["start_ns"].tolist() == [1008_000, 1050_000]
    assert iterations["end_ns"].tolist() == [1020_000, 1060_000]


def test_a_trace_without_marker_is_one_iteration(tmp_path: Path) -> None:
    loaded = load_trace(write(tmp_path, STEP))
    assert len(loaded.iterations) == 1 and set(loaded.columns["iteration"]) == {0}


def old_spelling(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events as PyTorch 1.8 wrote them: everything that the host ran is an operator."""
    old = {"cuda_runtime": "Runtime", "kernel": "Kernel"}
    old |= dict.fromkeys(("cpu_op", "user_annotation"), "Operator")
    return [{**event, "cat": old[event["cat"]]} for event in events]


def test_steps_that_old_profilers_call_operators_are_steps(tmp_path: Path) -> None:
    new = load_trace(write(tmp_path, equal_steps(2)))
    old = load_trace(write(tmp_path, old_spelling(equal_steps(2))))
    assert old.marker == "ProfilerStep" and old.iterations.equals(new.iterations)
    for column in ("category", "top", "op", "iteration"):
        assert list(old.events[column].astype(object)) == list(new.events[column].astype(object))


@pytest.mark.parametrize("place", [0, 25, 55])
def test_one_zero_grad_bounds_no_step_wherever_it_stands(tmp_path: Path, place: int) -> None:
    #   0     2    12      30                 40      55
    #   (zero) [mm ] (zero) [backward of mm   ]       (zero)
    events = [
        op("aten::mm", 2, 12),
        annotation("Optimizer.zero_grad#SGD.zero_grad", place, place + 1),
        op("autograd::engine::evaluate_function: MmBackward0", 30, 40, AUTOGRAD),
    ]
    loaded = load_trace(write(tmp_path, events))
    assert loaded.marker == "" and set(loaded.columns["iteration"]) == {0}
    assert any("mark steps with profiler.step()" in note for note in loaded.notes)


def test_optimizers_that_are_cleared_together_open_one_step(tmp_path: Path) -> None:
    #   0   4    8   12    20
    #   zero zero [mm ] [backward]      ... 100 us later again
    events = []
    for at in (0, 100, 200):
        events += [
            annotation("Optimizer.zero_grad#SGD.zero_grad", at, at + 3),
            op("aten::zero_", at + 1, at + 2),
            annotation("Optimizer.zero_grad#SparseAdam.zero_grad", at + 4, at + 7),
            op("aten::zero_", at + 5, at + 6),
            op("aten::mm", at + 8, at + 12),
            op("autograd::engine::evaluate_function: MmBackward0", at + 14, at + 20, AUTOGRAD),
        ]
    iterations = load_trace(write(tmp_path, events)).iterations
    assert iterations["start_ns"].tolist() == [1000_000, 1100_000]
    assert iterations["end_ns"].tolist() == [1100_000, 1200_000]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b'{"nodes": []}', "execution trace"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"traceEvents": [{"ph": "X"}', "truncated"),
        (b'{"traceEvents": [1]}', "traceEvents[0] is not an object"),
        (trace([{**STEP[0], "ts": "now"}]), "traceEvents[0] has a ts that is not a number"),
        (trace([STEP[1], {**STEP[0], "ts": 1e300}]), "traceEvents[1] has a ts that is not a time"),
        (trace([{**STEP[0], "name": 5}]), "has a name that is not text"),
        (trace([{**STEP[0], "args": [1]}]), "args that are not an object"),
        (trace(STEP, baseTimeNanoseconds="x"), "baseTimeNanoseconds"),
        (trace(STEP)[:-1], "truncated"),
    ],
)
def test_a_damaged_file_is_refused_with_file_and_place(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    said = str(caught.value)
    assert says in said and str(path) in said and "\n" not in said


def test_a_trace_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    raw = trace(STEP)
    path = tmp_path / "t.json"
    for length in range(0, len(raw), 3):
        path.write_bytes(raw[:length])
        with pytest.raises(TraceError):
            load_trace(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load_trace(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="folder"):
        load_trace(tmp_path)


def test_an_op_and_the_one_inside_it_may_tie_in_whole_microseconds(tmp_path: Path) -> None:
    #   main     [aten::to      ]
    #            [aten::_to_copy]   the ids tell which began first, whatever the names and the order in the file
    events = [
        op("aten::_to_copy", 0, 20, **{"External id": 6}),
        op("aten::to", 0, 20, **{"External id": 5}),
    ]
    linked = load_trace(write(tmp_path, events))
    assert [linked.names[top] for top in linked.columns["top"]] == ["aten::to", "aten::to"]
