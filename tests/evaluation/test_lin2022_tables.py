"""Steps that Lin et al. measured: tables of invented errors, and the pages against the real ones."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from evaluation.checks.lin2022_steps import CNN_LOOP, DLRM_LOOP, predicted_cnn, predicted_dlrm
from evaluation.figures.paper_figures import published_networks
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
    predicted = rows["measured_us"] * factors
    rows = rows.assign(
        command="steptime predict",
        predicted_us=predicted,
        active_us=0.5 * predicted,
        p10_us=0.9 * predicted,
        p90_us=1.1 * predicted,
    )
    inside = (rows["p10_us"] <= rows["measured_us"]) & (rows["measured_us"] <= rows["p90_us"])
    return rows.assign(error=[factor - 1 for factor in factors], inside=inside)


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
    figure = published_networks(cnn)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["V100", "P100"]
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]


def test_the_loops_are_those_that_the_page_names() -> None:
    text = whole_text(project_dir() / "docs" / "accuracy.md")
    shown = re.search(r"under PyTorch 1\.8:\n`([^`]+)`", text)
    assert shown is not None
    assert set(shown[1].split()) == set(DLRM_LOOP.split())


@pytest.mark.nightly  # predicts 54 steps
def test_pages_hold_what_the_command_gives() -> None:
    dlrm, cnn = predicted_dlrm(), predicted_cnn()
    assert (len(dlrm), len(cnn)) == (36, 18)
    page = [
        _numbers(line) for line in whole_text(project_dir() / "docs" / "accuracy.md").splitlines()
    ]
    tables = [
        lin2022_tables.dlrm_summary(dlrm),
        lin2022_tables.cnn_summary(cnn),
        lin2022_tables.table(dlrm),
        lin2022_tables.table(cnn),
    ]
    for line in "\n".join(tables).splitlines():
        words, numbers = _numbers(line)
        shown = [line for text, line in page if text == words]
        assert any(near == pytest.approx(numbers, rel=NEAR, abs=LAST_PLACE) for near in shown), line


def _numbers(line: str) -> tuple[str, list[float]]:
    """A line with `#` for each number, and the numbers."""
    return re.sub(NUMBER, "#", line), [float(text) for text in re.findall(NUMBER, line)]


@pytest.mark.parametrize(
    ("experiment", "loop", "rows"), [("paper_dlrm", DLRM_LOOP, 36), ("paper_cnn", CNN_LOOP, 18)]
)
def test_the_experiment_asks_for_the_published_steps_in_their_loop(
    experiment: str, loop: str, rows: int
) -> None:
    steps = read_dlrm() if rows == 36 else read_cnn()
    points = expand([f"experiment={experiment}"])
    assert len(points) == rows
    assert {(p.gpu.name, p.model, p.batch_size) for p in points} == set(
        steps[list(KEYS)].itertuples(index=False, name=None)
    )
    assert {frozenset(p.overrides) for p in points} == {frozenset(loop.split())}
