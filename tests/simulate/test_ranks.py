"""Which steps of several ranks' traces are replayed together, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError, TraceError
from pipeline.simulate.rank_replay import facts, replay_ranks, table
from pipeline.simulate.replay import replay
from tests.trace.trace_drawing import annotation, api, kernel, launch, op, write


def rank(
    folder: Path,
    numbers: list[int],
    shift: float = 0.0,
    marker: str = "ProfilerStep#",
    collective: str = "ncclKernel_AllReduce",
    wait: float = 0.0,
    **metadata: Any,
) -> Path:
    """Steps of 200 us, number n at 200 n: an op that computes for 10 + n us and takes part in a collective of 5 us."""
    events: list[dict[str, Any]] = []
    for n in numbers:
        at, ids = 200 * n + shift, 2 * n + 1
        events += [
            annotation(f"{marker}{n}" if marker.endswith("#") else marker, at, at + 190),
            op("aten::mm", at + 1, at + 40),
            launch(at + 4, at + 6, ids),
            kernel("gemm", at + 9, at + 19 + n, ids),
            launch(at + 30, at + 32, ids + 1),
            kernel(collective, at + 50, at + 55 + wait, ids + 1, stream=20),
        ]
    folder.mkdir()
    return write(folder, events, **metadata)


def test_ranks_are_compared_in_the_last_step_that_all_of_them_hold(tmp_path: Path) -> None:
    paths = [rank(tmp_path / "a", [3, 4, 5]), rank(tmp_path / "b", [2, 3, 4])]
    results = replay_ranks(paths)
    # step 4, not the last of each
    assert [r.iteration.kernel_us.tolist() for r in results] == [[14, 5]] * 2
    said = facts(paths, results)
    assert said["overheads"]["T4"]["count"] == 12 and said["overheads"]["T4"]["mean_us"] == 2


def test_ranks_without_a_step_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no step in common \(.*a/trace.json holds 2, 3; .*b/trace.json holds 5"
    ):
        replay_ranks([rank(tmp_path / "a", [2, 3]), rank(tmp_path / "b", [5])])


def test_unnumbered_steps_must_at_least_overlap_in_time(tmp_path: Path) -> None:
    mark = "Optimizer.zero_grad#SGD.zero_grad"
    first, second, late = (
        rank(tmp_path / name, [0, 1, 2], shift, mark)
        for name, shift in (("a", 0), ("b", 8), ("c", 900))
    )
    assert len(replay_ranks([first, second])) == 2
    with pytest.raises(InputError, match=r"do not overlap in\s+time"):
        replay_ranks([first, late])


@pytest.mark.parametrize(
    "collective",
    [
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclSendRecvKernel_copy_i8(ncclColl)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_LDMC_STMC_sum_bf16(ncclSymkDevWorkArgs4K)",
    ],
)
def test_a_collective_of_any_age_ends_for_all_ranks_at_once(
    tmp_path: Path, collective: str
) -> None:
    """Rank a waits 30 us for b inside its collective, b's takes 5 us: both take 5 us once they are there."""
    paths = [
        rank(tmp_path / "a", [1, 2], 0, collective=collective, wait=30),
        rank(tmp_path / "b", [1, 2], 30, collective=collective),
    ]
    results = replay_ranks(paths)
    ends = [r.timeline.device_end[1, 0] + begin for r, begin in zip(results, (0, 30), strict=True)]
    assert ends[0] == pytest.approx(ends[1])
    assert [r.communication_us for r in results] == pytest.approx([35.0, 5.0])


def test_ranks_with_other_collectives_are_refused_by_name(tmp_path: Path) -> None:
    paths = [
        rank(tmp_path / "a", [2]),
        rank(tmp_path / "b", [2], collective="ncclKernel_AllGather"),
    ]
    said = r"b/trace.json takes part in 1 collectives ncclKernel_AllGather, .*a/trace.json in 0"
    with pytest.raises(InputError, match=said):
        replay_ranks(paths)


def test_what_is_odd_about_a_rank_is_told(tmp_path: Path) -> None:
    paths = [
        rank(tmp_path / name, [2, 3], distributedInfo={"rank": at, "world_size": 8})
        for at, name in enumerate("ab")
    ]
    events = json.loads(paths[1].read_text())
    events["traceEvents"].append(kernel("lost", 650, 655, 999))
    paths[1].write_text(json.dumps(events))
    said = facts(paths, replay_ranks(paths))
    assert "rank 1: 1 of 5 device events have no launch in the trace" in said["notes"]
    assert not any(note.startswith("rank 0") and "launch" in note for note in said["notes"])
    assert any("traces of 2 of the job's 8 ranks are given" in note for note in said["notes"])
    assert "no launch in the trace" in str(table(said).caption)


def test_a_copy_of_a_rank_is_no_other_rank(tmp_path: Path) -> None:
    paths = [
        rank(tmp_path / name, [2], distributedInfo={"rank": 3, "world_size": 8}) for name in "ab"
    ]
    with pytest.raises(InputError, match=r"are the same trace of rank 3"):
        replay_ranks(paths)


def test_launches_whose_kernels_the_profiler_lost_are_no_cpu_run(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#0", 0, 90),
        op("aten::mm", 1, 40),
        launch(4, 6, 1),
        api("cudaDeviceSynchronize", 41, 60, 2),
    ]
    with pytest.raises(TraceError, match=r"1 kernel launches, but no GPU events"):
        replay(write(tmp_path, events))
