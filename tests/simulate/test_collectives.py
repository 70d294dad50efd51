"""Steps of several GPUs, worked out by hand: overlap, what it costs kernels, and what limits the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.simulate.compiled_walk import BESIDE_COLLECTIVES
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from tests.simulate.programs import LAUNCH, program, row


def exchange() -> Program:
    """A kernel, the all-reduce of its gradient beside a second kernel, and the optimizer, which waits for both.

    computing    [k0][k1........][k3]
    collectives      [all-reduce]
    """
    return program(
        row(LAUNCH, kernel_gap=0.0, latency=0.0),
        row(LAUNCH, stream=1, waits=(0,), kernel_gap=0.0, latency=0.0),
        row(LAUNCH, kernel_gap=0.0, latency=0.0),
        row(LAUNCH, waits=(1,), kernel_gap=0.0, latency=0.0),
        collectives=1,
    )


def test_a_kernel_beside_a_whole_collective_loses_what_the_collective_takes() -> None:
    step = simulate(exchange(), [10.0, 50.0, 20.0, 5.0])
    begin, end = step.device_start[:, 0], step.device_end[:, 0]
    assert begin.tolist() == [0, 10, 10, 60]
    assert end[2] == pytest.approx(10 + 20 * BESIDE_COLLECTIVES)  # beside it from begin to end
    assert step.step_us[0] == 65


def test_a_kernel_that_outlasts_the_collective_is_slowed_only_beside_it() -> None:
    step = simulate(exchange(), [10.0, 11.89, 30.0, 5.0])
    # beside the 11.89 us of the all-reduce it does 10 us of its work; the other 20 us take 20
    assert step.device_end[2, 0] == pytest.approx(10 + 11.89 + 20)
    assert step.step_us[0] == pytest.approx(10 + 11.89 + 20 + 5)


def test_exposed_communication_is_what_nothing_else_covers() -> None:
    step = simulate(exchange(), [10.0, 50.0, 20.0, 5.0])
    communication, exposed = step.communication_us
    assert communication == 50
    assert exposed == pytest.approx(50 - 20 * BESIDE_COLLECTIVES)
    assert step.active_us[0] == 65


@pytest.mark.parametrize(
    "kernel_us, bound",
    [
        ([10, 500, 20, 5], "communication"),
        ([10, 5, 20, 5], "device"),
        ([0.1, 0.1, 0.1, 0.1], "host"),
    ],
)
def test_what_takes_most_of_the_critical_path_limits_the_step(
    kernel_us: list[float], bound: str
) -> None:
    assert simulate(replace(exchange(), api_us=np.full(4, 1.0)), kernel_us).bound == bound
