"""How much faster a host must be for a host-bound step to become device-bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.step_program import Program

FASTEST = 1024.0
"""Largest factor that is tried. A step that is host-bound even then has hardly any device time."""

STEP = 0.01
"""Resolution of the factor: it is rounded up to a multiple of this number."""


def on_host(program: Program, speed: float) -> Program:
    """The program on a host that is `speed` times as fast: every host time is divided by it."""
    return replace(
        program, lead_us=program.lead_us / speed, gap_us=program.gap_us / speed, api_us=program.api_us / speed,
        tail_us=program.tail_us / speed,
    )  # fmt: skip


def device_bound_from(program: Program, kernel_us: npt.ArrayLike, form: Form = "full") -> float | None:
    """The smallest host speed, relative to the program's host, at which the step is device-bound.

    The speed is doubled until the step is device-bound, then bisected. Each try is a simulation.

    Args:
        program: a step.
        kernel_us: time of each device call, shape (calls,).
        form: form of the critical path.

    Returns:
        The speed, rounded up to a multiple of `STEP`; 1 for a device-bound step, None if no speed up to `FASTEST`
        makes the step device-bound.
    """
    times = np.asarray(kernel_us, float)

    def bound(speed: float) -> str:
        return simulate(on_host(program, speed), times, form=form).bound

    slow, fast = 1.0, 1.0
    while bound(fast) == "host":
        if fast >= FASTEST:
            return None
        slow, fast = fast, 2 * fast
    low, high = round(slow / STEP), round(fast / STEP)
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        low, high = (middle, high) if bound(middle * STEP) == "host" else (low, middle)
    return high * STEP
