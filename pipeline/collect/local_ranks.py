"""Steps and collectives of several processes on this machine's CPU, which exchange by gloo.

A process is a rank, with one thread. All of them start from one task, meet in a file, and speak over the loopback
interface. A process whose parent has died ends itself.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.device import CPU_THREADS
from pipeline.errors import MeasurementError, SteptimeError
from pipeline.schemas import DIMS, SCHEMAS

if TYPE_CHECKING:
    import torch

LIMIT_S = 900.0
"""Seconds after which ranks that have not finished are ended."""

MODULE = "pipeline.collect.local_ranks"

TASK, RESULT, MEETING = "task.json", "result.json", "meeting"
"""Files of a run: what to do, what the first rank measured, where the ranks meet."""

LOOPBACK = Path("/sys/class/net/lo")
"""Present where Linux has a loopback interface of this name; elsewhere gloo chooses one."""

SIZES = tuple(4 << shift for shift in range(8, 25, 2))
"""Bytes of the buffers that are measured beside those of the step: 1 KiB to 64 MiB."""

COLLECTIVES = f"{MODULE}:timed_collectives"

REPETITIONS = 15
"""Timed runs of a collective; the median counts."""


def run_ranks(work: str, task: Mapping[str, Any], ranks: int, limit_s: float = LIMIT_S) -> Any:
    """What the first of several processes measures. None of them is left when this returns or raises.

    Args:
        work: `module:function`, which each process calls with the task, in a group of all of them.
        task: values that JSON can hold.
        ranks: number of processes.
        limit_s: seconds after which they are ended.

    Raises:
        MeasurementError: a process failed or took too long; the message says which, and why.
    """
    with tempfile.TemporaryDirectory(prefix="steptime_ranks_") as scratch:
        folder = Path(scratch)
        (folder / TASK).write_text(
            json.dumps({"work": work, "ranks": ranks, "task": task}), encoding="utf-8"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if LOOPBACK.exists():
            environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                with (folder / f"{rank}.log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-P", "-m", MODULE, scratch, str(rank)],
                            stdin=subprocess.PIPE,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            env=environment,
                        )
                    )
            wait_for_ranks(processes, folder, time.monotonic() + limit_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def wait_for_ranks(
    processes: Sequence[subprocess.Popen[bytes]], folder: Path, until: float
) -> None:
    """Wait until all processes have ended well.

    Raises:
        MeasurementError: one has not.
    """
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:  # the first one is the cause of the others' errors
            rank = min(failed, key=lambda rank: _failed_ns(folder, rank))
            raise MeasurementError(
                f"rank {rank} of {len(processes)} on this CPU: {_reason(codes[rank], folder, rank)}"
            )
        if None not in codes:
            return
        if time.monotonic() > until:
            raise MeasurementError(
                f"{len(processes)} ranks on this CPU did not finish in time; take a smaller"
                " batch_size"
            )
        time.sleep(0.05)


def _failed_ns(folder: Path, rank: int) -> int:
    """When a rank failed, by the clock that all processes share; 0 for one that was ended before it could say so."""
    file = folder / f"{rank}.failed"
    return int(file.read_text(encoding="utf-8") or 0) if file.is_file() else 0


def _reason(code: int | None, folder: Path, rank: int) -> str:
    if code is not None and code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = (
        (folder / f"{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    )
    return lines[-1][:300] if lines else f"exit code {code}"


def measure_collectives(calls: Sequence[pd.DataFrame], ranks: Sequence[int]) -> pd.DataFrame:
    """Times of the collectives of several tables of calls, and of other sizes, between processes on this CPU.

    Args:
        calls: tables of the `calls` schema.
        ranks: number of processes of each.

    Returns:
        Rows of the `samples` schema; none if no table has a collective.
    """
    names = ["op", "phase", "dtype", "bytes"]
    tables = [
        table.loc[table["family"] == "collective", names].assign(ranks=count)
        for table, count in zip(calls, ranks, strict=True)
    ]
    of_steps = pd.concat(tables).drop_duplicates()
    parts = []
    for count, part in of_steps.groupby("ranks"):
        kinds = part[["op", "phase", "dtype"]].drop_duplicates()
        asked = pd.concat(
            [
                part[["op", "bytes"]],
                kinds[["op"]].merge(pd.Series(SIZES, name="bytes"), how="cross"),
            ]
        )
        cases = sorted({(str(op), int(size)) for op, size in asked.itertuples(index=False)})
        times = pd.DataFrame(cases, columns=["op", "bytes"])
        times["latency_us"] = run_ranks(COLLECTIVES, {"cases": cases}, int(part["ranks"].iloc[0]))
        parts.append(kinds.merge(times, on="op").assign(ranks=count))
    rows = (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=[*names, "ranks", "latency_us"])
    )
    rows = rows.assign(
        family="collective",
        nodes=1,
        kernel_us=rows["latency_us"],
        gpu="local",
        source="collect",
        campaign_id="local",
    )
    return rows.reindex(columns=SCHEMAS["samples"].names).astype(dict.fromkeys(DIMS, "Int64"))


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: its end of the pipe is closed then."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def timed_collectives(task: Mapping[str, Any]) -> list[float]:
    """Median time of each collective of a task, µs."""
    import torch
    import torch.distributed as dist

    medians = []
    for op, size in task["cases"]:
        buffer = torch.zeros(max(1, size // 4))
        times = []
        for _ in range(REPETITIONS + 2):
            dist.barrier()
            begin = time.perf_counter()
            _run(op, buffer)
            times.append((time.perf_counter() - begin) * 1e6)
        medians.append(statistics.median(times[2:]))
    return medians


def _run(op: str, buffer: torch.Tensor) -> None:
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    if op == "broadcast":
        dist.broadcast(buffer, 0)
    elif op == "all_gather":
        dist.all_gather([torch.empty_like(buffer) for _ in range(ranks)], buffer)
    else:
        dist.all_reduce(buffer)


def main(folder: str, rank: str) -> None:
    """One rank: `python -m pipeline.collect.local_ranks FOLDER RANK`."""
    _end_with_parent()
    code = 1
    try:
        _take_part(Path(folder), int(rank))
        code = 0
    except BaseException as error:  # the last line is the reason that `run_ranks` gives
        (Path(folder) / f"{rank}.failed").write_text(str(time.monotonic_ns()), encoding="utf-8")
        text = " ".join(str(error).split())
        if not isinstance(error, SteptimeError):
            traceback.print_exc()
            text = f"{type(error).__name__}: {text}"
        print(text, flush=True)
    finally:
        os._exit(code)  # gloo's threads may wait for ranks that are gone, or abort


def _take_part(folder: Path, rank: int) -> None:
    """Do the task in a group of all ranks; the first one writes what it measured."""
    import torch
    import torch.distributed as dist

    asked = json.loads((folder / TASK).read_text(encoding="utf-8"))
    torch.set_num_threads(CPU_THREADS)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / MEETING}",
        rank=rank,
        world_size=asked["ranks"],
        timeout=timedelta(seconds=LIMIT_S),
    )
    module, _, function = asked["work"].partition(":")
    measured = getattr(importlib.import_module(module), function)(asked["task"])
    if rank == 0:
        (folder / RESULT).write_text(json.dumps(measured), encoding="utf-8")
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
