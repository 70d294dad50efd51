"""Before and after a run: dates of the future, the table of all points beside files of other runs, paths that exist."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import TableError
from pipeline.paths import packs_dir
from pipeline.schemas import write_table
from pipeline.scripting import provenance
from pipeline.show.run_hooks import artifact_paths, date_now, predictions_in
from pipeline.summary_rows import summary_row
from tests.predictions import predicted

PACK = {"pack": 1.0}
PREDICTION = predicted(
    4e3,
    model="dlrm_ddp",
    active_us=3e3,
    host_us=1e3,
    p10_us=3e3,
    p90_us=5e3,
    memory_bytes=1 << 30,
    evidence=PACK,
    host_evidence=PACK,
)


def test_artifacts_of_a_grid_lie_under_the_results_and_not_under_the_grid(tmp_path: Path) -> None:
    point, grid = tmp_path / "V100" / "dlrm_ddp" / "default" / "b64", tmp_path / "grids" / "one"
    assert artifact_paths([PREDICTION], tmp_path) == {}, "no folder is named that is not there"
    point.mkdir(parents=True)
    grid.mkdir(parents=True)
    assert {artifact_paths([PREDICTION], folder)["artifacts"] for folder in (grid, tmp_path)} == {
        str(point)
    }


def test_a_damaged_summary_of_another_run_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, other = (
        tmp_path / f"{gpu}/dlrm_ddp/default/b64/summary.parquet" for gpu in ("V100", "T4")
    )
    write_table(summary_row(PREDICTION), mine, "summary")
    other.parent.mkdir(parents=True)
    other.write_bytes(mine.read_bytes()[:200])
    assert [prediction.gpu for prediction in predictions_in(tmp_path)] == ["V100"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "skipped" in line and str(other) in line
    mine.unlink()
    with pytest.raises(TableError, match="no predictions there"):
        predictions_in(tmp_path)


def test_a_summary_has_points_by_gpu_and_batch(tmp_path: Path) -> None:
    for gpu, size in (("T4", 512), ("V100", 64), ("T4", 64), ("T4", 4096)):
        row = summary_row(replace(PREDICTION, gpu=gpu, batch_size=size))
        write_table(row, tmp_path / f"{gpu}/dlrm_ddp/default/b{size}/summary.parquet", "summary")
    points = [(p.gpu, p.batch_size) for p in predictions_in(tmp_path)]
    assert points == [("T4", 64), ("T4", 512), ("T4", 4096), ("V100", 64)]


def test_provenance_names_the_kernel_models_that_a_prediction_rests_on(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "gemm" / "auto"
    folder.mkdir(parents=True)
    calls = tmp_path / "calls.parquet"
    for path in (folder / "family.json", folder / "weights", calls):
        path.write_text("{}")
    config = {"results": str(tmp_path)}
    job = SimpleNamespace(rule="predict", params={}, input=[str(calls), str(folder)], config=config)
    assert list(provenance(job)["inputs"]) == [
        "results/calls.parquet",
        "results/kernels/gemm/auto/family.json",
    ]
    shutil.rmtree(folder)
    assert list(provenance(job)["inputs"]) == ["results/calls.parquet"]


def test_provenance_names_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, folder in (("STEPTIME_DATASETS", "data"), ("STEPTIME_MEASUREMENTS", "mine")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    files = [
        tmp_path / name
        for name in ("data/kernels.parquet", "mine/manifest.json", "table.csv", "out/calls.parquet")
    ]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("content")
    pack = packs_dir() / "V100" / "pack.json"
    job = SimpleNamespace(
        rule="predict", params={}, input=[*files, pack], config={"results": str(tmp_path / "out")}
    )
    assert list(provenance(job)["inputs"]) == [
        "datasets/kernels.parquet",
        "measurements/manifest.json",
        "table.csv",
        "results/calls.parquet",
        "packs/V100/pack.json",
    ]


def test_files_of_the_future_are_dated_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead, old = tmp_path / "graph.parquet", tmp_path / "calls.parquet"
    for path, shift in ((ahead, 86_400), (old, -86_400)):
        path.write_text("content")
        os.utime(path, (time.time() + shift,) * 2)
    before = old.stat().st_mtime
    assert date_now(tmp_path) == 1
    assert abs(ahead.stat().st_mtime - time.time()) < 60 and old.stat().st_mtime == before
    assert (
        capsys.readouterr().err
        == f"steptime: {tmp_path}: 1 file(s) had a date in the future, and are dated now\n"
    )
    assert date_now(tmp_path) == 0 and capsys.readouterr().err == ""
