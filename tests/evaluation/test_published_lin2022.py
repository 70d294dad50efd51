"""Steps that Lin et al. measured: made-up tables in the form of theirs, and the pages against the real ones."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.lin2022_steps import DLRM_LOOP, are_present, predicted_cnn, predicted_dlrm
from evaluation.pages import lin2022_tables
from evaluation.pages.accuracy_tables import lin2022_rows, published_rows
from evaluation.pages.markdown import markdown
from evaluation.pages.pictures import published_networks
from evaluation.published.published_lin2022 import CNN_FILE, DLRM_FILE, read_cnn, read_dlrm
from pipeline.errors import TableError
from pipeline.paths import project_dir
from pipeline.show.figures.measured_errors import CONVNETS
from pipeline.show.figures.published_errors import NETWORK_METHODS, published

DLRM = """gpu,model,batch_size,batch_time_ms
V100,DLRM_default,512,5.0
Xp,DLRM_DDP,4096,12.5
"""
CNN = """gpu,model,batch_size,batch_time_ms,err_lin_pct,err_habitat_pct,err_mlpredict_pct
V100,ResNet50,16,80.0,5.0,10.0,20.0
P100,Inception-V3,32,160.0,7.5,2.5,0.0
"""

LIN2022 = project_dir() / "benchmarks" / "steps" / "lin2022.py"

NUMBER = r"[-+]?\d+(?:\.\d+)?"
NEAR, LAST_PLACE = 0.004, 0.11
"""Relative and absolute tolerance: intervals differ a little between processors, and errors in % have one decimal."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "paper").mkdir()
    (tmp_path / DLRM_FILE).write_text(DLRM)
    (tmp_path / CNN_FILE).write_text(CNN)
    return tmp_path


def test_times_become_microseconds_and_names_ours(data: Path) -> None:
    rows = read_dlrm(data)
    assert list(rows.columns) == ["gpu", "model", "batch_size", "measured_us"]
    assert rows.values.tolist() == [["V100", "dlrm_default", 512, 5000.0], ["Xp", "dlrm_ddp", 4096, 12500.0]]


def test_published_errors_become_shares_of_the_measured_step(data: Path) -> None:
    rows = read_cnn(data)
    assert rows["model"].tolist() == ["resnet50", "inception_v3"]
    assert [rows[name].tolist() for name in NETWORK_METHODS.values()] == [
        pytest.approx([0.05, 0.075]), pytest.approx([0.1, 0.025]), pytest.approx([0.2, 0.0])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_time_ms", "batch_time_us", "column batch_time_ms is missing"),
        (DLRM.partition("\n")[2], "", "has no rows"),
        ("Xp", "A100", "column gpu has the unknown value 'A100'; known are V100, Xp, P100"),
        ("DLRM_DDP", "ResNet50", "column model has the unknown value 'ResNet50'"),
        ("12.5", "", "line 3: batch_time_ms is not a positive number"),
        ("12.5", "nan", "line 3: batch_time_ms is not a positive number"),
        ("12.5", "inf", "line 3: batch_time_ms is not a positive number"),
        ("12.5", "0", "line 3: batch_time_ms is not a positive number"),
        ("4096", "4096.5", "line 3: batch_size is not a positive whole number"),
        ("Xp,DLRM_DDP,4096", "V100,DLRM_default,512", "line 3: repeats a GPU, model and batch size"),
        ("5.0", '"5.0', "not a readable CSV file"),
        (DLRM, "", "not a readable CSV file"),
    ],
)
def test_other_contents_are_refused_in_one_line(data: Path, old: str, new: str, message: str) -> None:
    (data / DLRM_FILE).write_text(DLRM.replace(old, new))
    with pytest.raises(TableError, match=message) as caught:
        read_dlrm(data)
    assert str(data / DLRM_FILE) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_negative_error_and_a_missing_or_binary_table_are_refused(data: Path) -> None:
    (data / CNN_FILE).write_text(CNN.replace("7.5", "-7.5"))
    with pytest.raises(TableError, match="line 3: err_lin_pct is not 0 or a positive number"):
        read_cnn(data)
    (data / CNN_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not a readable CSV file"):
        read_cnn(data)
    assert are_present(data)
    (data / CNN_FILE).unlink()
    assert not are_present(data)
    with pytest.raises(TableError, match=r"no such file; docs/accuracy\.md says where it comes from"):
        read_cnn(data)


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
    page = data / "page.md"
    page.write_text("as it was")
    monkeypatch.setattr(sys, "argv", ["lin2022.py", str(data), "--write", str(page)])
    assert runpy.run_path(str(LIN2022))["main"]() == 2
    assert "e2e_plot.ipynb: no such file" in capsys.readouterr().err
    assert page.read_text() == "as it was"


def test_the_loops_are_those_that_the_page_names() -> None:
    text = (project_dir() / "docs" / "accuracy.md").read_text(encoding="utf-8")
    shown = re.search(r"under PyTorch 1\.8:\n`([^`]+)`", text)
    assert shown is not None
    assert set(shown[1].split()) == {f"{name}={str(value).lower()}" for name, value in DLRM_LOOP.items()}


@pytest.fixture(scope="module")
def measured(datasets: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of the paper with predictions."""
    if not are_present(datasets):
        pytest.skip("the measured steps of Lin et al. are not at hand (paper/ under $STEPTIME_DATASETS)")
    return predicted_dlrm(datasets), predicted_cnn(datasets)


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


def test_stages_hold_these_steps(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    lines = markdown(["stage"], lin2022_rows(*measured)).splitlines()[2:]
    assert len(lines) == 2
    page = (project_dir() / "docs/accuracy.md").read_text(encoding="utf-8")
    assert all(line in page for line in lines), "run `make readme`"
    small = (project_dir() / "README.md").read_text(encoding="utf-8")
    rows = [f"| {' | '.join(row)} |" for row in published_rows(page) if "Lin et al." in row[1]]
    assert len(rows) == 3 and all(row in small for row in rows), "run `make readme`"


def test_published_means_of_networks_are_those_of_the_table(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    for network in CONVNETS:
        own = measured[1].query("model == @network")
        for method in NETWORK_METHODS.values():
            assert published(f"{network} {method}")[0].percent == pytest.approx(100 * own[method].mean(), abs=0.05)
