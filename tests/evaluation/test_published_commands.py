"""Each row of an accuracy table names the command that gives it: rows that are drawn are asked for as a user would."""

from __future__ import annotations

import json
import random
import shlex

import pytest

from evaluation.compare_published import answer, shipped_models
from evaluation.pages.markdown import parts_of, table_rows
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from tests.commands import Steptime

DRAWN, DAILY, SEED = 12, "model=dlrm", 62
"""Rows that are asked: all of them at night, those with small graphs by `make test`."""

ROUNDED, STEADY = 6e-4, 0.01
"""Largest relative differences: of a time with four digits; of p10 and p90, whose draws differ between processors."""


def rows_with_commands() -> list[dict[str, str]]:
    """Rows of all tables of the accuracy pages that have a command."""
    pages = parts_of(project_dir() / "docs" / "accuracy.md")
    texts = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    rows = (row for text in texts.split("\n\n") for row in table_rows(text))
    return [row for row in rows if row.get("command", "").startswith("`steptime")]


ROWS = rows_with_commands()


def test_every_table_of_published_steps_has_commands() -> None:
    assert len(ROWS) > 200 and len({frozenset(row) for row in ROWS}) >= 2
    assert len({row["command"] for row in ROWS}) > 0.9 * len(ROWS)


DRAW = [
    pytest.param(
        row,
        id=row["command"][9:60],
        marks=[] if DAILY in row["command"] else [pytest.mark.nightly],
    )
    for row in random.Random(SEED).sample(ROWS, DRAWN)
]


@pytest.mark.parametrize("row", DRAW)
def test_a_row_is_what_its_command_answers(
    row: dict[str, str], steptime: Steptime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_dir())  # where the rows' own modules are
    command = row["command"].strip("`")
    _, *words = shlex.split(command)
    if words[0] == "compare":  # a mean over lengths
        found = answer(command, shipped_models())
        assert found.predicted_us / 1e3 == pytest.approx(float(row["predicted ms"]), rel=ROUNDED)
        return
    code, out, _ = steptime(*words, "--json")
    told = json.loads(out)
    assert not code
    if "predicted ms" not in row:
        assert f"{100 * told['efficiency']:.1f}" == row["predicted (%)"]
        return
    low, high = row["p10 to p90"].removesuffix(", outside").split(" to ")
    for name, shown, near in (
        ("predicted_us", row["predicted ms"], ROUNDED),
        ("p10_us", low, STEADY),
        ("p90_us", high, STEADY),
    ):
        assert told[name] / 1e3 == pytest.approx(float(shown), rel=near), name


def test_a_command_that_cannot_be_answered_is_named() -> None:
    with pytest.raises(SteptimeError, match=r"^steptime predict gpu=V100 model=dlrmm: unknown"):
        answer("steptime predict gpu=V100 model=dlrmm", shipped_models())
