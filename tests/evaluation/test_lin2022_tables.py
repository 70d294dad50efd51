"""Steps that Lin et al. measured: tables of invented errors, and the pages against the real ones."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest

from evaluation.checks.lin2022_steps import CNN_LOOP, DLRM_LOOP, predicted_cnn, predicted_dlrm
from evaluation.pages import lin2022_tables
from evaluation.pages.markdown import whole_text
from evaluation.published.published_lin2022 import KEYS, read_cnn, read_dlrm
from pipeline.paths import project_dir
from pipeline.question.question import expand

NUMBER = r"[-+]?\d+(?:\.\d+)?"
NEAR, LAST_PLACE = 0.004, 0.11
"""Relative and absolute tolerance: intervals differ a little between processors, and errors in % have one decimal."""


def judged(rows: pd.DataFrame, factors: list[float]) -> pd.DataFrame:
    """The rows with predictions that are the measured steps times these factors."""
    us = rows["measured_us"] * factors
    ends = {
        "p10_us": 0.9 * us,
        "p90_us": 1.1 * us,
        "inside": [1 / 1.1 <= f <= 1 / 0.9 for f in factors],
    }
    rows = rows.assign(predicted_us=us, active_us=0.5 * us, command="steptime predict", **ends)
    return rows.assign(error=[factor - 1 for factor in factors])


def test_tables_hold_the_errors_of_every_prediction() -> None:
    dlrm = judged(read_dlrm().iloc[[0, -1]].assign(published_error=[-0.02, 0.08]), [1.04, 0.75])
    cnn = judged(read_cnn().iloc[[0, -1]].assign(Habitat=[0.1, 0.025]), [1.1, 0.8])
    said = lin2022_tables.dlrm_summary(dlrm)
    assert "| Steptime | 10.00 | 14.5 | -10.5 | 25.0 | 1 of 2 |" in said
    assert "| Lin et al., overheads profiled on those hosts | 4.00 | 5.0 | +3.0 | 8.0 |  |" in said
    assert (
        "| P100 | dlrm_ddp | 4096 | 9.38 | 7.035 | 6.332 to 7.739, outside | -25.0 | +8.0 |"
        " `steptime predict` |" in lin2022_tables.table(dlrm)
    )
    for row in (
        "| Steptime | 15.0 | 10.0 | 20.0 | 10.0 | 20.0 | 20.0 |",
        "| Habitat | 6.2 | 10.0 | 2.5 | 10.0 | 2.5 | 10.0 |",
    ):
        assert row in lin2022_tables.cnn_summary(cnn)
    shares = lin2022_tables.busy_tables(
        dlrm.assign(busy=[0.6, 0.3], published_busy=[0.7, 0.3]), {"the default loop": dlrm}
    )
    for row in (
        "| Lin et al., overheads profiled on those hosts | +5.0 | 5.0 | 10 |",
        "| Steptime, the default loop | +5.0 | 15.0 | 20 |",
    ):
        assert row in shares


@pytest.mark.nightly  # predicts 54 steps
def test_pages_hold_what_the_command_gives() -> None:
    dlrm, cnn = predicted_dlrm(), predicted_cnn()
    assert (len(dlrm), len(cnn)) == (36, 18)
    page = _numbers(whole_text(project_dir() / "docs" / "accuracy.md"))
    tables = [
        lin2022_tables.dlrm_summary(dlrm),
        lin2022_tables.cnn_summary(cnn),
        lin2022_tables.table(dlrm),
        lin2022_tables.table(cnn),
    ]
    for words, numbers in _numbers("\n".join(tables)):
        near = pytest.approx(numbers, rel=NEAR, abs=LAST_PLACE)
        assert any(shown == near for text, shown in page if text == words), (words, numbers)


def _numbers(text: str) -> list[tuple[str, list[float]]]:
    """Of each line its words, with `#` for a number, and its numbers."""
    return [
        (re.sub(NUMBER, "#", line), [float(number) for number in re.findall(NUMBER, line)])
        for line in text.splitlines()
    ]


@pytest.mark.parametrize(
    ("experiment", "loop", "read"),
    [("paper_dlrm", DLRM_LOOP, read_dlrm), ("paper_cnn", CNN_LOOP, read_cnn)],
)
def test_the_experiment_asks_for_the_published_steps_in_their_loop(
    experiment: str, loop: str, read: Callable[[], pd.DataFrame]
) -> None:
    points = expand([f"experiment={experiment}"])
    asked = [(p.gpu.name, p.model, p.batch_size) for p in points]
    assert sorted(asked) == sorted(read()[list(KEYS)].itertuples(index=False, name=None))
    assert {frozenset(p.overrides) for p in points} == {frozenset(loop.split())}
