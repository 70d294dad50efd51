"""Results of the future: dated now before jobs run, so that Snakemake takes what these jobs make as newer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipeline.report.run_start import date_now


def test_files_of_the_future_are_dated_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "V100").mkdir()
    ahead, old = tmp_path / "V100" / "graph.parquet", tmp_path / "V100" / "calls.parquet"
    for path, shift in ((ahead, 86_400), (old, -86_400)):
        path.write_text("content")
        os.utime(path, (time.time() + shift,) * 2)
    before = old.stat().st_mtime
    assert date_now(tmp_path) == 1
    assert abs(ahead.stat().st_mtime - time.time()) < 60 and old.stat().st_mtime == before
    assert ahead.read_text() == "content"
    assert capsys.readouterr().err == f"steptime: {tmp_path}: 1 file(s) had a date in the future, and are dated now\n"


def test_nothing_is_said_or_done_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph.parquet").write_text("content")
    assert date_now(tmp_path) == 0 and date_now(tmp_path / "absent") == 0
    assert capsys.readouterr().err == ""
