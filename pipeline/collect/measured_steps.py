"""A training step on this machine's device: unprofiled step times, a profiler trace, an execution trace.

Unprofiled and profiled passes take turns, so that a machine that is busy for a while disturbs both alike. The step time
is the median interval between steps that run freely (no synchronisation between them): the throughput of training. On a
CPU, steps during which another process held the core are left out (on a machine that is never free, their CPU time is
taken instead; `clock` in the row's `config` says so); the trace kept is the least disturbed one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.campaign_folder import STEP_TIMES
from pipeline.collect.device import (
    describe,
    fix_threads,
    gpu_state,
    keep_memory_mapped,
    release,
    select_device,
    set_tf32,
)
from pipeline.collect.step_timing import Step, StepTimes, step_times_row, time_steps, warm_up
from pipeline.collect.tracing import Profile, execution_trace, profile_steps, write_gzip
from pipeline.collect.unsupported import running
from pipeline.errors import MeasurementError
from pipeline.paths import EXECUTION_TRACE, KINETO
from pipeline.schemas import write_table
from pipeline.workloads import make_step

if TYPE_CHECKING:
    import torch

ROUNDS = 3
"""Passes of each kind; the trace kept is the one with the shortest median step."""
MOST_ROUNDS, DISTURBED = 6, 1.25
"""More profiled passes are made while the best one's step is this much longer than the unprofiled step."""


def collect_step(
    config: Mapping[str, Any],
    batch_size: int,
    device: str | None = "auto",
    out_dir: str | Path = ".",
    *,
    iterations: int = 10,
    seconds: float = 20.0,
    gpu: str = "local",
    model: str | None = None,
    variant: str = "default",
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Run, time and profile a training step.

    Args:
        config: a model's configuration (`config/model/<name>.yaml` after overrides).
        batch_size: samples per step.
        device: "cuda", "cpu", or "auto".
        out_dir: folder for `kineto.json.gz` (steps between `ProfilerStep#k` marks, with shapes),
            `execution_trace.json.gz` (one step; its times are slowed by the observer) and `step_times.parquet`.
        iterations: profiled steps in the trace.
        seconds: time for the unprofiled steps of all rounds; profiling comes on top.
        gpu: `gpu` column of the step-times row.
        model: its `model` column; the config's name where it is not given.
        variant: its `variant` column.
        provenance: what asked for the measurement, kept in the table's metadata beside the device.

    Raises:
        InputError: there is no such device, or the config is wrong.
        UnsupportedByDeviceError: the device cannot run an operator of the step in its dtype.
        MeasurementError: the step fails on this device, or the profiler records no step.
    """
    place, folder = select_device(device), Path(out_dir)
    threads = fix_threads(place)
    keep_memory_mapped()
    set_tf32(str(config.get("dtype", "fp32")) == "tf32")
    before = gpu_state() if place.type == "cuda" else {}
    what = f"{config.get('name', model)} at batch {batch_size}"
    try:
        with running(what, str(config.get("dtype", "fp32")), place):
            step = make_step(dict(config), batch_size, place.type)
            took = warm_up(step.run, place)
        with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
            times, chosen = _rounds(step.run, place, iterations, seconds, took, Path(scratch))
            write_gzip(chosen.path.read_bytes(), folder / KINETO)
            note = _execution_trace(step.run, place, Path(scratch), folder)
    except (RuntimeError, MemoryError) as error:
        raise MeasurementError(f"{what} on {device}: {error}") from error
    facts = {
        "config": dict(config),
        "torch_threads": threads,
        "execution_trace": note,
        "profiled_step_us": chosen.step_us,
        "profiled_kernel_us": chosen.kernel_us,
        "before": before,
        "after": gpu_state() if before else {},
    }
    row = step_times_row(times, facts, place)
    row |= {
        "gpu": gpu,
        "model": model or str(config.get("name", "model")),
        "variant": variant,
        "batch_size": batch_size,
        "source": "collect",
    }
    write_table(
        pd.DataFrame([row]), folder / STEP_TIMES, "step_times", {**(provenance or {}), "device": describe(place)}
    )
    del step
    release(place)


def _rounds(
    step: Step, device: torch.device, iterations: int, seconds: float, took: float, scratch: Path
) -> tuple[StepTimes, Profile]:
    """Unprofiled and profiled passes in turn: all unprofiled steps, and the least disturbed profile."""
    times = StepTimes()
    profiles: list[Profile] = []
    for number in range(MOST_ROUNDS if device.type == "cpu" else ROUNDS):
        if number < ROUNDS:
            times.add(time_steps(step, device, seconds / ROUNDS, took))
        elif min(profile.step_us for profile in profiles) < DISTURBED * times.median_us:
            break
        profiles.append(profile_steps(step, device, iterations, scratch / f"{number}.json"))
    return times, min(profiles, key=lambda profile: (profile.lost > 0, profile.step_us))


def _execution_trace(step: Step, device: torch.device, scratch: Path, folder: Path) -> str:
    """Write the execution trace; its name, or why there is none: the Kineto trace stands without it."""
    try:
        data = execution_trace(step, device, scratch)
    except (RuntimeError, OSError, TypeError) as error:
        return f"none: {str(error)[:200]}"
    write_gzip(data, folder / EXECUTION_TRACE)
    return EXECUTION_TRACE
