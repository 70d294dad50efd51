"""Host costs: launches, copies, events, synchronisation, and the overhead of the profiler."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collect.device import synchronise
from pipeline.collect.lost_kernels import SESSIONS
from pipeline.collect.trace_windows import Window, activities, attribute, load_events
from pipeline.trace.kineto_fields import API_CATEGORIES

if TYPE_CHECKING:
    import torch

Cost = tuple[str, float, str, str]
"""Name, value, unit, note."""

BATCHES, CALLS, STEPS = 9, 400, 15
"""Number of batches, calls per batch, and steps per batch. A batch is timed as a whole: it fits the launch queue, and
it is long compared with the clock's resolution."""
PLAIN_STEP = "mlp_step_plain"
"""Name of the small step's unprofiled time."""
SLEEP_CYCLES = 20_000
"""Clock cycles of a kernel that only waits, about 10 µs."""
LAUNCH_PATTERNS = {"s0r0": (SLEEP_CYCLES, False), "s1r0": (SLEEP_CYCLES, True), "s2r0": (0, False)}
"""Cycles of the kernels, and whether the host waits for each one. The patterns are: queued kernels, kernels launched to
an idle device, and host-bound kernels."""


def call_us(device: torch.device, function: Callable[[], Any], count: int) -> float:
    """Host time of one call (µs): the median over batches without the first one."""
    taken = []
    for _ in range(BATCHES):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(count):
            function()
        taken.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(taken[1:])


def plain_costs(device: torch.device, tiny: bool) -> Iterator[Cost]:
    """Host cost per call of the basic operations of a step, and of a small training step; runs before any profile."""
    import torch

    count = 50 if tiny else CALLS
    x, other = torch.ones(1, device=device), torch.ones(1)
    other = other.pin_memory() if device.type == "cuda" else other
    costs: dict[str, Callable[[], Any]] = {
        **_simple(x),
        "host_copy_pinned": lambda: x.copy_(other, non_blocking=True),
        "host_item": x.item,
    }
    if device.type == "cuda":
        stream, event = torch.cuda.current_stream(device), torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        costs |= {
            "host_empty_kernel": lambda: _sleep(0),
            "host_stream_synchronize_idle": stream.synchronize,
            "host_device_synchronize_idle": torch.cuda.synchronize,
            "host_event_record": event.record,
            "host_event_query": event.query,
            "host_event_synchronize_done": event.synchronize,
            "host_stream_wait_event": lambda: stream.wait_event(event),
            "sync_round_trip": _launch_and_wait(x, stream),
        }
    for name, function in costs.items():
        yield name, call_us(device, function, count), "us", "per call from Python"
    step, count = _small_step(device), 3 if tiny else STEPS
    call_us(device, step, count)
    yield PLAIN_STEP, call_us(device, step, count), "us", "host time of a step, unprofiled"


def _simple(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """An operator with a kernel launch, an operator without one, and an allocation."""
    import torch

    return {
        "host_add_": lambda: x.add_(1), "host_view": lambda: x.view(1),
        "host_empty": lambda: torch.empty(1, device=x.device),
    }  # fmt: skip


def host_costs(device: torch.device, scratch: Path, tiny: bool) -> Iterator[Cost]:
    """Host cost per call while it is profiled; on CUDA also launch latency and kernel gaps."""
    import torch
    from torch.profiler import profile

    count, costs = 50 if tiny else CALLS, _simple(torch.ones(1, device=device))
    with profile(activities=activities(device)):
        for name in ("host_add_", "host_view", "host_empty"):
            yield f"{name}_profiled", call_us(device, costs[name], count), "us", "per call from Python, profiled"
    if device.type == "cuda":
        yield from launch_costs(device, scratch)


def _sleep(cycles: int) -> None:
    """Launch a kernel that waits for a number of clock cycles."""
    import torch

    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _launch_and_wait(x: torch.Tensor, stream: torch.cuda.Stream) -> Callable[[], None]:
    def call() -> None:
        x.add_(1)
        stream.synchronize()

    return call


def _profiled_launches(device: torch.device, path: Path) -> list[dict[str, Any]]:
    """Events of 200 launches of each pattern."""
    import torch
    from torch.profiler import profile, record_function

    with profile(activities=activities(device)) as profiler:
        SESSIONS.start_session(device)
        for label, (cycles, wait) in LAUNCH_PATTERNS.items():
            torch.cuda.synchronize(device)
            with record_function(label):
                for _ in range(200):
                    _sleep(cycles)
                    if wait:
                        torch.cuda.synchronize(device)
            torch.cuda.synchronize(device)
    profiler.export_chrome_trace(str(path))
    return load_events(path)


def launch_costs(device: torch.device, scratch: Path) -> Iterator[Cost]:
    """Launch times from a profile: duration of the call, delay until the kernel starts, gaps between kernels."""
    events = _profiled_launches(device, scratch / "launches.json")
    windows = attribute(events, r"s\d+r\d+").windows
    if len(windows) < len(LAUNCH_PATTERNS) or any(len(window.kernels) < 40 for window in windows.values()):
        return
    launches = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in API_CATEGORIES and "correlation" in e.get("args", {})
    }

    def gap(window: Window) -> float:
        pairs = zip(window.kernels[20:], window.kernels[21:], strict=False)
        return statistics.median(float(b["ts"]) - float(a["ts"]) - float(a["dur"]) for a, b in pairs)

    def launch_of(label: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        kernels = windows[label].kernels[20:]
        return [(k, launches[c]) for k in kernels if (c := k["args"].get("correlation")) in launches]

    waits = [float(kernel["ts"]) - float(launch["ts"]) for kernel, launch in launch_of("s1r0")]
    durations = [float(launch["dur"]) for _, launch in launch_of("s0r0")]
    yield "kernel_gap_queued", gap(windows["s0r0"]), "us", "between queued kernels of about 10 us, profiled"
    yield "kernel_gap_host_bound", gap(windows["s2r0"]), "us", "between empty kernels, profiled"
    if waits and durations:
        yield (
            "launch_to_start",
            statistics.median(waits),
            "us",
            "from the launch call's begin to the kernel's, idle device",
        )
        yield "launch_call_duration", statistics.median(durations), "us", "T4 of a kernel launch, profiled"


def _small_step(device: torch.device) -> Callable[[], None]:
    """A training step of eight small layers."""
    import torch
    from torch import nn

    widths = (64,) * 9
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.rand(32, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def profiler_costs(device: torch.device, scratch: Path, tiny: bool, plain_us: float | None = None) -> Iterator[Cost]:
    """Host cost of a profiler event, from the same small training step with and without the profiler.

    `profiler_event_us` is the extra host time per recorded op, the input of `ProfilerCost` in the overheads package.

    Args:
        device: where the step runs.
        scratch: folder for the profiler's file.
        tiny: whether this is a trial.
        plain_us: unprofiled time of the step (µs) from `plain_costs`; measured here if None.
    """
    from torch.profiler import ProfilerActivity, profile

    step, count = _small_step(device), 3 if tiny else STEPS
    call_us(device, step, count)
    plain = call_us(device, step, count) if plain_us is None else plain_us
    modes = {
        "cpu": ([ProfilerActivity.CPU], False),
        "all": (activities(device), False),
        "all_shapes": (activities(device), True),
    }
    profiled, path = plain, scratch / "profiler.json"
    for name, (recorded, shapes) in modes.items():
        with profile(activities=recorded, record_shapes=shapes) as profiler:
            profiled = call_us(device, step, count)
        profiler.export_chrome_trace(str(path))  # the file of the last mode remains
        yield f"mlp_step_profiled_{name}", profiled, "us", "host time of a step while profiled"
    categories = [event.get("cat") for event in load_events(path)]
    for category in ("cpu_op", "cuda_runtime", "cuda_driver", "kernel"):
        yield f"mlp_step_events_{category}", categories.count(category) / (BATCHES * count), "events/step", ""
    ops = categories.count("cpu_op") / (BATCHES * count)
    if ops:
        yield (
            "profiler_event_us",
            max(profiled - plain, 0.0) / ops,
            "us",
            "extra host time per recorded op, launches included",
        )
