"""Before and after a run: dates of the future, the table of all points beside files of other runs, paths that exist."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.prediction import Prediction
from pipeline.schemas import read_table, write_table
from pipeline.scripting import provenance
from pipeline.show.run_hooks import artifact_paths, date_now, refresh

PACK = {"pack": 1.0}
PREDICTION = Prediction("V100", "dlrm_ddp", "default", 64, 4e3, 3e3, 1e3, 3e3, 5e3, 1 << 30, True, PACK, PACK, 0.0)


def test_artifacts_of_a_grid_lie_under_the_results_and_not_under_the_grid(tmp_path: Path) -> None:
    point, grid = tmp_path / "V100" / "dlrm_ddp" / "default" / "b64", tmp_path / "grids" / "one"
    assert artifact_paths([PREDICTION], tmp_path) == {}, "no folder is named that is not there"
    point.mkdir(parents=True)
    grid.mkdir(parents=True)
    assert {artifact_paths([PREDICTION], folder)["artifacts"] for folder in (grid, tmp_path)} == {str(point)}


def test_a_damaged_summary_of_another_run_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, other = (tmp_path / f"{gpu}/dlrm_ddp/default/b64/summary.parquet" for gpu in ("V100", "T4"))
    write_table(PREDICTION.summary_row(), mine, "summary")
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
    assert list(provenance(job)["inputs"]) == [str(calls), str(folder / "family.json")]
    shutil.rmtree(folder)
    assert list(provenance(job)["inputs"]) == [str(calls)]


def test_files_of_the_future_are_dated_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ahead, old = tmp_path / "graph.parquet", tmp_path / "calls.parquet"
    for path, shift in ((ahead, 86_400), (old, -86_400)):
        path.write_text("content")
        os.utime(path, (time.time() + shift,) * 2)
    before = old.stat().st_mtime
    assert date_now(tmp_path) == 1
    assert abs(ahead.stat().st_mtime - time.time()) < 60 and old.stat().st_mtime == before
    assert capsys.readouterr().err == f"steptime: {tmp_path}: 1 file(s) had a date in the future, and are dated now\n"
    assert date_now(tmp_path) == 0 and capsys.readouterr().err == ""
