"""The page of models of libraries says what a prediction says: a sample of its rows, and all of them with `make nightly`."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

import pytest

from evaluation.pages.library_models import HEAD, Case, answer_apart, cases, shown_rows
from pipeline.paths import project_dir
from pipeline.question.options import NAMED_BY

EVERY = 250
"""One of so many models is predicted in the suite."""

SHARE_POINTS = 5
"""Difference in percentage points of a share of evidence that refits of the packs may make."""

PINS = dict(
    line.split("==")
    for line in (project_dir() / "constraints.txt").read_text().split()
    if "==" in line
)


def listed(library: str) -> list[Case]:
    try:
        found = version(library)
    except PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if found != PINS[library]:
        pytest.skip(f"the page is of {library} {PINS[library]}")
    return list(cases(library))


def assert_true_to_the_page(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "STEPTIME_CACHE", "none")
    stated = shown_rows(case.library)[case.name]
    found = dict(zip(HEAD, case.row(answer_apart(case)), strict=True))
    assert found["captured"] == stated["captured"]
    for share in HEAD[-3:]:
        assert float(found[share] or 0) == pytest.approx(
            float(stated[share] or 0), abs=SHARE_POINTS
        ), share


@pytest.mark.parametrize("library", NAMED_BY)
def test_the_page_has_a_row_for_every_model(library: str) -> None:
    assert list(shown_rows(library)) == [case.name for case in listed(library)]


@pytest.mark.parametrize("library", NAMED_BY)
def test_a_sample_of_rows_is_true(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in listed(library)[::EVERY]:
        assert_true_to_the_page(case, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("library", NAMED_BY)
def test_every_row_is_true(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in listed(library):
        assert_true_to_the_page(case, monkeypatch)
