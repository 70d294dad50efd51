"""Folders of campaigns come from other machines: what is too much, or not a plain file, is refused before it is read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.collect.campaign_folder import check
from pipeline.errors import InputError, SteptimeWarning, TableError, TraceError
from pipeline.measured import campaign_files as limits
from pipeline.measured import campaign_reader as reader
from pipeline.measured.campaign_files import SCHEMA_VERSION, read_manifest
from pipeline.schemas import SCHEMAS, write_table

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


def archived(
    folder: Path, *names: str, data: bytes = TEXT, mode: str = "w:", link: str | None = None
) -> Path:
    """An archive with files of these names."""
    path = folder / "traces_a.tar"
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in names:
            info = tarfile.TarInfo(name)
            if link is not None:
                info.type = tarfile.SYMTYPE
                info.linkname = link
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


def test_names_that_leave_the_archive_and_links_are_no_traces(folder: Path) -> None:
    places = "../../x", "../dlrm", "dlrm/..", "/a", "dlrm/."
    archived(folder, *(f"{place}/b1/kineto.json.gz" for place in places))
    assert list(reader.read_traces(folder)) == []
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


def test_tables_and_manifests_beyond_the_limits_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_archive_whose_second_header_is_damaged_loses_nothing_silently(folder: Path) -> None:
    """tarfile takes a damaged header for the end of the archive."""
    path = archived(folder, TRACE, "dlrm_small/default/b128/kineto.json.gz")
    assert len(list(reader.read_traces(folder))) == 2
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        second = tar.getmembers()[1].offset
    path.write_bytes(whole[: second + 10] + b"\xff" + whole[second + 11 :])
    with pytest.raises(TraceError, match="damaged or cut archive"):
        list(reader.read_traces(folder))
    path.write_bytes(whole[:second])  # cut off between two files
    with pytest.raises(TraceError, match="damaged or cut archive"):
        list(reader.read_traces(folder))
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(TraceError, match="damaged archive"):
        list(reader.read_traces(folder))


@pytest.mark.parametrize("values", [{"schema": 3}, {"device": 5}, {"units": {"a": 3}}])
def test_manifests_of_another_layout_are_refused(folder: Path, values: dict[str, object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | values))
    with pytest.raises(InputError, match=r"manifest\.json: .*; measure again"):
        read_manifest(folder)


STEP = {
    "gpu": "H200", "model": "m", "variant": "default", "batch_size": 8, "step_us": 5.0,
    "p10_us": 4.0, "p90_us": 6.0, "count": 3, "source": "test", "config": "{}",
}  # fmt: skip


@pytest.mark.parametrize("change", [{"step_us": 0.0}, {"p10_us": -1.0}, {"p90_us": 1e18}])
def test_a_step_that_took_no_time_is_refused(folder: Path, change: dict[str, float]) -> None:
    write_table(pd.DataFrame([STEP | change]), folder / "step_times.parquet", "step_times")
    with pytest.raises(TableError, match=f"{next(iter(change))} of row 0"):
        reader.read_step_times(folder)


@pytest.mark.parametrize("config", ["[1]", "{", '{"config": 5}'])
def test_a_damaged_description_of_a_step_is_refused(folder: Path, config: str) -> None:
    write_table(
        pd.DataFrame([STEP | {"config": config}]), folder / "step_times.parquet", "step_times"
    )
    with pytest.raises(TableError, match="the `config` of m/default/b8"):
        reader.measured_step(folder / "manifest.json", "m/default/b8", {"name": "m"})


@pytest.mark.parametrize("value", [-1.0, 1e18])
def test_a_peak_that_no_device_has_is_refused(folder: Path, value: float) -> None:
    row = {"unit_name": "peaks", "name": "warm_triad", "size": 1, "unit": "GB/s", "note": None}
    row["value"] = value
    pq.write_table(pa.Table.from_pylist([row], SCHEMAS["peaks"]), folder / "peaks.parquet")
    with pytest.raises(TableError, match="which no device has"):
        reader.read_peaks_of(folder)


def test_samples_of_a_negative_latency_are_dropped(folder: Path) -> None:
    texts = ("gpu", "family", "op", "phase", "dtype", "source", "campaign_id")
    rows = pd.DataFrame(
        {"latency_us": [5.0, -1.0, 1e12], "kernel_us": 3.0} | dict.fromkeys(texts, "softmax")
    )
    write_table(rows, folder / "samples.parquet", "samples")
    with pytest.warns(SteptimeWarning, match="2 of 3 samples dropped"):
        assert reader.read_samples(folder)["latency_us"].tolist() == [5.0]
