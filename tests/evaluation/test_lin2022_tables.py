"""Steps that Lin et al. measured: tables of invented errors, and the pages against the real ones."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.lin2022_steps import DLRM_LOOP, predicted_cnn, predicted_dlrm
from evaluation.figures.measured_errors import CONVNETS
from evaluation.pages import lin2022_tables
from evaluation.pages.pictures import published_networks
from evaluation.published.published_busy import FILE as NOTEBOOK
from evaluation.published.published_errors import NETWORK_METHODS, published
from evaluation.published.published_lin2022 import CNN_FILE, read_cnn, read_dlrm
from pipeline.paths import project_dir
from tests.evaluation import published_texts as texts

LIN2022 = project_dir() / "benchmarks" / "steps" / "lin2022.py"

NUMBER = r"[-+]?\d+(?:\.\d+)?"
NEAR, LAST_PLACE = 0.004, 0.11
"""Relative and absolute tolerance: intervals differ a little between processors, and errors in % have one decimal."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return texts.write(tmp_path)


def judged(rows: pd.DataFrame, factors: list[float]) -> pd.DataFrame:
    """The rows with predictions that are the measured steps times these factors."""
    predicted = rows["measured_us"] * factors
    rows = rows.assign(predicted_us=predicted, p10_us=0.9 * predicted, p90_us=1.1 * predicted)
    inside = (rows["p10_us"] <= rows["measured_us"]) & (rows["measured_us"] <= rows["p90_us"])
    return rows.assign(error=[factor - 1 for factor in factors], inside=inside)


def test_tables_hold_the_errors_of_every_prediction(data: Path) -> None:
    dlrm, cnn = judged(read_dlrm(data), [1.04, 0.75]), judged(read_cnn(data), [1.1, 0.8])
    assert "| Steptime | 10.00 | 14.5 | -10.5 | 25.0 | 1 of 2 |" in lin2022_tables.dlrm_summary(dlrm)
    assert "Lin et al., overheads" not in lin2022_tables.dlrm_summary(dlrm)
    both = lin2022_tables.dlrm_summary(dlrm.assign(published_error=[-0.02, 0.08]))
    assert "| Lin et al., overheads profiled on those hosts | 4.00 | 5.0 | +3.0 | 8.0 |  |" in both
    assert lin2022_tables.table(dlrm).endswith(
        "| Xp | dlrm_ddp | 4096 | 12.50 | 9.38 | 8.44 to 10.31, outside | -25.0 |"
    )
    for row in (
        "| Steptime | 15.0 | 10.0 | 20.0 | 10.0 | 20.0 | 20.0 |",
        "| Habitat | 6.2 | 10.0 | 2.5 | 10.0 | 2.5 | 10.0 |",
    ):
        assert row in lin2022_tables.cnn_summary(cnn)
    assert [row.split(" | ")[2] for row in lin2022_tables.table(cnn).splitlines()[2:]] == ["16", "32"]
    figure = published_networks(cnn)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["V100", "P100"]
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]


def test_the_page_is_not_written_without_the_published_errors(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / NOTEBOOK).unlink()
    page = data / "page.md"
    page.write_text("as it was")
    monkeypatch.setattr(sys, "argv", ["lin2022.py", str(data), "--write", str(page)])
    assert runpy.run_path(str(LIN2022))["main"]() == 2
    assert "e2e_plot.ipynb is not at hand" in capsys.readouterr().err
    assert page.read_text() == "as it was"


def test_the_loops_are_those_that_the_page_names() -> None:
    text = (project_dir() / "docs" / "accuracy.md").read_text(encoding="utf-8")
    shown = re.search(r"under PyTorch 1\.8:\n`([^`]+)`", text)
    assert shown is not None
    assert set(shown[1].split()) == {f"{name}={str(value).lower()}" for name, value in DLRM_LOOP.items()}


@pytest.fixture(scope="module")
def measured(datasets: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of the paper with predictions."""
    if not (datasets / CNN_FILE).is_file():
        pytest.skip("the measured steps of Lin et al. are not at hand (paper/ under $STEPTIME_DATASETS)")
    return predicted_dlrm(datasets), predicted_cnn(datasets)


@pytest.mark.nightly  # predicts 54 steps
def test_pages_hold_what_the_command_gives(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Without the notebook of published errors, rows lack their last column: they begin rows of the page."""
    dlrm, cnn = measured
    assert (len(dlrm), len(cnn)) == (36, 18)
    page = [
        _numbers(line) for line in (project_dir() / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    ]
    tables = [
        lin2022_tables.dlrm_summary(dlrm),
        lin2022_tables.cnn_summary(cnn),
        lin2022_tables.table(dlrm),
        lin2022_tables.table(cnn),
    ]
    for line in "\n".join(tables).splitlines():
        words, numbers = _numbers(line)
        shown = [each[: len(numbers)] for text, each in page if text.startswith(words)]
        assert any(each == pytest.approx(numbers, rel=NEAR, abs=LAST_PLACE) for each in shown), line


def _numbers(line: str) -> tuple[str, list[float]]:
    """A line with `#` for each number, and the numbers."""
    return re.sub(NUMBER, "#", line), [float(text) for text in re.findall(NUMBER, line)]


@pytest.mark.nightly
def test_published_means_of_networks_are_those_of_the_table(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    for network in CONVNETS:
        own = measured[1].query("model == @network")
        for method in NETWORK_METHODS.values():
            assert published(f"{network} {method}")[0].percent == pytest.approx(100 * own[method].mean(), abs=0.05)
