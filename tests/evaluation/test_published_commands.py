"""Each row of an accuracy table names the command that gives it: rows that are drawn are asked for as a user would."""

from __future__ import annotations

import json
import random
import shlex

import pytest

from evaluation.compare_published import answer, shipped_models
from evaluation.pages.markdown import parts_of
from pipeline.cli import main
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir

DRAWN, DAILY, SEED = 12, 3, 62
"""Rows that are asked: all of them at night, the first of them by `make test`."""

ROUNDED, STEADY = 6e-4, 0.01
"""Largest relative differences: of a time with four digits; of p10 and p90, whose draws differ between processors."""


def rows_with_commands() -> list[dict[str, str]]:
    """Rows of all tables of the accuracy pages that have a command."""
    found = []
    for page in parts_of(project_dir() / "docs" / "accuracy.md"):
        head: list[str] = []
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")] if "|" in line else []
            if cells and cells[-1] == "command":
                head = cells
            elif head and len(cells) == len(head) and "`steptime" in cells[-1]:
                found.append(dict(zip(head, cells, strict=True)))
            elif not cells:
                head = []
    return found


ROWS = rows_with_commands()


def test_every_table_of_published_steps_has_commands() -> None:
    kinds = {frozenset(row) for row in ROWS}
    assert len(ROWS) > 200 and len(kinds) >= 2
    assert len({row["command"] for row in ROWS}) > 0.9 * len(ROWS)


DRAW = [
    pytest.param(row, id=row["command"][9:60], marks=[pytest.mark.nightly] if at >= DAILY else [])
    for at, row in enumerate(random.Random(SEED).sample(ROWS, DRAWN))
]


@pytest.mark.parametrize("row", DRAW)
def test_a_row_is_what_its_command_answers(
    row: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_dir())  # where the rows' own modules are
    words = shlex.split(row["command"].strip("`"))[1:]
    if words[0] == "compare":  # a mean over lengths
        found = answer(row["command"].strip("`"), shipped_models())
        assert found.predicted_us / 1e3 == pytest.approx(float(row["predicted ms"]), rel=ROUNDED)
        return
    monkeypatch.setattr("sys.argv", ["steptime", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    if "predicted ms" in row:
        assert told["predicted_us"] / 1e3 == pytest.approx(float(row["predicted ms"]), rel=ROUNDED)
        low, high = row["p10 to p90"].removesuffix(", outside").split(" to ")
        assert told["p10_us"] / 1e3 == pytest.approx(float(low), rel=STEADY)
        assert told["p90_us"] / 1e3 == pytest.approx(float(high), rel=STEADY)
    else:
        assert f"{100 * told['efficiency']:.1f}" == row["predicted (%)"]


def test_a_command_that_cannot_be_answered_is_named() -> None:
    with pytest.raises(SteptimeError, match=r"^steptime predict gpu=V100 model=dlrmm: unknown"):
        answer("steptime predict gpu=V100 model=dlrmm", shipped_models())
