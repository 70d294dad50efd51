"""Which steps of several ranks' traces are replayed together, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_drawing import annotation, api, kernel, launch, op, write

from pipeline.errors import InputError, TraceError
from pipeline.predict.rank_report import facts
from pipeline.predict.ranks import replay_ranks
from pipeline.predict.replay import replay


def rank(folder: Path, numbers: list[int], shift: float = 0.0, marker: str = "ProfilerStep#") -> Path:
    """Steps of 200 us, number n at 200 n: an op that computes for 10 + n us and takes part in a collective of 5 us."""
    events: list[dict[str, Any]] = []
    for n in numbers:
        at, ids = 200 * n + shift, 2 * n + 1
        events += [
            annotation(f"{marker}{n}" if marker.endswith("#") else marker, at, at + 190), op("aten::mm", at + 1, at + 40),
            launch(at + 4, at + 6, ids), kernel("gemm", at + 9, at + 19 + n, ids),
            launch(at + 30, at + 32, ids + 1), kernel("ncclKernel_AllReduce", at + 50, at + 55, ids + 1, stream=20),
        ]  # fmt: skip
    folder.mkdir()
    return write(folder, events)


def test_ranks_are_compared_in_the_last_step_that_all_of_them_hold(tmp_path: Path) -> None:
    paths = [rank(tmp_path / "a", [3, 4, 5]), rank(tmp_path / "b", [2, 3, 4])]
    results = replay_ranks(paths)
    assert [r.iteration.kernel_us.tolist() for r in results] == [[14, 5], [14, 5]]  # step 4, not the last of each
    said = facts(paths, results)
    assert said["overheads"]["T4"]["count"] == 12 and said["overheads"]["T4"]["mean_us"] == 2


def test_ranks_without_a_step_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no step in common \(.*a/trace.json holds 2, 3; .*b/trace.json holds 5"):
        replay_ranks([rank(tmp_path / "a", [2, 3]), rank(tmp_path / "b", [5])])


def test_unnumbered_steps_must_at_least_overlap_in_time(tmp_path: Path) -> None:
    mark = "Optimizer.zero_grad#SGD.zero_grad"
    first, second, late = (
        rank(tmp_path / name, [0, 1, 2], shift, mark) for name, shift in (("a", 0), ("b", 8), ("c", 900))
    )
    assert len(replay_ranks([first, second])) == 2
    with pytest.raises(InputError, match=r"do not overlap in\s+time"):
        replay_ranks([first, late])


def test_launches_whose_kernels_the_profiler_lost_are_no_cpu_run(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#0", 0, 90), op("aten::mm", 1, 40), launch(4, 6, 1),
              api("cudaDeviceSynchronize", 41, 60, 2)]  # fmt: skip
    with pytest.raises(TraceError, match=r"1 launches of kernels, but no work of a GPU"):
        replay(write(tmp_path, events))
