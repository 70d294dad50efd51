"""What the critical path of a step holds, and what no step can be shorter than, on random steps and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import as_published
from tests.simulate.programs import SYNC, drawn_rows, program, row


@pytest.mark.parametrize("seed", range(20))
def test_the_critical_path_holds_what_lengthens_the_step(seed: int) -> None:
    """A time is on the path if, and only if, the step grows with it: host and device time, and each single call."""
    rng = np.random.default_rng(seed)
    built = program(
        *drawn_rows(rng, 15, streams=3, threads=2, blocking=0.15),
        backlog=tuple(rng.exponential(5, 3) * (rng.random(3) < 0.5)),
        queue_depth=int(rng.integers(1, 4)),
    )
    kernels, step = rng.exponential(8, built.call_count), 1e-7
    t = simulate(built, kernels)

    def growth(kernel_us: np.ndarray, host_scale: float = 1.0) -> float:
        longer = simulate(built, kernel_us, host_scale=host_scale).step_us
        return float((longer - t.step_us)[0]) / step

    assert growth(kernels, 1 + step) == pytest.approx(t.critical.host_us, abs=1e-4)
    assert growth(kernels * (1 + step)) == pytest.approx(t.critical.device_us, abs=1e-4)
    each = [growth(kernels + step * one) for one in np.eye(len(kernels))]
    assert np.array_equal(np.array(each) > 0.5, t.critical.calls)


def test_parts_of_the_critical_path_by_hand() -> None:
    # s0  [backlog---30]+1[31-36]+1[37-40]      two calls behind earlier work; the host ends before
    late = simulate(program(row(gap=3, api=1), row(api=1), backlog=(30.0,)), [5.0, 3.0])
    names = "host_us", "device_us", "queued_us", "latency_us", "gap_us", "return_us"
    assert late.critical.parts == dict(zip(names, (0, 8, 30, 0, 2, 0), strict=True))
    # host |T2 3|L 1|wait ......|+2|T3 4|       s0 .[4-24]: the launch at 3, its call 1 later, the wait returns at 26
    waits = simulate(program(row(gap=3, api=1), row(SYNC, api=1, tail=4)), [20.0])
    assert waits.critical.parts == dict(zip(names, (7, 20, 0, 1, 0, 2), strict=True))
    # a wait of the host for earlier work
    idle = simulate(program(row(SYNC, gap=3, api=1, tail=4), backlog=(30.0,)), [])
    assert (idle.critical.queued_us, idle.critical.return_us, idle.critical.host_us) == (30, 2, 4)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_parts_of_the_critical_path_add_up_to_the_step(seed: int, published: bool) -> None:
    built, kernels = _with_kernels(seed)
    rng = np.random.default_rng(seed)
    built = replace(built, backlog_us=rng.exponential(60, 3) * (rng.random(3) < 0.5))
    built = as_published(built) if published else built
    for times in (kernels, 0.01 * kernels):
        t = simulate(built, times)
        parts = t.critical.parts
        assert sum(parts.values()) == pytest.approx(t.step_us[0], rel=1e-9)
        assert min(parts.values()) >= -1e-9


def _with_kernels(seed: int) -> tuple[Program, np.ndarray]:
    """A program that competes for the device, with earlier work, and times of its kernels."""
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, 40, streams=3, threads=2, blocking=0.15)
    for at in np.flatnonzero(rng.random(40) < 0.2):
        rows[at]["previous"] = max(int(at) - 3, -1)
    built = program(*rows, queue_depth=4)
    calls = built.call_count
    built = replace(built, fills=rng.random(calls) < 0.3, competes=rng.random(calls) < 0.8)
    return built, rng.exponential(30, calls)


@pytest.mark.parametrize("seed", range(40))
def test_the_step_lasts_at_least_as_long_as_host_and_busiest_stream(seed: int) -> None:
    built, kernels = _with_kernels(seed)
    t = simulate(built, kernels)
    streams = built.stream[built.call >= 0]
    busiest = max([kernels[streams == s].sum() for s in np.unique(streams)], default=0.0)
    main = [r for r in range(len(built)) if built.thread[r] == 0]
    host = (built.lead_us + built.gap_us + built.api_us + built.tail_us)[main].sum()
    assert t.step_us[0] >= max(busiest, host) - 1e-6
    assert busiest - 1e-6 <= t.active_us[0] <= kernels.sum() + 1e-6
    assert t.active_us[0] <= t.step_us[0] + 1e-6


@pytest.mark.parametrize("factor", [0.1, 0.9])
@pytest.mark.parametrize("seed", range(20))
def test_a_faster_kernel_never_makes_the_step_longer(seed: int, factor: float) -> None:
    built, kernels = _with_kernels(seed)
    # room on the device is first come, first served
    built = replace(built, fills=None, competes=None)
    faster = kernels.copy()
    faster[seed % len(kernels)] *= factor
    assert simulate(built, faster).step_us[0] <= simulate(built, kernels).step_us[0] + 1e-6
