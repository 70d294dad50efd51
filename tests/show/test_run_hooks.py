"""Before and after a run: dates of the future, the table of all points beside files of other runs, paths that exist."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import TableError
from pipeline.paths import packs_dir
from pipeline.schemas import write_table
from pipeline.scripting import provenance
from pipeline.show.run_hooks import date_now, predictions_in
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


def test_provenance_names_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, folder in (("STEPTIME_DATASETS", "data"), ("STEPTIME_MEASUREMENTS", "mine")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    (tmp_path / "out").mkdir()
    names = "data/kernels.parquet", "mine/manifest.json", "table.csv", "out/calls.parquet"
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_text("content")
    files.append(packs_dir() / "V100" / "pack.json")
    config = {"results": str(tmp_path / "out")}
    job = SimpleNamespace(rule="predict", params={}, input=files, config=config)
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
    assert "1 file(s) had a date in the future" in capsys.readouterr().err
    assert date_now(tmp_path) == 0
