"""Folders of campaigns come from other machines: what is too much, or not a plain file, is refused before it is read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.collect import campaign_reader as reader
from pipeline.collect import limits
from pipeline.collect.campaign_folder import SCHEMA_VERSION, check, read_manifest
from pipeline.collect.join_campaigns import join
from pipeline.errors import InputError, SteptimeError, TableError, TraceError

TRACE = "dlrm_small/default/b64/kineto.json.gz"
TEXT = gzip.compress(b'{"traceEvents": []}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign with a manifest alone."""
    made = tmp_path / "campaign"
    made.mkdir()
    manifest = {"schema": SCHEMA_VERSION, "device": {"gpu": "H200"}, "units": {}, "runs": []}
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made


def archived(folder: Path, *names: str, data: bytes = TEXT, mode: str = "w:", link: str | None = None) -> Path:
    """An archive with files of these names."""
    path = folder / "traces_a.tar"
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in names:
            info = tarfile.TarInfo(name)
            if link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, link
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_a_trace_of_usual_size_is_read(folder: Path, tmp_path: Path) -> None:
    archived(folder, TRACE)
    (member,) = reader.read_traces(folder)
    assert member.workload == "dlrm_small/default/b64"
    assert member.extract(tmp_path / "out")[0].read_bytes() == TEXT


@pytest.mark.parametrize(
    "name",
    ["../../x/b1/kineto.json.gz", "../dlrm/b1/kineto.json.gz", "dlrm/../b1/kineto.json.gz", "/a/b1/kineto.json.gz",
     "dlrm/./b1/kineto.json.gz"],
)  # fmt: skip
def test_names_that_leave_the_archive_are_no_traces(name: str, folder: Path) -> None:
    archived(folder, name)
    assert list(reader.read_traces(folder)) == []


def test_links_in_an_archive_are_not_followed(folder: Path) -> None:
    archived(folder, TRACE, link="/etc/hostname")
    assert list(reader.read_traces(folder)) == []


def test_a_trace_that_unpacks_beyond_all_measure_is_refused_and_none_of_it_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TRACE_BYTES", 10 << 20)
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 100_000
    archived(folder, TRACE, data=bomb)
    (member,) = reader.read_traces(folder)
    with pytest.raises(TraceError, match=r"traces_a\.tar: dlrm_small.* unpacks to more than"):
        member.extract(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(TraceError, match="unpacks"):
        join([folder], tmp_path / "joined")


Harm = Callable[[Path, pytest.MonkeyPatch], object]


def too_many(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "MAX_MEMBERS", 5)
    archived(folder, *(f"m/default/b{n}/kineto.json.gz" for n in range(6)))


def too_large(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "MAX_MEMBER_BYTES", 1000)
    archived(folder, TRACE, data=bytes(1001))


def too_many_archives(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "MAX_ARCHIVES", 1)
    archived(folder, TRACE).with_name("traces_b.tar").write_bytes(b"")


def compressed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    archived(folder, TRACE, mode="w:gz")


@pytest.mark.parametrize("harm", [too_many, too_large, too_many_archives, compressed])
def test_archives_beyond_the_limits_are_refused_in_one_line(
    harm: Harm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm(folder, monkeypatch)
    with pytest.raises(TraceError) as caught:
        list(reader.read_traces(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    if harm is not too_many_archives:
        assert len(check(folder)) == 1


def test_tables_and_manifests_beyond_the_limits_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"kernel_us": pa.array([0.0] * 500_000)})
    for name in ("samples.parquet", "step_times.parquet", "peaks.parquet"):
        pq.write_table(table, folder / name, use_dictionary=False, compression="zstd")
    assert (folder / "samples.parquet").stat().st_size < 100_000
    monkeypatch.setattr(limits, "MAX_TABLE_BYTES", 1 << 20)
    for read in (reader.read_samples, reader.read_step_times, reader.read_peaks_of):
        with pytest.raises(TableError, match="bytes after decompression"):
            read(folder)
    monkeypatch.setattr(limits, "MAX_MANIFEST_BYTES", 10)
    with pytest.raises(InputError, match=r"manifest\.json: \d+ bytes; at most 10"):
        read_manifest(folder)


def test_damage_is_still_told_as_damage(folder: Path) -> None:
    (folder / "traces_a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(SteptimeError, match="damaged archive"):
        list(reader.read_traces(folder))
