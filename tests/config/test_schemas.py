"""Checked reading and writing of artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from pipeline.errors import SteptimeError, TableError
from pipeline.schemas import SCHEMAS, read_provenance, read_table, to_arrow, write_table


@pytest.fixture
def overheads() -> pd.DataFrame:
    return pd.DataFrame(
        {"type": ["T1"], "op": ["aten::mm"], "mean_us": [3.0], "std_us": [1.0], "median_us": [2.5], "count": [7],
         "workloads": ["x"]}
    )  # fmt: skip


def test_a_table_comes_back_as_it_was_written(overheads: pd.DataFrame, tmp_path: Path) -> None:
    write_table(overheads, tmp_path / "a.parquet", "overheads", {"gpu": "V100"})
    back = read_table(tmp_path / "a.parquet", "overheads")
    assert back["mean_us"].tolist() == [3.0]
    assert back["api"].isna().all()
    assert read_provenance(tmp_path / "a.parquet") == {"gpu": "V100", "schema": "overheads"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"], "no temporary file stays"


@pytest.mark.parametrize("column", [field.name for field in SCHEMAS["overheads"] if not field.nullable])
def test_a_missing_required_column_is_named(overheads: pd.DataFrame, column: str) -> None:
    with pytest.raises(TableError, match=column):
        to_arrow(overheads.drop(columns=column), "overheads")


def test_an_empty_required_value_is_refused(overheads: pd.DataFrame) -> None:
    with pytest.raises(TableError, match="op"):
        to_arrow(overheads.assign(op=None), "overheads")


def test_an_unknown_column_and_a_wrong_type_are_refused(overheads: pd.DataFrame) -> None:
    with pytest.raises(TableError, match="colour"):
        to_arrow(overheads.assign(colour="red"), "overheads")
    with pytest.raises(TableError, match=r"count|many"):
        to_arrow(overheads.assign(count="many"), "overheads")


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet at all"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(damage)
    with pytest.raises(TableError, match=r"bad\.parquet") as raised:
        read_table(path, "overheads")
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused_at_every_length(overheads: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "whole.parquet"
    write_table(overheads, path, "overheads")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut.parquet").write_bytes(whole[:length])
        with pytest.raises(TableError):
            read_table(tmp_path / "cut.parquet", "overheads")


def test_a_full_disk_is_one_line_and_keeps_the_old_file(overheads: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_table(overheads, path, "overheads")
    before = path.read_bytes()
    program = (
        "import resource, signal, sys, pandas as pd\n"
        "from pipeline.schemas import read_table, write_table\n"
        "frame = read_table(sys.argv[1], 'overheads')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "try:\n    write_table(frame, sys.argv[1], 'overheads')\n"
        "except Exception as error:\n    print(type(error).__name__, error); sys.exit(error.exit_code)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == SteptimeError.exit_code, run.stderr
    assert "cannot be written" in run.stdout
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]
