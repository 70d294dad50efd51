"""The same run as older profilers, other exporters and edited files would show it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import TraceError
from pipeline.simulate.replay import replay
from pipeline.trace.load import load_trace
from tests.commands import Steptime
from tests.trace.trace_drawing import annotation, equal_steps, kernel, launch, op, write

Data = dict[str, Any]
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def complete(data: Data) -> list[Data]:
    return [event for event in data["traceEvents"] if event.get("ph") == "X"]


def without_flows(data: Data) -> None:
    data["traceEvents"] = complete(data)


def without_sync_details(data: Data) -> None:
    data["traceEvents"] = [
        event for event in data["traceEvents"] if event.get("cat") != "cuda_sync"
    ]


def without_external_ids(data: Data) -> None:
    for event in complete(data):
        event.get("args", {}).pop("External id", None)


def with_thread_names(data: Data) -> None:
    for event in data["traceEvents"]:
        if event.get("cat") not in DEVICE and "tid" in event:
            event["pid"], event["tid"] = f"python {event['pid']}", f"thread {event['tid']} (python)"


def with_a_base_time(data: Data) -> None:
    for event in data["traceEvents"]:
        if "ts" in event:
            event["ts"] -= 1_694_128_000_000_000
    data["baseTimeNanoseconds"] = 1_694_128_000_000_000_000


def by_the_driver(data: Data) -> None:
    for event in complete(data):
        if event["name"] == "cudaLaunchKernel":
            event["name"], event["cat"] = "cuLaunchKernel", "cuda_driver"


def by_forms_of_calls(data: Data) -> None:
    """Names as CUPTI has them, of a program in which each host thread has its own default stream."""
    for event in complete(data):
        if event.get("cat") == "cuda_runtime":
            event["name"] += "_ptsz_v7000" if "Async" in event["name"] else "_v3020"


def of_an_amd_gpu(data: Data) -> None:
    for event in complete(data):
        if event.get("cat") == "cuda_runtime":
            event["name"] = event["name"].replace("cuda", "hip")


def with_python_frames(data: Data) -> None:
    data["traceEvents"] += [
        {
            **event,
            "cat": "python_function",
            "name": "train.py(7): step",
            "args": {"Python id": number},
        }
        for number, event in enumerate(complete(data))
        if event.get("cat") == "cpu_op"
    ]


def without_some_operators(data: Data) -> None:
    rng = random.Random(0)
    data["traceEvents"] = [
        e for e in data["traceEvents"] if e.get("cat") != "cpu_op" or rng.random() > 0.05
    ]


def without_some_kernels(data: Data) -> None:
    rng = random.Random(0)
    data["traceEvents"] = [
        e for e in data["traceEvents"] if e.get("cat") not in DEVICE or rng.random() > 0.02
    ]


def with_a_late_device_clock(data: Data) -> None:
    for event in complete(data):
        if event.get("cat") in DEVICE:
            event["ts"] += 20


def predicted(
    datasets: Path, folder: Path, *changes: Callable[[Data], None]
) -> tuple[float, float]:
    """(predicted span, error) of rank 0 of the V100 DLRM from rank 1, after changes to rank 0's file."""
    source = datasets / "traces" / "v100x8_dlrm"
    data = json.loads(gzip.decompress((source / "rank0_kineto.json.gz").read_bytes()))
    for change in changes:
        change(data)
    path = folder / "odd.json"
    path.write_text(json.dumps(data))
    figures = replay(path, [source / "rank1_kineto.json.gz"]).as_dict()
    return figures["predicted_us"], figures["error"]


@pytest.fixture(scope="module")
def plain_us(datasets: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The predicted span without a change."""
    return predicted(datasets, tmp_path_factory.mktemp("plain"))[0]


SAME = [
    with_python_frames, without_flows, without_sync_details, with_thread_names, with_a_base_time,
    by_forms_of_calls,
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        (SAME, 1e-9),
        # launch overheads are kept per API: another API's name finds the statistics of all of them
        ([by_the_driver, of_an_amd_gpu], 0.03),
        # of ops that tie in whole microseconds ids tell which is the outer one
        ([without_external_ids], 0.003),
    ],
)
def test_a_disguise_changes_little_or_nothing(
    plain_us: float,
    datasets: Path,
    tmp_path: Path,
    changes: list[Callable[[Data], None]],
    tolerance: float,
) -> None:
    assert predicted(datasets, tmp_path, *changes)[0] == pytest.approx(plain_us, rel=tolerance)


@pytest.mark.parametrize(
    "changes",
    [(without_some_operators,), (without_some_kernels, with_a_late_device_clock)],
)
def test_a_damaged_trace_is_still_predicted_sanely(
    datasets: Path, tmp_path: Path, changes: tuple[Callable[[Data], None], ...]
) -> None:
    assert abs(predicted(datasets, tmp_path, *changes)[1]) < 0.10


def test_two_ranks_in_one_file_are_told_apart(
    plain_us: float, datasets: Path, tmp_path: Path
) -> None:
    """Events of the other rank are ignored: calls, stream waits, data loading, and kernels whose launches are missing."""

    def joined(data: Data) -> None:
        other = datasets / "traces" / "v100x8_dlrm" / "rank1_kineto.json.gz"
        data["traceEvents"] += json.loads(gzip.decompress(other.read_bytes()))["traceEvents"]

    assert predicted(datasets, tmp_path, joined)[0] == pytest.approx(plain_us, rel=1e-9)
    assert any("2 processes" in note for note in load_trace(tmp_path / "odd.json").notes)


@pytest.mark.parametrize("number", [-1, 2**40])
def test_any_whole_number_is_a_stream(tmp_path: Path, number: int) -> None:
    events = equal_steps(3)
    usual = replay(write(tmp_path, events)).as_dict()["predicted_us"]
    for event in events:
        if event["cat"] == "kernel":
            event["args"]["stream"] = event["tid"] = number
    assert replay(write(tmp_path, events)).as_dict()["predicted_us"] == pytest.approx(usual)


STEP = [op("aten::mm", 0, 20), launch(5, 7, 1), kernel("a", 10, 15, 1)]


def test_kernels_without_launch_find_none_in_another_process(tmp_path: Path) -> None:
    #   process 1  [mm L1 ]     process 2              [mm L2 ] ... [mm L11]       the launch of c, which has id 1 too, was lost
    #   device 0        [a--]   device 1      [c-]         [b--]        [b--]
    second = []
    for number in range(2, 12):
        at = 100 * number
        second += [
            {**op("aten::mm", at, at + 20), "pid": 2},
            {**launch(at + 5, at + 7, number), "pid": 2},
            on_device_1(kernel("b", at + 10, at + 15, number)),
        ]
    trace = load_trace(write(tmp_path, [*STEP, *second, on_device_1(kernel("c", 50, 55, 1))]))
    kernels = np.flatnonzero(trace.is_category("kernel"))
    launched = dict(zip(trace.names[kernels], trace.columns["launch"][kernels], strict=True))
    pid = trace.columns["pid"]
    assert launched["c"] == -1 and (pid[launched["a"]], pid[launched["b"]]) == (1, 2)


def on_device_1(event: Data) -> Data:
    return {**event, "args": {**event["args"], "device": 1}}


def test_a_process_that_only_loads_data_is_not_the_one_that_trains(tmp_path: Path) -> None:
    loader = [{**op("aten::stack", 10 * number, 10 * number + 5), "pid": 2} for number in range(5)]
    assert load_trace(write(tmp_path, [*loader, *STEP])).process == 1


def test_duplicates_are_dropped_but_not_short_calls_that_look_alike(tmp_path: Path) -> None:
    alike = [
        annotation("ProfilerStep#1", 0, 50),
        op("aten::detach", 5, 5),
        op("aten::detach", 5, 5),
    ]
    assert len(load_trace(write(tmp_path, alike))) == 3
    events = [op("aten::mm", 0, 20), launch(5, 7, 1), kernel("a", 30, 40, 1)]
    trace = load_trace(write(tmp_path, events + events))
    assert len(trace) == 3 and "3 duplicate events were dropped" in trace.notes[0]
    of_two_grids = [kernel("a", 30, 40, 1, grid=[blocks, 1, 1]) for blocks in (2, 3)]
    assert len(load_trace(write(tmp_path, [*events[:2], *of_two_grids]))) == 4


@pytest.mark.parametrize("encoding, told", [("utf-8-sig", None), ("utf-16", "UTF-16")])
def test_a_file_that_an_editor_saved_again_is_read_or_named(
    tmp_path: Path, encoding: str, told: str | None
) -> None:
    path = write(tmp_path, [op("aten::mm", 0, 20)])
    path.write_text(path.read_text(), encoding=encoding)
    if told is None:
        assert len(load_trace(path)) == 1
    else:
        with pytest.raises(TraceError, match=told):
            load_trace(path)


def test_a_trace_is_never_written_over(tmp_path: Path, steptime: Steptime) -> None:
    path = write(tmp_path, STEP)
    content, link = path.read_bytes(), tmp_path / "link.json"
    link.symlink_to(path)
    for words in (("trace", path, "--out", path), ("replay", path, "--timeline", link)):
        code, _, err = steptime(*words)
        assert code == 2 and "give another" in err
        assert path.read_bytes() == content
