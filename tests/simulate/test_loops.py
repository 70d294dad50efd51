"""A step of a loop takes as long as one of many equal steps that follow each other, simulated one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline import predict
from pipeline.simulate.critical_path import simulate, step_times
from pipeline.simulate.timeline import Timeline
from tests.simulate.programs import HOST, LAUNCH, SYNC, drawn_rows, program, row

REPEATS, SETTLED = 30, 20


def repeated_us(rows: list[dict[str, Any]], kernels: np.ndarray, host_scale: float = 1.0) -> float:
    """Mean time of the last steps of `REPEATS` equal ones that run without a break."""
    timeline = simulate(program(*rows * REPEATS), np.tile(kernels, REPEATS), host_scale=host_scale)

    def ends(count: int) -> tuple[float, float]:
        host, device = (
            timeline.row_end[: count * len(rows), 0],
            timeline.device_end[: count * len(kernels), 0],
        )
        return float(host.max()), float(device.max())

    return max(late - early for late, early in zip(ends(REPEATS), ends(SETTLED), strict=True)) / (
        REPEATS - SETTLED
    )


def looped(rows: list[dict[str, Any]], kernels: np.ndarray) -> Timeline:
    return simulate(program(*rows, loop=True), kernels)


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("kernel_us", [4.0, 12.0, 20.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_of_a_loop_takes_as_long_as_one_of_many(
    seed: int, kernel_us: float, waits: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, 30, [LAUNCH] * 6 + [HOST] + [SYNC] * waits)
    kernels = rng.exponential(kernel_us, sum(one["kind"] == LAUNCH for one in rows))
    step = looped(rows, kernels)
    assert step.step_us[0] == pytest.approx(repeated_us(rows, kernels), rel=1e-9)
    assert step.host_us[0] <= step.step_us[0] <= simulate(program(*rows), kernels).step_us[0] + 1e-9
    assert sum(step.critical.parts.values()) == pytest.approx(step.step_us[0])
    assert min(step.critical.parts.values()) >= 0 and step.idle_us[0] >= -1e-9


@pytest.mark.parametrize("seed", range(2))
def test_each_draw_is_a_step_of_its_own_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, 30, [LAUNCH] * 6 + [HOST])
    calls = sum(one["kind"] == LAUNCH for one in rows)
    times, scale = rng.exponential(12.0, (calls, 20)), rng.lognormal(0.0, 0.5, 20)
    for depth in (0, 20):
        drawn = step_times(
            program(*rows, loop=True, queue_depth=depth), times, np.arange(calls), scale
        )
        alone = [repeated_us(rows, times[:, draw], scale[draw]) for draw in range(20)]
        assert drawn == pytest.approx(alone, rel=1e-9)
        one_by_one = simulate(
            program(*rows, loop=True, queue_depth=depth), times.T, host_scale=scale
        )
        assert one_by_one.step_us == pytest.approx(drawn, rel=1e-9)


@pytest.mark.parametrize("kinds, off", [([], 1e-9), ([SYNC], 0.08)])
@pytest.mark.parametrize("seed", range(5))
def test_two_streams_are_exact_without_waits_and_near_where_the_host_waits_for_one(
    seed: int, kinds: list[int], off: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, 30, [LAUNCH] * 6 + [HOST, *kinds], streams=2)
    kernels = rng.exponential(12.0, sum(one["kind"] == LAUNCH for one in rows))
    assert looped(rows, kernels).step_us[0] == pytest.approx(repeated_us(rows, kernels), rel=off)


def test_a_step_that_can_be_added_up() -> None:
    # alone: the host launches at 10, 20, 30; kernels of 15 run from 11, 27 and 43 (a gap of 1) to 58; the host is done at 40
    rows, kernels = [row(gap=10)] * 3 + [row(HOST, gap=10)], np.full(3, 15.0)
    assert simulate(program(*rows), kernels).step_us[0] == 58.0
    step = looped(
        rows, kernels
    )  # the device fills its idle time, 13 us: three kernels and the gaps before them
    assert step.carried_us[0] == 13.0 and step.step_us[0] == 48.0 and step.bound == "device"
    parts = {name: us for name, us in step.critical.parts.items() if us}
    assert parts == {"device_us": 45.0, "gap_us": 3.0}
    short = looped(rows, np.full(3, 5.0))
    assert short.step_us[0] == 40.0 and short.bound == "host" and not short.critical.calls.any()


def test_a_wait_after_each_step_ends_the_overlap() -> None:
    asked = {"gpu": "H100", "model": "dlrm_default", "batch_size": 3072}
    loop, apart, read = (
        predict(**asked, **option)
        for option in ({}, {"predict.wait_each_step": True}, {"model.read_loss": "at_end"})
    )
    assert loop.predicted_us < 0.97 * apart.predicted_us
    assert read.predicted_us == pytest.approx(apart.predicted_us, rel=0.02), (
        "the copy of the loss, and its wait"
    )
    assert loop.active_us == pytest.approx(apart.active_us)
    assert loop.p10_us < loop.predicted_us < loop.p90_us


def test_nothing_runs_beside_a_launch_that_waits_for_its_kernel() -> None:
    asked = {"gpu": "V100", "model": "dlrm_small", "batch_size": 8, "devices": 2}
    usual, waiting = (predict(**asked, predict__launch_blocking=given) for given in (False, True))
    parts = waiting.several
    assert parts is not None
    assert waiting.predicted_us > max(usual.predicted_us, waiting.active_us + usual.host_us / 2)
    assert parts.exposed_communication_us == pytest.approx(parts.communication_us)
