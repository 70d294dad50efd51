"""Checked reading and writing of artifacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SteptimeError, TableError
from pipeline.schemas import (
    PROVENANCE_KEY,
    read_provenance,
    read_table,
    to_arrow,
    write_table,
)
from tests.commands import full_disk


@pytest.fixture
def overheads() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "type": ["T1"],
            "op": ["aten::mm"],
            "mean_us": [3.0],
            "std_us": [1.0],
            "median_us": [2.5],
            "count": [7],
            "workloads": ["x"],
        }
    )


def test_a_table_comes_back_as_it_was_written(overheads: pd.DataFrame, tmp_path: Path) -> None:
    write_table(overheads, tmp_path / "a.parquet", "overheads", {"gpu": "V100"})
    back = read_table(tmp_path / "a.parquet", "overheads")
    assert back["mean_us"].tolist() == [3.0]
    assert back["api"].isna().all()
    assert read_provenance(tmp_path / "a.parquet") == {"gpu": "V100", "schema": "overheads"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"], "no temporary file stays"


def test_a_missing_or_unknown_column_an_empty_value_and_a_wrong_type_are_refused(
    overheads: pd.DataFrame,
) -> None:
    with pytest.raises(TableError, match="mean_us"):
        to_arrow(overheads.drop(columns="mean_us"), "overheads")
    with pytest.raises(TableError, match="op"):
        to_arrow(overheads.assign(op=None), "overheads")
    with pytest.raises(TableError, match="colour"):
        to_arrow(overheads.assign(colour="red"), "overheads")
    with pytest.raises(TableError, match=r"count|many"):
        to_arrow(overheads.assign(count="many"), "overheads")


def test_a_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(TableError, match=r"bad\.parquet") as raised:
        read_table(path, "overheads")
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused_at_every_length(
    overheads: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "whole.parquet"
    write_table(overheads, path, "overheads")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut.parquet").write_bytes(whole[:length])
        with pytest.raises(TableError):
            read_table(tmp_path / "cut.parquet", "overheads")


def test_a_full_disk_is_one_line_and_keeps_the_old_file(
    overheads: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    write_table(overheads, path, "overheads")
    before = path.read_bytes()
    with full_disk(64), pytest.raises(SteptimeError, match="cannot be written"):
        write_table(overheads, path, "overheads")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


def test_a_flipped_bit_is_refused_or_changes_no_number(
    overheads: pd.DataFrame, tmp_path: Path
) -> None:
    """Pages of numbers have checksums; the rest of a file is structure, which reads or does not."""
    path = tmp_path / "a.parquet"
    rows = overheads.loc[[0] * 50].assign(
        op=[f"op{i}" for i in range(50)], mean_us=np.linspace(1, 9, 50), count=range(50)
    )
    write_table(rows, path, "overheads")
    whole, read = path.read_bytes(), read_table(path, "overheads")
    refused = 0
    for place in range(4, len(whole), 5):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        )
        try:
            again = read_table(path, "overheads")
        except TableError as refusal:
            assert str(path) in str(refusal) and "\n" not in str(refusal)
            refused += 1
        else:
            pd.testing.assert_frame_equal(again, read)
    assert refused > len(whole) / 5 / 4


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_number_that_is_none_is_neither_written_nor_read(
    overheads: pd.DataFrame, tmp_path: Path, value: float
) -> None:
    wrong = overheads.assign(mean_us=value)
    with pytest.raises(TableError, match="mean_us"):
        write_table(wrong, tmp_path / "a.parquet", "overheads")
    pq.write_table(pa.table({**wrong.to_dict("list"), "mean_us": [value]}), tmp_path / "a.parquet")
    with pytest.raises(TableError, match=r"a\.parquet: overheads table has .* in column mean_us"):
        read_table(tmp_path / "a.parquet", "overheads")


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_damaged_provenance_is_refused(
    overheads: pd.DataFrame, tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_pandas(overheads).replace_schema_metadata({PROVENANCE_KEY: text}), path
    )
    with pytest.raises(TableError, match=r"a\.parquet: .*delete the file to rebuild it"):
        read_provenance(path)
