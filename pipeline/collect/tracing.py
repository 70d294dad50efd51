"""Profiler and execution traces of training steps."""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collect.device import synchronise
from pipeline.collect.lost_kernels import SESSIONS
from pipeline.collect.step_timing import Step
from pipeline.collect.trace_windows import STEP_LABEL, Window, activities, attribute, load_events
from pipeline.errors import MeasurementError
from pipeline.schemas import atomic_path

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Profile:
    """A Kineto trace on disk with its median step and kernel time (µs); `lost` counts launches without a kernel."""

    path: Path
    step_us: float
    kernel_us: float
    device_calls: int
    lost: int = 0


def profile_steps(step: Step, device: torch.device, iterations: int, path: Path, observer: Any = None) -> Profile:
    """Profile `iterations` steps, each in its `ProfilerStep#k`, after one step that warms up the profiler.

    Raises:
        MeasurementError: the trace has no step.
    """
    from torch.profiler import profile, schedule

    extra = {"execution_trace_observer": observer} if observer is not None else {}
    plan = schedule(wait=0, warmup=1, active=iterations, repeat=1)
    with profile(activities=activities(device), record_shapes=True, schedule=plan, **extra) as profiler:
        SESSIONS.start_session(device)  # during the profiler's warm-up, so the trace does not have these kernels
        for number in range(iterations + 1):
            step(number)
            if number in (0, iterations):
                synchronise(device)  # finish the warm-up's work first; include the last step's kernels
            profiler.step()
    profiler.export_chrome_trace(str(path))
    windows = sorted(attribute(load_events(path), STEP_LABEL).windows.values(), key=lambda window: window.start)
    lost = sum(window.lost for window in windows)
    SESSIONS.record_lost(lost)
    if not windows:
        raise MeasurementError(
            "the profiler recorded no step: run `steptime doctor` to see whether profiling works here"
        )
    return Profile(
        path,
        _step_us(windows),
        statistics.median(w.device_us for w in windows),
        round(statistics.median(len(w.kernels) for w in windows)),
        lost,
    )


def _step_us(windows: Sequence[Window]) -> float:
    """Median interval (µs) between starts of steps on the device.

    For a single step, or if nothing ran on a device, it is the median host time of the steps. Otherwise host times are
    not used: the host may run ahead of a GPU, so its windows do not show the time of a step.
    """
    starts = [float(window.kernels[0]["ts"]) for window in windows if window.kernels]
    if len(starts) > 1:
        return statistics.median(later - earlier for earlier, later in pairwise(starts))
    return statistics.median(window.host_us for window in windows)


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
    # names may hold invalid UTF-8; replace it, so that readers need not handle it
    return raw.read_bytes().decode("utf-8", "replace").encode("utf-8")


def write_gzip(data: bytes, path: Path) -> None:
    """Write compressed bytes completely or not at all; the same bytes always give the same file."""
    with atomic_path(path) as part:
        part.write_bytes(gzip.compress(data, 6, mtime=0))
