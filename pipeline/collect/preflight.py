"""Check whether measurements can be trusted: the profiler records kernels, and no other process uses the device."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collect.device import between_us, gpu_state, mark, synchronise
from pipeline.collect.lost_kernels import SESSIONS
from pipeline.collect.step_timing import CLOCK_WARM_UP_S
from pipeline.collect.trace_windows import activities, attribute, load_events
from pipeline.errors import MeasurementError

if TYPE_CHECKING:
    import torch

NOISY_SPREAD = 0.10
"""Spread of a repeated product (p90 / median - 1) above which a device counts as shared or throttled."""
MATRIX_SIDES = {"cuda": 2048, "cpu": 256}
"""Side of the matrices of the repeated product. The product is long compared with the clock's resolution, and too short
to cause throttling."""
MAX_BUSY_PERCENT = 15
"""Utilisation in percent before the campaign starts; above it, another process uses the GPU."""


ATTEMPTS = 3
"""Number of profiled products; at least one must show its kernel."""


class ProfilerError(MeasurementError):
    """The profiler records no kernels on this machine."""


def preflight(device: torch.device, scratch: Path) -> dict[str, Any]:
    """Check that the profiler shows the kernel of a product; returns the number of recorded device events.

    Raises:
        ProfilerError: the profiler shows no kernel of a matmul.
    """
    import torch
    from torch.profiler import profile, record_function

    x = torch.randn(256, 256, device=device)
    with profile(activities=activities(device)):
        x @ x  # the first run includes the profiler's initialisation
        synchronise(device)
    for _ in range(ATTEMPTS):
        with profile(activities=activities(device)) as profiler:
            SESSIONS.start_session(device)
            with record_function("s0r0"):
                x @ x
            synchronise(device)
        path = scratch / "preflight.json"
        profiler.export_chrome_trace(str(path))
        found = attribute(load_events(path), r"s\d+r\d+")
        window = found.windows.get("s0r0")
        if window is not None and (window.kernels or device.type != "cuda"):
            break
        SESSIONS.record_lost(1)
    else:
        raise ProfilerError(
            f"the profiler recorded no kernel of a matmul ({found.device_events} device events): kernel times cannot "
            "be measured here. Check that this user may use CUPTI (NVreg_RestrictProfilingToAdminUsers=0, container "
            "rights). "
            "KINETO_LOG_LEVEL=0 shows the profiler's messages"
        )
    return {"device_events": found.device_events}


def steadiness(device: torch.device) -> dict[str, Any]:
    """Check without a profiler how steady a repeated product is, and whether other processes use the GPU.

    Returns the GPU's state, the spread, and a list of `warnings`.
    """
    state = gpu_state() if device.type == "cuda" else {}
    seen: dict[str, Any] = {"state": state, "warnings": [], "spread": _spread(device)}
    if seen["spread"] > NOISY_SPREAD:
        seen["warnings"].append(
            f"a repeated product varies by {100 * seen['spread']:.0f} %; the device may be shared or throttled"
        )
    used = state.get("utilization.gpu", "")
    if used.isdigit() and int(used) > MAX_BUSY_PERCENT:
        seen["warnings"].append(f"the GPU was {used} % busy before the campaign; stop the other process that uses it")
    return seen


def _spread(device: torch.device) -> float:
    """p90 / median - 1 of the times of a product repeated 40 times."""
    import torch

    n = MATRIX_SIDES[device.type]
    x = torch.randn(n, n, device=device)
    begin = time.perf_counter()
    while device.type == "cuda" and time.perf_counter() - begin < 2 * CLOCK_WARM_UP_S:
        torch.mm(x, x)
        synchronise(device)
    taken = []
    for _ in range(45):
        synchronise(device)
        first = mark(device)
        torch.mm(x, x)
        last = mark(device)
        synchronise(device)
        taken.append(between_us(first, last))
    taken = sorted(taken[5:])
    return round(taken[int(0.9 * len(taken))] / statistics.median(taken) - 1, 4)
