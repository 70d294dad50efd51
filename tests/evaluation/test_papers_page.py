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
from evaluation.pages.markdown import block
from evaluation.published.published_lin2022 import read_dlrm
from pipeline.paths import project_dir

NUMBER = r"[-+]?\d+(?:\.\d+)?"


def test_errors_stand_beside_the_published_ones() -> None:
    measured = read_dlrm()
    rows = measured.assign(
        predicted_us=1.1 * measured["measured_us"],
        active_us=1.2 * measured["busy"] * measured["measured_us"],
        error=0.1,
    )
    means = published_means(rows)
    assert means.iloc[0].tolist() == ["all", 7.95, 10.75, pytest.approx(10.0)]
    assert means["GPU"].tolist() == ["all", "V100", "Xp", "P100"]
    assert published_means(rows.iloc[1:])["GPU"].tolist() == [
        "Xp",
        "P100",
    ]  # unlike steps are not compared
    # active time 20 % too long, the step 10 %
    assert "| V100 | 2.7 | 20.0 | 7.4 | 10.0 | " in papers.step_table(rows)
    figure = measured_beside_predicted(rows)
    first = figure.axes[0].containers
    ends = [float(bars[0].get_x() + bars[0].get_width()) for bars in first]
    step, busy = 4.55, 0.5884 / 1.0873
    assert ends == pytest.approx([step * busy, step, 1.2 * step * busy, 1.1 * step])


@pytest.mark.nightly  # draws all figures of the papers from a few steps
def test_few_steps_give_every_block_and_figure_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(project_dir() / papers.PAGE, tmp_path / papers.PAGE)
    text = (tmp_path / papers.PAGE).read_text(encoding="utf-8")
    names = re.findall(r"^<!-- (\w+) -->$", text, flags=re.MULTILINE)
    written = papers.write(tmp_path, tiny=True)
    assert [path.stem for path in written[1:]] == names
    assert re.findall(r"\]\(images/papers/(\w+)\.svg\)", text) == names
    assert "tril_index_forward" in block(
        (tmp_path / papers.PAGE).read_text(encoding="utf-8"), "kernels"
    )
    for name in ("overheads", "pairs", "scaling"):  # these do not depend on the steps
        assert block((tmp_path / papers.PAGE).read_text(encoding="utf-8"), name) == block(
            text, name
        )


@pytest.mark.nightly  # predicts 72 steps
def test_the_page_holds_what_the_command_writes(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(project_dir() / papers.PAGE, tmp_path / papers.PAGE)
    text = (tmp_path / papers.PAGE).read_text(encoding="utf-8")
    papers.write(tmp_path)
    again = (tmp_path / papers.PAGE).read_text(encoding="utf-8")
    assert re.sub(NUMBER, "#", again) == re.sub(NUMBER, "#", text)
    numbers = ([float(number) for number in re.findall(NUMBER, page)] for page in (again, text))
    # intervals differ a little between processors
    assert next(numbers) == pytest.approx(next(numbers), rel=0.01, abs=0.11)


def test_active_time_of_a_step_is_within_the_step() -> None:
    (row,) = predicted_dlrm(read_dlrm().iloc[:1]).to_dict("records")
    assert 0 < row["active_us"] < row["predicted_us"] < 2 * row["measured_us"]
