"""A short soak with a fixed seed, and what the soak itself must find."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InputError
from soak import runner
from soak.damage import damaged, strange_json
from soak.kinds import KINDS
from soak.runner import State, soak, table
from soak.stand_ins import dying, sleeping
from soak.verdicts import Case, difference, judge

QUICK = ("traces", "tables", "yaml")
"""Kinds whose undamaged input is made in a second."""

CASES = 20
"""Cases of each kind; `make soak` runs 10,000."""


@pytest.mark.parametrize("kind", QUICK)
def test_damaged_input_is_refused_in_one_line_or_read_rightly(
    kind: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    (tmp_path / "base").mkdir()
    base = KINDS[kind].prepare(tmp_path / "base")
    failed = []
    for number in range(CASES):
        (place := tmp_path / str(number)).mkdir()
        case = KINDS[kind].case(base, place, Random(f"short/{kind}/{number}"))
        verdict = judge(case)
        failed += (
            [f"{number} {case.mutation}: {verdict.outcome}: {verdict.detail}"]
            if verdict.failed
            else []
        )
    assert not failed


def refuse(text: str) -> None:
    raise InputError(text)


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (Case("", lambda: refuse("a.json: damaged; copy it again"), named=("a.json",)), "refused"),
        (Case("", lambda: refuse("damaged"), named=("a.json",)), "message"),
        (Case("", lambda: refuse("two\nlines")), "message"),
        (Case("", lambda: refuse("x" * 5000)), "message"),
        (Case("", lambda: refuse("no"), must="accept"), "refused harmless"),
        (Case("", lambda: 1 / 0), "traceback"),
        (Case("", lambda: exit(3)), "traceback"),
        (Case("", lambda: float(np.float64(1) / np.float64(0))), "traceback"),
        (Case("", lambda: 5, must="refuse"), "silent"),
        (Case("", lambda: 5, truth=5), "accepted"),
        (Case("", lambda: 5.1, truth=5), "wrong result"),
        (Case("", lambda: 5, truth=lambda found, said: "no note"), "wrong result"),
        (Case("", lambda: 5), "accepted"),
    ],
)
def test_each_kind_of_failure_is_found(case: Case, outcome: str) -> None:
    assert judge(case).outcome == outcome


def test_results_are_compared_in_depth() -> None:
    truth = {"a": [1, 2.5, None], "b": np.array([1.0, np.nan])}
    assert (
        difference({"a": [1, 2.5 * (1 + 1e-12), None], "b": np.array([1.0, np.nan])}, truth) == ""
    )
    for other in (
        {"a": [1, 2.5, None]},
        {**truth, "a": [1, 2.6, None]},
        {**truth, "b": np.array([1.0, 0.0])},
        {**truth, "b": np.array([1.0])},
        {**truth, "a": [1, 2.5]},
    ):
        assert difference(other, truth)


def test_a_seed_makes_the_same_damage_again() -> None:
    data, value = bytes(range(256)) * 4, {"a": [1, {"b": 2}], "c": "x"}
    for number in range(50):
        assert damaged(data, Random(number)) == damaged(data, Random(number))
        assert repr(strange_json(value, Random(number))) == repr(
            strange_json(value, Random(number))
        )
    assert value == {"a": [1, {"b": 2}], "c": "x"}


def test_a_case_that_hangs_is_counted_and_the_rest_runs_in_another_process(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(runner, "work", sleeping)
    monkeypatch.setattr(runner, "CASE_SECONDS", 1.0)
    state = soak(State(seed=1, cases=3), tmp_path / "state.json", lambda _: None)
    assert state.counts == {"traces": {"refused": 2, "hang": 1}}
    assert [failure["case"] for failure in state.failures] == [1]
    assert State.load(tmp_path / "state.json") == state
    assert "| profiler traces (both readers) | 3 | 2 | 0 | 1 |" in table(state)


def test_a_process_that_dies_is_counted_and_a_stopped_soak_goes_on(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(runner, "work", dying)
    state = soak(State(seed=1, cases=2), tmp_path / "state.json", lambda _: None)
    assert state.counts == {"traces": {"accepted": 1, "died": 1}}
    again = State.load(tmp_path / "state.json")
    again.cases = 4
    assert soak(again, None, lambda _: None).counts == {"traces": {"accepted": 2, "died": 2}}
