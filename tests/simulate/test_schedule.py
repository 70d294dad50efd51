"""Schedules of passes: their order, and what they take together."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.hardware.stages import Task, in_flight, order
from pipeline.simulate.schedule import (
    BACKWARD,
    FORWARD,
    LAST_BACKWARD,
    UPDATE,
    PartPasses,
    Pass,
    idle_shares,
    simulate_schedule,
)

NOTHING = np.zeros(1)


def taking(busy: float, host: float = 0.0) -> Pass:
    return Pass(np.array([host]), np.array([max(busy, host)]), np.array([busy]))


def part(forward: float, backward: float, update: float = 0.0, host: float = 0.0) -> PartPasses:
    passes = {
        FORWARD: taking(forward, host),
        BACKWARD: taking(backward, host),
        LAST_BACKWARD: taking(backward, host),
        UPDATE: taking(update, host),
    }
    return PartPasses(passes, passes, 0)


@pytest.mark.parametrize("stages, chunks, count", [(1, 1, 3), (4, 1, 2), (4, 3, 8)])
def test_each_pass_runs_once_and_backward_after_forward(
    stages: int, chunks: int, count: int
) -> None:
    for stage in range(stages):
        tasks = order(stage, stages, chunks, count)
        assert len(set(tasks)) == len(tasks) == 2 * chunks * count
        place = {task: number for number, task in enumerate(tasks)}
        assert all(
            place[Task(task.chunk, task.micro_batch, True)] < place[task]
            for task in tasks
            if not task.forward
        )


def test_the_first_stage_runs_ahead_by_the_depth_of_the_pipeline() -> None:
    names = ["".join("BF"[task.forward] for task in order(stage, 3, 1, 4)) for stage in range(3)]
    assert names == ["FFFBFBBB", "FFBFBFBB", "FBFBFBFB"]
    assert [in_flight(stage, 3, 4, [1]) for stage in range(3)] == [3, 2, 1]
    assert in_flight(0, 4, 8, [1, 1]) == 11  # Narayanan et al., arXiv:2104.04473


@pytest.mark.parametrize("stages, count", [(1, 4), (4, 16)])
def test_equal_stages_take_one_pass_more_for_each_stage_before(stages: int, count: int) -> None:
    parts = [part(10.0, 20.0, 5.0) for _ in range(stages)]
    schedule = simulate_schedule(parts, stages, count, NOTHING, NOTHING)
    assert schedule.step_us[0] == pytest.approx((count + stages - 1) * 30.0 + 5.0)


def test_the_bubble_of_equal_stages_is_that_of_1f1b() -> None:
    """(p - 1) / (m + p - 1) of the step (arXiv:2104.04473)."""
    schedule = simulate_schedule([part(10.0, 20.0)] * 4, 4, 8, NOTHING, NOTHING)
    table = schedule.table
    assert len(table) == 4 * 8 * 2 and table["end_us"].max() == schedule.step_us[0]
    assert list(idle_shares(table).values()) == pytest.approx([3 / 11] * 4)
    for _, own in table.groupby("stage"):
        assert (own["begin_us"].to_numpy()[1:] >= own["end_us"].to_numpy()[:-1]).all()


def test_several_parts_a_stage_shorten_what_is_idle() -> None:
    whole = simulate_schedule([part(10.0, 20.0)] * 4, 4, 8, NOTHING, NOTHING)
    halves = simulate_schedule([part(5.0, 10.0)] * 8, 4, 8, NOTHING, NOTHING)
    assert whole.step_us[0] == 330.0 and halves.step_us[0] == 285.0


def test_what_stages_send_and_share_makes_the_step_longer() -> None:
    parts = [part(10.0, 20.0) for _ in range(2)]
    sent = simulate_schedule(parts, 2, 1, np.array([3.0]), np.array([7.0]))
    assert sent.step_us[0] == 30.0 + 30.0 + 2 * 3.0 + 7.0


def test_a_slow_host_sets_the_step_and_a_loop_hides_a_fast_one() -> None:
    slow = simulate_schedule([part(10.0, 20.0, 5.0, host=50.0)], 1, 4, NOTHING, NOTHING, loop=True)
    assert slow.step_us[0] == 9 * 50.0
    fast = simulate_schedule([part(10.0, 20.0, 5.0, host=1.0)], 1, 4, NOTHING, NOTHING, loop=True)
    assert fast.step_us[0] == 4 * 30.0 + 5.0


def test_gradients_are_exchanged_beside_the_backward_pass_or_behind_it() -> None:
    passes = part(10.0, 20.0).ends
    exchanged = np.array([5.0])
    behind = PartPasses(passes, passes, 3, exchange_us=4 * exchanged)
    beside = PartPasses(passes, passes, 3, exchanges_us=(exchanged, exchanged))
    assert (behind.last_backward.busy[0], behind.left_us[0]) == (4 * 20.0, 4 * 5.0)
    assert 4 * 20.0 < beside.last_backward.busy[0] < 4 * 20.0 + 3 * 5.0
    assert beside.left_us[0] == pytest.approx(5.0)
    slow = PartPasses(passes, passes, 3, exchanges_us=(100 * exchanged, 100 * exchanged))
    assert slow.last_backward.busy[0] + slow.left_us[0] == pytest.approx(20.0 + 4 * 500.0)


@pytest.mark.parametrize("chunks", [1, 2])
def test_stages_exchange_gradients_at_the_same_time(chunks: int) -> None:
    """Stage 0 ends last. Its exchange is seen; that of the others is over by then, and delays no pass of it.

    ::

        stage 1      F B EEEEEEE
        stage 0    F     B EEEEEEE
    """
    stages, count = 4, 8
    plain = part(10.0, 20.0)
    alone = simulate_schedule([plain] * stages * chunks, stages, count, NOTHING, NOTHING)
    for name in ("exchange_us", "exchanges_us"):
        us = np.array([40.0])
        given = {name: us if name == "exchange_us" else (us, us)}
        parts = [PartPasses(plain.ends, plain.layer, 0, **given) for _ in range(stages * chunks)]
        found = simulate_schedule(parts, stages, count, NOTHING, NOTHING)
        assert alone.step_us[0] + 40.0 <= found.step_us[0] <= alone.step_us[0] + chunks * 40.0
