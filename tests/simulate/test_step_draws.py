"""The compiled walk gives what the walk in NumPy gives, to the last bit; the critical path is the same compiled or not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from pipeline.simulate import compiled_walk, critical_path, timeline
from pipeline.simulate.critical_path import simulate, step_times
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import as_published
from tests.commands import python
from tests.simulate.programs import HOST, LAUNCH, SYNC, program, row


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
    rows: list[dict[str, Any]] = []
    calls = 0
    for i in range(int(rng.integers(1, 60))):
        kind = int(rng.choice([HOST, LAUNCH, LAUNCH, LAUNCH, SYNC]))
        times = {name: float(rng.exponential(5.0)) for name in ("lead", "gap", "api", "tail")}
        waits = (
            tuple(rng.integers(0, calls, rng.integers(0, 3)).tolist())
            if calls and kind != HOST
            else ()
        )
        stream = int(rng.integers(-1 if kind == SYNC else 0, 3))
        previous = int(rng.integers(-1, i)) if i and rng.random() < 0.2 else None
        rows.append(
            row(
                kind,
                stream=stream,
                thread=int(rng.integers(0, 2)),
                waits=waits,
                previous=previous,
                blocking=bool(kind == LAUNCH and rng.random() < 0.1),
                latency=float(rng.choice([0.0, 4.0])),
                **times,
            )
        )
        calls += kind == LAUNCH
    depth, collectives = int(rng.choice([0, 1, 3])), int(rng.choice([-1, 2]))
    backlog, loop = tuple(rng.choice([0.0, 30.0], 3).tolist()), bool(rng.integers(0, 2))
    return program(*rows, backlog=backlog, loop=loop, queue_depth=depth, collectives=collectives)


@pytest.mark.parametrize("seed", range(40))
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


@pytest.mark.parametrize("draws", [1, 31, 32, 33, 64])
def test_every_count_of_draws(draws: int) -> None:
    compiled, plain = both(random_program(3), draws)
    assert compiled.shape == (draws,) and np.array_equal(compiled, plain)


def test_further_calls_of_one_launch_take_no_place_in_the_queue() -> None:
    rows = [*(row(api=2.0) for _ in range(12)), row(HOST, gap=500.0)]
    further = np.arange(13) % 3 > 0
    free = program(*rows, queue_depth=2, further=further)
    assert np.array_equal(*both(free, 40))
    assert not np.array_equal(both(free, 40)[0], both(program(*rows, queue_depth=2), 40)[0])


def test_a_step_without_calls() -> None:
    assert np.array_equal(*both(program(row(HOST, gap=3.0), row(HOST, gap=4.0)), 5))


@pytest.mark.parametrize("seed", range(5))
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


def test_a_small_step_does_not_load_the_compiler() -> None:
    point = ["gpu=V100", "model=dlrm_default", "predict.draws=64"]
    source = (
        "import sys; from pipeline.answers.engine import engine; from pipeline.question.question"
        f" import expand; engine().predict_one(expand({point!r})[0]).whole(); sys.exit('numba' in"
        " sys.modules)"
    )
    assert python(source).returncode == 0
