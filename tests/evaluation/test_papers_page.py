"""The page of the two papers: its numbers from the shipped tables and packs, on few steps and on all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from evaluation.checks.lin2022_steps import predicted_dlrm
from evaluation.figures.accuracy_data import published_means
from evaluation.figures.paper_figures import measured_beside_predicted
from evaluation.pages import papers
from evaluation.published.published_lin2022 import read_dlrm
from pipeline.paths import project_dir

NUMBER = r"[-+]?\d+(?:\.\d+)?"


def test_errors_stand_beside_the_published_ones() -> None:
    measured = read_dlrm()
    us, busy = measured["measured_us"], measured["busy"]
    # active time 20 % too long, the step 10 %
    rows = measured.assign(predicted_us=1.1 * us, active_us=1.2 * busy * us, error=0.1)
    means = published_means(rows)
    assert means.iloc[0].tolist() == ["all", 7.95, 10.75, pytest.approx(10.0)]
    assert means["GPU"].tolist() == ["all", "V100", "Xp", "P100"]
    assert published_means(rows[1:])["GPU"].tolist() == ["Xp", "P100"], "unlike steps"
    assert "| V100 | 2.7 | 20.0 | 7.4 | 10.0 | " in papers.step_table(rows)
    figure = measured_beside_predicted(rows)
    ends = [bars[0].get_x() + bars[0].get_width() for bars in figure.axes[0].containers]
    step, share = 4.55, 0.5884 / 1.0873
    assert ends == pytest.approx([step * share, step, 1.2 * step * share, 1.1 * step])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    return Path(shutil.copy(project_dir() / papers.PAGE, tmp_path / papers.PAGE))


@pytest.mark.nightly  # predicts 72 steps
def test_the_page_holds_what_the_command_writes(tmp_path: Path, page: Path) -> None:
    before = page.read_text(encoding="utf-8")
    papers.write(tmp_path)
    after = page.read_text(encoding="utf-8")
    assert re.sub(NUMBER, "#", after) == re.sub(NUMBER, "#", before)
    numbers = (list(map(float, re.findall(NUMBER, text))) for text in (after, before))
    # intervals differ a little between processors
    assert next(numbers) == pytest.approx(next(numbers), rel=0.01, abs=0.11)


def test_active_time_of_a_step_is_within_the_step() -> None:
    (row,) = predicted_dlrm(read_dlrm().iloc[:1]).to_dict("records")
    assert 0 < row["active_us"] < row["predicted_us"] < 2 * row["measured_us"]
