"""The compiled walk gives what the walk in NumPy gives, to the last bit; the critical path is the same compiled or not."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from pipeline.simulate import compiled_walk, critical_path, timeline
from pipeline.simulate.critical_path import simulate, step_times
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import as_published
from tests.simulate.programs import HOST, LAUNCH, SYNC, drawn_rows, program, row


def both(subject: Program, draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Step times of random kernel and host times: compiled, and in NumPy."""
    rng = np.random.default_rng(seed)
    distinct = max(subject.call_count // 2, 1)
    times, scale = rng.lognormal(2.0, 1.0, (distinct, draws)), rng.lognormal(0.0, 0.3, draws)
    which = rng.integers(0, distinct, subject.call_count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(critical_path, "load_if_it_pays", lambda values: False)
        plain = step_times(subject, times, which, scale)
        patch.setattr(critical_path, "load_if_it_pays", lambda values: True)
        return step_times(subject, times, which, scale), plain


def random_program(seed: int) -> Program:
    """Rows of every kind: two threads, three streams (one of collectives), waits, blocking copies, earlier work."""
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, int(rng.integers(1, 60)), streams=3, threads=2, blocking=0.1)
    calls = 0
    for i, each in enumerate(rows):
        if calls and each["kind"] != HOST:
            each["waits"] = tuple(rng.integers(0, calls, rng.integers(0, 3)).tolist())
        if each["kind"] == SYNC and rng.random() < 0.3:
            each["stream"] = -1
        if i and rng.random() < 0.2:
            each["previous"] = int(rng.integers(-1, i))
        calls += each["kind"] == LAUNCH
    depth, collectives = int(rng.choice([0, 1, 3])), int(rng.choice([-1, 2]))
    backlog, loop = tuple(rng.choice([0.0, 30.0], 3).tolist()), bool(rng.integers(0, 2))
    return program(*rows, backlog=backlog, loop=loop, queue_depth=depth, collectives=collectives)


@pytest.mark.parametrize("seed", range(25))
def test_step_times_timelines_and_critical_paths_of_random_programs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = random_program(seed)
    assert np.array_equal(*both(subject, 70, seed))
    kernels = np.random.default_rng(seed).lognormal(2.0, 1.0, subject.call_count)
    steps, paths = [], []
    for compiled in (True, False):
        monkeypatch.setattr(
            critical_path, "load_if_it_pays", lambda values, answer=compiled: answer
        )
        monkeypatch.setattr(timeline, "is_loaded", lambda answer=compiled: answer)
        steps.append(simulate(subject, kernels, host_scale=1.1))
        paths.append(asdict(steps[-1].critical))
    for name in compiled_walk.Walked._fields:
        assert np.array_equal(
            getattr(steps[0], name), getattr(steps[1], name), equal_nan="device_" in name
        ), name
    for name, value in paths[0].items():
        assert np.array_equal(value, paths[1][name]), name
    assert len(paths[0]["moments"]) > 0


@pytest.mark.parametrize("draws", [1, 32, 33])
def test_every_count_of_draws(draws: int) -> None:
    compiled, plain = both(random_program(3), draws)
    assert compiled.shape == (draws,) and np.array_equal(compiled, plain)


def test_further_calls_of_one_launch_take_no_place_in_the_queue() -> None:
    rows = [*(row(api=2.0) for _ in range(12)), row(HOST, gap=500.0)]
    further = np.arange(13) % 3 > 0
    free = program(*rows, queue_depth=2, further=further)
    assert np.array_equal(*both(free, 40))
    assert not np.array_equal(both(free, 40)[0], both(program(*rows, queue_depth=2), 40)[0])


@pytest.mark.parametrize("seed", range(2))
def test_the_published_form_is_the_same_compiled(seed: int) -> None:
    assert np.array_equal(*both(as_published(random_program(seed)), 4, seed))


def test_full_devices_are_walked_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critical_path, "walk", lambda *_: pytest.fail("the compiled walk was used"))
    monkeypatch.setattr(critical_path, "COMPILED_FROM", 0)
    rows = [row(api=2.0), row(api=1.0, stream=1)]
    times, which, scale = np.full((2, 4), 9.0), np.array([0, 1]), np.ones(4)
    full = program(*rows, fills=np.array([True, True]), competes=np.array([True, True]))
    assert np.array_equal(
        step_times(full, times, which, scale), simulate(full, times[which].T).step_us
    )
