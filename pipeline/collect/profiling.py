"""Profiler sessions on the measured device: traces of steps, and a check that the profiler works.

CUPTI from CUDA 12.6 update 2 to 13.0 gives the first kernels of a session times of another clock. The number of these
kernels grows by one with every session of a process. Kineto takes them for events from before the session and drops
them without a message (github.com/pytorch/pytorch/issues/192021; NVIDIA's notes on CUPTI 13.1 describe the fault).

A call whose kernels are lost would seem to take no time. Therefore every session starts with spare kernels, and their
number grows with the number of sessions. `pipeline.collect.trace_windows` counts the launches whose kernel is still
missing.
"""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import (
    ExecutionTraceObserver,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
)

from pipeline.as_on_cuda.torch_names import wait_on_device
from pipeline.collect.device import synchronise
from pipeline.collect.trace_windows import (
    REPETITION_LABEL,
    STEP_LABEL,
    Window,
    attribute,
    load_events,
)
from pipeline.errors import MeasurementError
from pipeline.schemas import atomic_path

FIRST_SPARE, SPARE_PER_SESSION, MAX_SPARE = 32, 2, 2000
"""Number of spare kernels: in the first session, in addition per session so far, and at most."""
GROWTH = 4
"""Factor on the number of spare kernels after a session that lost more than its spare kernels."""
PREFLIGHT_ATTEMPTS = 3
"""Number of profiled products of the preflight; at least one must show its kernel."""

Step = Callable[[int], None]
"""Runs one training step; the argument is the number of the step."""


class ProfilerError(MeasurementError):
    """The profiler records no kernels on this machine."""


@dataclass
class ProfilerSessions:
    """State of the profiler sessions of this process.

    Attributes:
        sessions: sessions so far.
        lost: kernels that were missing after the spare ones.
        scale: factor on the number of spare kernels; 1 at first.
    """

    sessions: int = 0
    lost: int = 0
    scale: int = 1

    def start_session(self, device: torch.device) -> None:
        """Start a new session: launch empty kernels and wait for each, so that only these kernels are lost."""
        self.sessions += 1
        if device.type != "cuda":
            return
        for _ in range(
            min(self.scale * (FIRST_SPARE + SPARE_PER_SESSION * self.sessions), MAX_SPARE)
        ):
            wait_on_device(0)
            synchronise(device)

    def record_lost(self, lost: int) -> None:
        """Record the kernels that a session still lost; if there are any, the next session has more spare kernels."""
        self.lost += lost
        self.scale = min(self.scale * GROWTH, MAX_SPARE) if lost else self.scale


SESSIONS = ProfilerSessions()
"""State of this process; CUPTI counts its sessions per process."""


def activities(device: torch.device) -> list[ProfilerActivity]:
    """The activities that the profiler records on this device."""
    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])


@contextmanager
def profiled(device: torch.device, path: Path, **options: Any) -> Iterator[Any]:
    """Profile the body, after the spare kernels of a new session, and write the trace to `path`."""
    with profile(activities=activities(device), **options) as profiler:
        SESSIONS.start_session(device)
        yield profiler
    profiler.export_chrome_trace(str(path))


@dataclass(frozen=True)
class Profile:
    """A Kineto trace on disk with its median step and kernel time (µs); `lost` counts launches without a kernel."""

    path: Path
    step_us: float
    kernel_us: float
    device_calls: int
    lost: int = 0


def profile_steps(
    step: Step, device: torch.device, iterations: int, path: Path, observer: Any = None
) -> Profile:
    """Profile `iterations` steps, each in its `ProfilerStep#k`, after one step that warms up the profiler.

    Raises:
        MeasurementError: the trace has no step.
    """
    plan = schedule(wait=0, warmup=1, active=iterations, repeat=1)
    options = {"execution_trace_observer": observer} if observer is not None else {}
    # the spare kernels run during the profiler's warm-up, so the trace does not have them
    with profiled(device, path, record_shapes=True, schedule=plan, **options) as profiler:
        for number in range(iterations + 1):
            step(number)
            if number in (0, iterations):
                synchronise(
                    device
                )  # finish the warm-up's work first; include the last step's kernels
            profiler.step()
    windows = sorted(
        attribute(load_events(path), STEP_LABEL).windows.values(), key=lambda window: window.start
    )
    lost = sum(window.lost for window in windows)
    SESSIONS.record_lost(lost)
    if not windows:
        remedy = "run `steptime doctor` to see whether profiling works here"
        raise MeasurementError(f"the profiler recorded no step: {remedy}")
    kernel_us = statistics.median(window.device_us for window in windows)
    device_calls = round(statistics.median(len(window.kernels) for window in windows))
    return Profile(path, _step_us(windows), kernel_us, device_calls, lost)


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


def preflight(device: torch.device, scratch: Path) -> dict[str, Any]:
    """Check that the profiler shows the kernel of a product; returns the number of recorded device events.

    Raises:
        ProfilerError: the profiler shows no kernel of a matmul.
    """
    x = torch.randn(256, 256, device=device)
    with profile(activities=activities(device)):
        x @ x  # the first run includes the profiler's initialisation
        synchronise(device)
    path = scratch / "preflight.json"
    for _ in range(PREFLIGHT_ATTEMPTS):
        with profiled(device, path):
            with record_function("s0r0"):
                x @ x
            synchronise(device)
        trace = attribute(load_events(path), REPETITION_LABEL)
        window = trace.windows.get("s0r0")
        if window is not None and (window.kernels or device.type != "cuda"):
            return {"device_events": trace.device_events}
        SESSIONS.record_lost(1)
    raise ProfilerError(
        f"the profiler recorded no kernel of a matmul ({trace.device_events} device events): kernel"
        " times cannot be measured here. Check that this user may use CUPTI"
        " (NVreg_RestrictProfilingToAdminUsers=0, container rights). KINETO_LOG_LEVEL=0 shows the"
        " profiler's messages"
    )
