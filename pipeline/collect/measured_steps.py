"""Measure a training step on this machine: unprofiled step times, a profiler trace, an execution trace.

Unprofiled and profiled passes alternate, so that a temporary load on the machine affects both. The step time is the
median interval between steps that run without synchronisation between them: the throughput of training.

On a CPU, steps during which another process used the core are left out. If too few steps remain, the CPU times of all
steps are used instead, and `clock` in the row's `config` is `cpu`. The least disturbed trace is kept.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.collect.device import (
    between_us,
    fix_threads,
    keep_memory_mapped,
    mark,
    release,
    reporting_unsupported,
    select_device,
    set_tf32,
    synchronise,
    undisturbed,
)
from pipeline.collect.device_facts import describe, gpu_state
from pipeline.collect.profiling import Profile, Step, execution_trace, profile_steps, write_gzip
from pipeline.errors import MeasurementError
from pipeline.measured.campaign_files import STEP_TIMES
from pipeline.paths import EXECUTION_TRACE, KINETO
from pipeline.schemas import write_table
from pipeline.workloads import make_step

ROUNDS = 3
"""Number of unprofiled and of profiled passes; the trace with the shortest median step is kept."""
MAX_ROUNDS, DISTURBED_RATIO = 6, 1.25
"""Limits of extra profiled passes on a CPU. More passes run, up to `MAX_ROUNDS` in total, while the best step takes at
least `DISTURBED_RATIO` times the unprofiled step."""

MIN_STEPS, MAX_STEPS = 4, 400
"""Smallest and largest number of unprofiled steps per round."""
MAX_QUEUED = 30
"""Largest number of steps in the queue before the host waits; the launch queue and pinned batches are limited."""
MIN_WARM_UP, MAX_WARM_UP = 3, 20
"""Smallest and largest number of steps that warm up."""

CLOCK_WARM_UP_S = 0.2
"""Seconds of work in which a GPU raises its clocks from idle, before anything is timed."""

NOISY_SPREAD = 0.10
"""Spread of a repeated product (p90 / median - 1) above which a device counts as shared or throttled."""
MATRIX_SIDES = {"cuda": 2048, "cpu": 256}
"""Side of the matrices of the repeated product. The product is long compared with the clock's resolution, and too short
to cause throttling."""
MAX_BUSY_PERCENT = 15
"""Utilisation in percent before the campaign starts; above it, another process uses the GPU."""


@dataclass
class StepTimes:
    """Unprofiled times of single steps in µs; `core` is the CPU time of the host thread."""

    step: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    core: list[float] = field(default_factory=list)

    def add(self, other: StepTimes) -> None:
        """Append the steps of another round."""
        self.step += other.step
        self.host += other.host
        self.core += other.core

    @property
    def kept(self) -> list[float]:
        """Intervals between steps; on a CPU only those in which no other process used the core (see `undisturbed`)."""
        return undisturbed(self.step, self.core) if len(self.core) == len(self.step) else self.step

    @property
    def median_us(self) -> float:
        """Median interval between steps (µs)."""
        return statistics.median(self.kept)

    def row(self, facts: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
        """The measured columns of a `step_times` row; `facts` go to its `config` column."""
        kept = self.kept
        quantiles = (
            statistics.quantiles(kept, n=10, method="inclusive") if len(kept) > 1 else kept * 10
        )
        cuda = device.type == "cuda"
        clock = (
            "cpu" if self.core and kept == self.core else "wall"
        )  # too few steps were undisturbed on a CPU
        return {
            "step_us": self.median_us,
            "p10_us": quantiles[0],
            "p90_us": quantiles[-1],
            "count": len(kept),
            "device_us": self.median_us if cuda else None,
            "host_us": statistics.median(self.host) if cuda else self.median_us,
            "memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
            "config": json.dumps(
                {**facts, "steps": len(self.step), "clock": clock}, default=str, sort_keys=True
            ),
        }


def warm_up(step: Step, device: torch.device, limit_s: float = 20.0) -> float:
    """Run steps until two in a row agree within 5 % and a GPU's clocks are up; returns the last step's seconds."""
    seconds: list[float] = []
    begin = time.perf_counter()
    awake_s = CLOCK_WARM_UP_S if device.type == "cuda" else 0.0
    while len(seconds) < MAX_WARM_UP or time.perf_counter() - begin < awake_s:
        start = time.perf_counter()
        step(len(seconds))
        synchronise(device)
        seconds.append(time.perf_counter() - start)
        agree = len(seconds) > 1 and abs(seconds[-1] / seconds[-2] - 1) < 0.05
        spent = time.perf_counter() - begin
        if len(seconds) >= MIN_WARM_UP and ((agree and spent > awake_s) or spent > limit_s):
            break
    return seconds[-1]


def time_steps(step: Step, device: torch.device, seconds: float, step_seconds: float) -> StepTimes:
    """Time unprofiled steps for about `seconds`, without synchronisation between them; one takes `step_seconds`."""
    steps = max(MIN_STEPS, min(MAX_STEPS, int(seconds / max(step_seconds, 1e-6))))
    times = StepTimes()
    gc.collect()
    gc.disable()  # a collection within a step would be timed as training
    try:
        for first in range(0, steps, MAX_QUEUED):
            count = min(MAX_QUEUED, steps - first)
            synchronise(device)
            marks = [mark(device)]
            for number in range(first, first + count):
                start = time.perf_counter()
                core = time.thread_time()
                step(number)
                times.host.append((time.perf_counter() - start) * 1e6)
                if device.type == "cpu":
                    times.core.append((time.thread_time() - core) * 1e6)
                marks.append(mark(device))
            synchronise(device)
            intervals = [between_us(a, b) for a, b in pairwise(marks)]
            # the first interval starts on an idle device, so it lacks the overlap of later steps
            times.step += (
                intervals[1:] if device.type == "cuda" and count > MIN_STEPS else intervals
            )
    finally:
        gc.enable()
    return times


def steadiness(device: torch.device) -> dict[str, Any]:
    """Check without a profiler how steady a repeated product is, and whether other processes use the GPU.

    Returns the GPU's state, the spread, and a list of `warnings`.
    """
    state = gpu_state() if device.type == "cuda" else {}
    spread = _spread(device)
    warnings = []
    if spread > NOISY_SPREAD:
        warnings.append(
            f"a repeated product varies by {100 * spread:.0f} %; the device may be shared or"
            " throttled"
        )
    busy = state.get("utilization.gpu", "")
    if busy.isdigit() and int(busy) > MAX_BUSY_PERCENT:
        warnings.append(
            f"the GPU was {busy} % busy before the campaign; stop the other process that uses it"
        )
    return {"state": state, "warnings": warnings, "spread": spread}


def _spread(device: torch.device) -> float:
    """p90 / median - 1 of the times of a product repeated 40 times."""
    n = MATRIX_SIDES[device.type]
    x = torch.randn(n, n, device=device)
    begin = time.perf_counter()
    while device.type == "cuda" and time.perf_counter() - begin < 2 * CLOCK_WARM_UP_S:
        torch.mm(x, x)
        synchronise(device)
    times_us = []
    for _ in range(45):
        synchronise(device)
        first = mark(device)
        torch.mm(x, x)
        last = mark(device)
        synchronise(device)
        times_us.append(between_us(first, last))
    times_us = sorted(times_us[5:])
    return round(times_us[int(0.9 * len(times_us))] / statistics.median(times_us) - 1, 4)


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
    measured_on = select_device(device)
    folder = Path(out_dir)
    dtype = str(config.get("dtype", "fp32"))
    threads = fix_threads(measured_on)
    keep_memory_mapped()
    set_tf32(dtype)
    title = f"{config.get('name', model)} at batch {batch_size}"
    try:
        with reporting_unsupported(title, dtype, measured_on):
            step = make_step(dict(config), batch_size, measured_on.type)
            warmed_up_s = warm_up(step.run, measured_on)
            times, facts = _measure(step.run, measured_on, folder, iterations, seconds, warmed_up_s)
    except (RuntimeError, MemoryError) as error:
        raise MeasurementError(f"{title} on {device}: {error}") from error
    facts |= {"config": dict(config), "torch_threads": threads}
    labels = {"gpu": gpu, "variant": variant, "batch_size": batch_size, "source": "collect"}
    labels["model"] = model or str(config.get("name", "model"))
    row = {**times.row(facts, measured_on), **labels}
    origin = {**(provenance or {}), "device": describe(measured_on)}
    write_table(pd.DataFrame([row]), folder / STEP_TIMES, "step_times", origin)
    del step
    release(measured_on)


def _measure(
    step: Step,
    device: torch.device,
    folder: Path,
    iterations: int,
    seconds: float,
    step_seconds: float,
) -> tuple[StepTimes, dict[str, Any]]:
    """Time and profile a step and write its traces; returns the times and facts about them."""
    before = gpu_state() if device.type == "cuda" else {}
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        times, profile = _rounds(step, device, iterations, seconds, step_seconds, Path(scratch))
        write_gzip(profile.path.read_bytes(), folder / KINETO)
        try:
            data = execution_trace(step, device, Path(scratch))
        except (
            RuntimeError,
            OSError,
            TypeError,
        ) as error:  # the Kineto trace can be used without it
            note = f"none: {str(error)[:200]}"
        else:
            write_gzip(data, folder / EXECUTION_TRACE)
            note = EXECUTION_TRACE
    return times, {
        "execution_trace": note,
        "profiled_step_us": profile.step_us,
        "profiled_kernel_us": profile.kernel_us,
        "before": before,
        "after": gpu_state() if before else {},
    }


def _rounds(
    step: Step,
    device: torch.device,
    iterations: int,
    seconds: float,
    step_seconds: float,
    scratch: Path,
) -> tuple[StepTimes, Profile]:
    """Run unprofiled and profiled passes in turn; returns all unprofiled steps and the least disturbed profile."""
    times = StepTimes()
    profiles: list[Profile] = []
    for number in range(MAX_ROUNDS if device.type == "cpu" else ROUNDS):
        if number < ROUNDS:
            times.add(time_steps(step, device, seconds / ROUNDS, step_seconds))
        elif min(profile.step_us for profile in profiles) < DISTURBED_RATIO * times.median_us:
            break
        profiles.append(profile_steps(step, device, iterations, scratch / f"{number}.json"))
    return times, min(profiles, key=lambda profile: (profile.lost > 0, profile.step_us))
