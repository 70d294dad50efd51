"""Measure a training step on this machine: unprofiled step times, a profiler trace, an execution trace.

Unprofiled and profiled passes alternate, so that a temporary load on the machine affects both. The step time is the
median interval between steps that run without synchronisation between them: the throughput of training.

On a CPU, steps during which another process used the core are left out. If too few steps remain, the CPU times of all
steps are used instead, and `clock` in the row's `config` is `cpu`. The least disturbed trace is kept.
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
from pipeline.collect.unsupported import reporting_unsupported
from pipeline.errors import MeasurementError
from pipeline.paths import EXECUTION_TRACE, KINETO
from pipeline.schemas import write_table
from pipeline.workloads import make_step

if TYPE_CHECKING:
    import torch

ROUNDS = 3
"""Number of unprofiled and of profiled passes; the trace with the shortest median step is kept."""
MAX_ROUNDS, DISTURBED_RATIO = 6, 1.25
"""Limits of extra profiled passes on a CPU. More passes run, up to `MAX_ROUNDS` in total, while the best step takes at
least `DISTURBED_RATIO` times the unprofiled step."""


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
        out_dir: folder of the output files. `kineto.json.gz` has steps between `ProfilerStep#k` marks, with shapes.
            `execution_trace.json.gz` has one step, which is slower because of the observer. `step_times.parquet` has
            the step time.
        iterations: profiled steps in the trace.
        seconds: time for the unprofiled steps of all rounds, in addition to profiling.
        gpu: `gpu` column of the step-times row.
        model: `model` column of the row; by default the config's name.
        variant: `variant` column of the row.
        provenance: origin of the measurement, kept with the device in the table's metadata.

    Raises:
        InputError: the device does not exist, or the config is wrong.
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
        with reporting_unsupported(what, str(config.get("dtype", "fp32")), place):
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
    """Run unprofiled and profiled passes in turn; returns all unprofiled steps and the least disturbed profile."""
    times = StepTimes()
    profiles: list[Profile] = []
    for number in range(MAX_ROUNDS if device.type == "cpu" else ROUNDS):
        if number < ROUNDS:
            times.add(time_steps(step, device, seconds / ROUNDS, took))
        elif min(profile.step_us for profile in profiles) < DISTURBED_RATIO * times.median_us:
            break
        profiles.append(profile_steps(step, device, iterations, scratch / f"{number}.json"))
    return times, min(profiles, key=lambda profile: (profile.lost > 0, profile.step_us))


def _execution_trace(step: Step, device: torch.device, scratch: Path, folder: Path) -> str:
    """Write the execution trace; returns its name, or the reason why there is none.

    The Kineto trace can be used without an execution trace.
    """
    try:
        data = execution_trace(step, device, scratch)
    except (RuntimeError, OSError, TypeError) as error:
        return f"none: {str(error)[:200]}"
    write_gzip(data, folder / EXECUTION_TRACE)
    return EXECUTION_TRACE
