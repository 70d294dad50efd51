"""A training step on this machine's device: unprofiled step times, a profiler trace, an execution trace.

Unprofiled and profiled passes take turns, so that a machine that is busy for a while disturbs both alike. The step time
is the median interval between steps that run freely (no synchronisation between them): the throughput of training. On a
CPU, steps during which another process held the core are left out; the trace kept is the least disturbed one.
"""

from __future__ import annotations

import gc
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.device import (
    between_us,
    describe,
    fix_threads,
    gpu_state,
    keep_memory_mapped,
    mark,
    release,
    select_device,
    set_tf32,
    synchronise,
    undisturbed,
)
from pipeline.collect.windows import STEP_LABEL, activities, attribute, load_events
from pipeline.errors import MeasurementError
from pipeline.schemas import atomic_path, write_table

if TYPE_CHECKING:
    import torch

KINETO, EXECUTION_TRACE, STEP_TIMES = "kineto.json.gz", "execution_trace.json.gz", "step_times.parquet"

ROUNDS = 3
"""Passes of each kind; the trace kept is the one with the shortest median step."""
MOST_ROUNDS, DISTURBED = 6, 1.25
"""More profiled passes are made while the best one's step is this much longer than the unprofiled step."""
LEAST_STEPS, MOST_STEPS = 4, 400
"""Unprofiled steps per round."""
MOST_QUEUED = 30
"""Steps that may be queued on CUDA before the host waits: the launch queue and pinned batches are finite."""

Step = Callable[[int], None]


@dataclass
class StepTimes:
    """Unprofiled times of single steps, µs; `core` is CPU time of the host thread."""

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
        """Intervals between steps; on a CPU those in which the step had the core to itself."""
        return undisturbed(self.step, self.core) if len(self.core) == len(self.step) else self.step

    @property
    def median_us(self) -> float:
        """Median interval between steps."""
        return statistics.median(self.kept)


@dataclass(frozen=True)
class CollectedStep:
    """What `collect_step` left behind."""

    kineto: Path
    execution_trace: Path | None
    step_times: Path
    step_us: float
    profiled_step_us: float


def collect_step(
    config: Mapping[str, Any],
    batch_size: int,
    device: str = "auto",
    out_dir: str | Path = ".",
    *,
    iterations: int = 10,
    seconds: float = 20.0,
    gpu: str = "local",
    model: str | None = None,
    variant: str = "default",
    source: str = "collect",
) -> CollectedStep:
    """Run, time and profile a training step.

    Args:
        config: a model's configuration (`config/model/<name>.yaml` after overrides).
        batch_size: samples per step.
        device: "cuda", "cpu", or "auto".
        out_dir: folder for `kineto.json.gz` (steps between `ProfilerStep#k` marks, with shapes),
            `execution_trace.json.gz` (one step; its times are slowed by the observer) and `step_times.parquet`.
        iterations: profiled steps in the trace.
        seconds: time for the unprofiled steps of all rounds; profiling comes on top.
        gpu, model, variant, source: columns of the step-times row.

    Raises:
        InputError: there is no such device, or the config is wrong.
        MeasurementError: the step fails on this device, or the profiler records no step.
    """
    from pipeline.workloads import make_step

    place, folder = select_device(device), Path(out_dir)
    threads = fix_threads(place)
    keep_memory_mapped()
    set_tf32(str(config.get("dtype", "fp32")) == "tf32")
    step = make_step(dict(config), batch_size, place.type)
    before = gpu_state() if place.type == "cuda" else {}
    try:
        took = warm_up(step.run, place)
        times, profiles = StepTimes(), []
        with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
            for number in range(MOST_ROUNDS if place.type == "cpu" else ROUNDS):
                if number < ROUNDS:
                    times.add(time_steps(step.run, place, seconds / ROUNDS, took))
                elif min(profile.step_us for profile in profiles) < DISTURBED * times.median_us:
                    break
                profiles.append(profile_steps(step.run, place, iterations, Path(scratch) / f"{number}.json"))
            chosen = min(profiles, key=lambda profile: profile.step_us)
            write_gzip(chosen.path.read_bytes(), folder / KINETO)
            trace, note = _execution_trace(step.run, place, Path(scratch), folder)
    except (RuntimeError, MemoryError) as error:
        raise MeasurementError(f"{config.get('name', model)} at batch {batch_size} on {device}: {error}") from error
    facts = {"config": dict(config), "torch_threads": threads, "execution_trace": note,
             "profiled_step_us": chosen.step_us, "profiled_kernel_us": chosen.kernel_us,
             "before": before, "after": gpu_state() if before else {}}  # fmt: skip
    row = step_times_row(times, facts, place)
    row |= {"gpu": gpu, "model": model or str(config.get("name", "model")), "variant": variant,
            "batch_size": batch_size, "source": source}  # fmt: skip
    write_table(pd.DataFrame([row]), folder / STEP_TIMES, "step_times", {"device": describe(place)})
    del step
    release(place)
    return CollectedStep(folder / KINETO, trace, folder / STEP_TIMES, times.median_us, chosen.step_us)


def step_times_row(times: StepTimes, facts: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The measured columns of a `step_times` row; `facts` go to its `config` column."""
    import torch

    kept = times.kept
    quantiles = statistics.quantiles(kept, n=10) if len(kept) > 1 else kept * 10
    cuda = device.type == "cuda"
    return {
        "step_us": times.median_us, "p10_us": quantiles[0], "p90_us": quantiles[-1], "count": len(kept),
        "device_us": times.median_us if cuda else None, "host_us": times.median_us if not cuda else statistics.median(times.host),
        "memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "config": json.dumps({**facts, "disturbed_steps": len(times.step) - len(kept)}, default=str, sort_keys=True),
    }  # fmt: skip


def warm_up(step: Step, device: torch.device, least: int = 3, most: int = 20, limit_s: float = 20.0) -> float:
    """Run steps until two in a row agree within 5 %; returns the last one's seconds."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < most:
        start = time.perf_counter()
        step(len(taken))
        synchronise(device)
        taken.append(time.perf_counter() - start)
        agree = len(taken) > 1 and abs(taken[-1] / taken[-2] - 1) < 0.05
        if len(taken) >= least and (agree or time.perf_counter() - begin > limit_s):
            break
    return taken[-1]


def time_steps(step: Step, device: torch.device, seconds: float, took: float) -> StepTimes:
    """Unprofiled steps for about `seconds`, running freely; `took` is how long one takes (s)."""
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(seconds / max(took, 1e-6))))
    times = StepTimes()
    gc.collect()
    gc.disable()  # a collection within a step would be timed as training
    try:
        done = 0
        while done < steps:
            count = min(MOST_QUEUED, steps - done)
            synchronise(device)
            marks = [mark(device)]
            for number in range(count):
                start, core = time.perf_counter(), time.thread_time()
                step(done + number)
                times.host.append((time.perf_counter() - start) * 1e6)
                if device.type == "cpu":
                    times.core.append((time.thread_time() - core) * 1e6)
                marks.append(mark(device))
            synchronise(device)
            intervals = [between_us(a, b) for a, b in zip(marks, marks[1:], strict=False)]
            # the first interval starts on an idle device and so lacks the overlap that free running has
            times.step += intervals[1:] if device.type == "cuda" and count > LEAST_STEPS else intervals
            done += count
    finally:
        gc.enable()
    return times


@dataclass(frozen=True)
class Profile:
    """A Kineto trace on disk with its median step and kernel time (µs)."""

    path: Path
    step_us: float
    kernel_us: float
    device_calls: int


def profile_steps(step: Step, device: torch.device, iterations: int, path: Path, observer: Any = None) -> Profile:
    """Profile `iterations` steps, each in its `ProfilerStep#k`, after one that only warms the profiler up.

    Raises:
        MeasurementError: the trace holds no step.
    """
    from torch.profiler import profile, schedule

    extra = {"execution_trace_observer": observer} if observer is not None else {}
    plan = schedule(wait=0, warmup=1, active=iterations, repeat=1)
    with profile(activities=activities(device), record_shapes=True, schedule=plan, **extra) as profiler:
        for number in range(iterations + 1):
            step(number)
            if number in (0, iterations):
                synchronise(device)  # no backlog from the warm-up, and the last step's kernels belong to the trace
            profiler.step()
    profiler.export_chrome_trace(str(path))
    windows = list(attribute(load_events(path), STEP_LABEL).windows.values())
    if not windows:
        raise MeasurementError("the profiler recorded no step: run `steptime doctor` to see what it can do here")
    return Profile(path, statistics.median(w.host_us for w in windows), statistics.median(w.device_us for w in windows),
                   round(statistics.median(len(w.kernels) for w in windows)))  # fmt: skip


def execution_trace(step: Step, device: torch.device, scratch: Path) -> bytes:
    """The execution trace (JSON) of one step."""
    from torch.profiler import ExecutionTraceObserver

    raw = scratch / "execution_trace.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(raw))
    try:
        profile_steps(step, device, 1, scratch / "execution_kineto.json", observer)
    finally:
        observer.unregister_callback()
    # names may hold bytes that are no UTF-8; readers shall not have to care
    return raw.read_bytes().decode("utf-8", "replace").encode("utf-8")


def _execution_trace(step: Step, device: torch.device, scratch: Path, folder: Path) -> tuple[Path | None, str]:
    try:
        data = execution_trace(step, device, scratch)
    except (RuntimeError, OSError, TypeError) as error:  # the Kineto trace stands without it
        return None, f"none: {str(error)[:200]}"
    write_gzip(data, folder / EXECUTION_TRACE)
    return folder / EXECUTION_TRACE, EXECUTION_TRACE


def write_gzip(data: bytes, path: Path) -> None:
    """Write compressed bytes completely or not at all; the same bytes always give the same file."""
    with atomic_path(path) as part:
        part.write_bytes(gzip.compress(data, 6, mtime=0))
