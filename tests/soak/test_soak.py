"""A short soak with a fixed seed, and what the soak itself must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InputError
from soak import runner
from soak.damage import damaged, strange_json
from soak.kinds import KINDS
from soak.runner import soak, table
from soak.stand_ins import hangs_or_dies
from soak.verdicts import Case, difference, judge

QUICK = ("traces", "tables", "yaml")
"""Kinds whose undamaged input is made in a second."""

CASES = 8
"""Cases of each kind; `make soak` runs 10,000."""


@pytest.mark.parametrize("kind", QUICK)
def test_damaged_input_is_refused_in_one_line_or_read_rightly(
    kind: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    (tmp_path / "base").mkdir()
    base = KINDS[kind].prepare(tmp_path / "base")
    for number in range(CASES):
        (place := tmp_path / str(number)).mkdir()
        case = KINDS[kind].case(base, place, Random(f"short/{kind}/{number}"))
        verdict = judge(case)
        assert not verdict.failed, (number, case.mutation, verdict)


def refuse(text: str) -> None:
    raise InputError(text)


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (Case("", lambda: refuse("a.json: damaged; copy it again"), named=("a.json",)), "refused"),
        (Case("", lambda: refuse("damaged"), named=("a.json",)), "message"),
        (Case("", lambda: refuse("two\nlines")), "message"),
        (Case("", lambda: refuse("no"), must="accept"), "refused harmless"),
        (Case("", lambda: 1 / 0), "traceback"),
        (Case("", lambda: float(np.float64(1) / np.float64(0))), "traceback"),
        (Case("", lambda: 5, must="refuse"), "silent"),
        (Case("", lambda: 5, truth=5), "accepted"),
        (Case("", lambda: 5.1, truth=5), "wrong result"),
        (Case("", lambda: 5, truth=lambda found, said: "no note"), "wrong result"),
    ],
)
def test_each_kind_of_failure_is_found(case: Case, outcome: str) -> None:
    assert judge(case).outcome == outcome


def test_results_are_compared_in_depth() -> None:
    truth = {"a": [1, 2.5, None], "b": np.array([1.0, np.nan])}
    assert not difference({**truth, "a": [1, 2.5 * (1 + 1e-12), None]}, truth)
    others = ({"a": [1, 2.6, None]}, {"a": [1, 2.5]}, {"b": np.array([1.0, 0.0])}, {"b": None})
    assert all(difference({**truth, **other}, truth) for other in others)
    assert difference({"a": truth["a"]}, truth)


def test_a_seed_makes_the_same_damage_again() -> None:
    data, value = bytes(range(256)) * 4, {"a": [1, {"b": 2}], "c": "x"}
    for number in range(50):
        assert damaged(data, Random(number)) == damaged(data, Random(number))
        assert repr(strange_json(value, Random(number))) == repr(
            strange_json(value, Random(number))
        )
    assert value == {"a": [1, {"b": 2}], "c": "x"}


def test_a_case_that_hangs_and_one_that_ends_its_process_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(runner, "CASE_SECONDS", 0)

    def numbers() -> Iterator[int]:
        """Case 1 hangs in the process of case 0; those that start a process get a minute."""
        for number in range(5):
            monkeypatch.setattr(runner, "SETUP_SECONDS", 2 if number == 1 else 60)
            yield number

    said: list[str] = []
    tally = soak(1, numbers(), said.append, hangs_or_dies)
    outcomes = sum(tally.counts.values(), Counter[str]())
    assert outcomes == {"refused": 3, "hang": 1, "died": 1}
    assert [line.split()[1] for line in tally.failures] == ["1", "3"] and said == tally.failures
    assert "| all | 5 | 3 | 0 | 2 |" in table(tally)
