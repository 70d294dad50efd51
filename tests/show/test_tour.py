"""The notebook of docs/: with `make nightly` every cell runs, and the outputs in the file are those of today's predictions.

After a change, `make pictures` executes it again.
"""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pandas as pd
import pytest

from evaluation.pages.doc_pictures import run_cell
from pipeline.paths import project_dir

TOUR = project_dir() / "docs" / "tour.ipynb"
MOST_BYTES = 300_000

SAME = 0.02
"""Largest relative difference between a number in the file and today's: processors differ in the last digits."""


def cells() -> list[Any]:
    return [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]


def numbers(text: str) -> list[float]:
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.nightly
def test_every_cell_runs_and_shows_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    monkeypatch.chdir(TOUR.parent)
    names: dict[str, Any] = {}
    pictures = 0
    for cell in cells():
        value, printed = run_cell(cell.source, names)
        shown = {
            kind: text for output in cell.outputs for kind, text in output.get("data", {}).items()
        }
        if "image/png" in shown:
            assert type(value).__name__ == "Figure", cell.source
            pictures += 1
            continue
        told = "".join(output.get("text", "") for output in cell.outputs)
        if isinstance(value, pd.DataFrame):
            now, before = value._repr_html_(), shown["text/html"]
        else:
            now, before = "" if value is None else repr(value), shown.get("text/plain", "")
        assert numbers(now) == pytest.approx(numbers(before), rel=SAME), cell.source
        assert numbers(printed) == pytest.approx(numbers(told), rel=SAME), cell.source
    assert pictures == 3


def test_the_file_is_small_and_says_nothing_of_a_machine() -> None:
    text = TOUR.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert not re.search(r"(?<![\w/.])/(tmp|home|root|work|usr)/", text)
    assert not any("execution" in cell.metadata for cell in cells())  # times of a machine
    kinds = {output.output_type for cell in cells() for output in cell.outputs}
    assert kinds and "error" not in kinds
