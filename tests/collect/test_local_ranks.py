"""Processes on this machine's CPU that exchange by gloo: what they measure, and what is left when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import psutil
import pytest

from pipeline.collect.local_ranks import (
    MODULE,
    SIZES,
    measure_collectives,
    run_ranks,
    wait_for_ranks,
)
from pipeline.collect.measured_steps import collect_step
from pipeline.errors import MeasurementError
from pipeline.graph.capture import read_recorded_step
from pipeline.graph.device_calls import map_calls
from pipeline.question.question import expand
from pipeline.workloads import make_step

HERE = "tests.collect.test_local_ranks"


def of_rank(task: Mapping[str, float]) -> dict[str, float]:
    """The sum of all ranks' numbers, as the first one computes it."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return {"sum": float(total), "ranks": dist.get_world_size(), "given": task["given"]}


def failing(task: Mapping[str, int]) -> None:
    """One rank fails in its own way; the others wait for it."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == task["rank"]:
        if "signal" in task:
            os.kill(os.getpid(), task["signal"])
        raise ValueError("a bad step")
    dist.all_reduce(torch.zeros(1))
    time.sleep(600)


def left() -> list[psutil.Process]:
    """Ranks of this process that are still there."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if MODULE in _words(process)
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.fixture(autouse=True)
def project_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))


def test_ranks_speak_with_each_other_and_the_first_one_answers() -> None:
    assert run_ranks(f"{HERE}:of_rank", {"given": 0.5}, 2) == {"sum": 3.0, "ranks": 2, "given": 0.5}
    assert left() == []


@pytest.mark.parametrize("times, first", [({0: 20, 1: 10}, 1), ({0: 10, 1: 20}, 0), ({0: 10}, 1)])
def test_of_ranks_that_have_ended_the_first_to_fail_is_named(
    tmp_path: Path, times: dict[int, int], first: int
) -> None:
    """Both have ended when they are looked at; a rank without a time was ended before it could note it."""
    for rank in (0, 1):
        (tmp_path / f"{rank}.log").write_text(f"reason {rank}\n")
    for rank, time_ns in times.items():
        (tmp_path / f"{rank}.failed").write_text(str(time_ns))
    ended = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]) for _ in range(2)]
    assert [process.wait() for process in ended] == [1, 1]
    with pytest.raises(MeasurementError, match=f"rank {first} of 2 on this CPU: reason {first}"):
        wait_for_ranks(ended, tmp_path, time.monotonic() + 60)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"rank": 1}, "rank 1 of 2 on this CPU: ValueError: a bad step"),
        ({"rank": 0, "signal": signal.SIGKILL}, "rank 0 of 2 .* SIGKILL"),
    ],
)
def test_a_rank_that_fails_is_named_in_one_line_and_takes_the_others_with_it(
    task: dict[str, int], said: str
) -> None:
    with pytest.raises(MeasurementError, match=said) as refused:
        run_ranks(f"{HERE}:failing", task, 2)
    assert "\n" not in str(refused.value) and left() == []


def test_ranks_that_take_too_long_are_ended() -> None:
    with pytest.raises(MeasurementError, match="2 ranks on this CPU did not finish in time"):
        run_ranks(f"{HERE}:failing", {"rank": 5}, 2, limit_s=1.0)
    assert left() == []


def test_ranks_end_when_the_process_that_started_them_is_killed() -> None:
    program = (
        f"from pipeline.collect.local_ranks import run_ranks; run_ranks('{HERE}:failing', {{'rank':"
        " 5}, 2)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        for _ in range(600):
            if (
                len(
                    ranks := [
                        p for p in psutil.Process(parent.pid).children() if MODULE in _words(p)
                    ]
                )
                == 2
            ):
                break
            time.sleep(0.05)
        time.sleep(1.0)  # they have read their task
        parent.kill()
    gone, alive = psutil.wait_procs(ranks, timeout=60)
    assert len(gone) == 2 and alive == []


def test_collectives_of_a_step_are_measured_at_its_sizes_and_others() -> None:
    calls = pd.DataFrame(
        {
            "family": ["gemm", "collective", "collective"],
            "op": ["linear", "all_reduce", "broadcast"],
            "phase": ["forward", "backward", "forward"],
            "dtype": ["fp32", "fp32", "int64"],
            "bytes": pd.array([None, 5000, 160], "Int64"),
        }
    )
    rows = measure_collectives([calls, calls[:1]], [2, 1])
    assert set(rows["op"]) == {"all_reduce", "broadcast"} and rows["latency_us"].gt(0).all()
    assert set(rows.loc[rows["op"] == "all_reduce", "bytes"]) == {5000, *SIZES}
    assert set(zip(rows["op"], rows["phase"], rows["dtype"], strict=True)) == {
        ("all_reduce", "backward", "fp32"),
        ("broadcast", "forward", "int64"),
    }
    assert set(rows["ranks"]) == {2}
    assert measure_collectives([calls[:1]], [1]).empty


def test_a_step_of_two_ranks_is_timed_and_its_exchange_is_in_the_graph(tmp_path: Path) -> None:
    asked = [
        "gpu=local",
        "model=dlrm_small",
        "model.embedding=dense",
        "model.rows=1000",
        "batch_size=16",
        "devices=2",
    ]
    (question,) = expand(asked)
    config = question.section("model")
    collect_step(
        config,
        16,
        "cpu",
        tmp_path,
        iterations=2,
        seconds=0.3,
        ranks=2,
        model="dlrm_small",
        variant=question.variant,
    )
    row = pd.read_parquet(tmp_path / "step_times.parquet").iloc[0]
    assert row["step_us"] > 0 and row["count"] >= 4 and json.loads(row["config"])["clock"] == "wall"
    graph = read_recorded_step(tmp_path / "execution_trace.json.gz", config, 16)
    calls = map_calls(graph, question.gpu, graph.device)
    exchanged = calls[(calls["family"] == "collective") & (calls["op"] == "all_reduce")]
    weights = sum(
        parameter.nbytes for parameter in make_step(config, 16, "meta").modules[0].parameters()
    )
    assert exchanged["bytes"].sum() == weights, "each gradient is exchanged once"
    assert not exchanged["blocking"].any() and set(exchanged["stream"]) == {1}
    assert calls.loc[calls["family"] == "gemm", "api"].eq("cpu").all()
    assert left() == []
