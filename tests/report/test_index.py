"""The table of all points is right beside files of other runs, and its provenance names the models."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.prediction import Prediction
from pipeline.report.run_end import refresh
from pipeline.schemas import read_table, write_table
from pipeline.scripting import provenance


def test_a_damaged_summary_of_another_run_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = {"pack": 1.0}
    prediction = Prediction(
        "V100", "dlrm_ddp", "default", 64, 4e3, 3e3, 1e3, 3e3, 5e3, 1 << 30, True, evidence, evidence, 0.0
    )
    mine, other = (tmp_path / f"{gpu}/dlrm_ddp/default/b64/summary.parquet" for gpu in ("V100", "T4"))
    write_table(prediction.summary_row(), mine, "summary")
    other.parent.mkdir(parents=True)
    other.write_bytes(mine.read_bytes()[:200])
    table = refresh(tmp_path)
    assert table is not None
    assert list(read_table(table, "summary")["gpu"]) == ["V100"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "skipped in" in line and str(other) in line


def test_provenance_names_the_kernel_models_that_a_prediction_rests_on(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "gemm" / "auto"
    folder.mkdir(parents=True)
    calls = tmp_path / "calls.parquet"
    for path in (folder / "family.json", folder / "weights", calls):
        path.write_text("{}")
    job = SimpleNamespace(rule="predict", params={}, input=[str(calls), str(folder)])
    first = provenance(job)["inputs"]
    assert list(first) == [str(calls), str(folder / "family.json")]
    shutil.rmtree(folder)
    assert list(provenance(job)["inputs"]) == [str(calls)]
