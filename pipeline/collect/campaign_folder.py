"""The folder of a campaign: its files, their size limits, and recovery after a kill.

Files:
    manifest.json: What ran, on which device, with which result. It is the last file written after each unit.
    step_times.parquet: Unprofiled step times (schema `step_times`).
    peaks.parquet: Bandwidths, throughputs and host costs (schema `peaks`).
    samples.parquet: Kernel microbenchmarks (schema `samples`).
    traces_a.tar, ...: Per unit a folder with `kineto.json.gz` and `execution_trace.json.gz`.

Tables are written before the manifest that refers to them. If a run is killed between the two writes, a table holds
rows of a unit that is not done. These rows are dropped when the folder is opened again.

Folders also come from other machines, so sizes are checked before anything is read. Files in an archive are read, never
extracted under their own names.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, SteptimeError, TableError, TraceError
from pipeline.paths import CAMPAIGN
from pipeline.schemas import atomic_path, read_table, write_table

STEP_TIMES, SAMPLES, PEAKS = "step_times.parquet", "samples.parquet", "peaks.parquet"
SCHEMA_VERSION = 2
"""Version of the folder's layout."""

MAX_FOLDER_BYTES, MAX_FILE_BYTES, MAX_NEW_ARCHIVES = 19_000_000, 3_900_000, 4
"""Limits of what is written: bytes of a folder, bytes of one file, number of archives. A folder may have 20 MB in 8
files, each under 4 MB; the values leave a margin for the manifest."""

MAX_ARCHIVES, MAX_MEMBERS = 100, 1_000
"""Largest number of archives in a folder, and of files in an archive; a campaign traces about 80 steps, two files each."""
MAX_MEMBER_BYTES, MAX_TRACE_BYTES = 64 << 20, 1 << 30
"""Largest size in bytes of a trace as stored, and after decompression (the largest of a campaign has about 100 MB)."""
MAX_MANIFEST_BYTES, MAX_TABLE_BYTES = 64 << 20, 1 << 30
"""Largest size in bytes of a manifest (a whole campaign's has about 100 kB), and of a table after decompression."""

MAX_PEAK = 1e9
"""Largest plausible value of a peak or cost in any of its units (GB/s, TFLOP/s, µs)."""


class CampaignFolder:
    """The folder of a new or an interrupted campaign.

    Raises:
        InputError: the folder holds other files, or a campaign of another device.
    """

    def __init__(self, path: Path, device: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "device": dict(device),
            "units": {},
            "runs": [],
        }
        self.samples = pd.DataFrame()
        self.step_times = pd.DataFrame()
        self.peaks = pd.DataFrame()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--out {path}: {error.strerror or error}; give the path of a folder"
            ) from None
        if (path / CAMPAIGN).exists():
            self._open(device)
        elif any(not entry.name.startswith(".") for entry in path.iterdir()):
            remedy = "give a new folder or the folder of a campaign"
            raise InputError(f"--out {path}: has files but no {CAMPAIGN}; {remedy}")
        remove_parts(path)

    @property
    def units(self) -> dict[str, dict[str, Any]]:
        """Units by name: status, seconds, error."""
        units: dict[str, dict[str, Any]] = self.manifest["units"]
        return units

    def room(self) -> int:
        """Bytes that may still be written."""
        return MAX_FOLDER_BYTES - sum(
            entry.stat().st_size for entry in self.path.iterdir() if entry.is_file()
        )

    def save(self) -> None:
        """Write the manifest."""
        write_manifest(self.manifest, self.path)

    def add_samples(self, rows: pd.DataFrame) -> None:
        """Append microbenchmark rows and write the table."""
        self.samples = self._written(joined_tables([self.samples, rows]), SAMPLES)

    def add_step_times(self, row: Mapping[str, Any]) -> None:
        """Append one step-times row and write the table."""
        self.step_times = self._written(
            joined_tables([self.step_times, pd.DataFrame([dict(row)])]), STEP_TIMES
        )

    def add_peaks(self, rows: pd.DataFrame) -> None:
        """Append peaks and write the table."""
        self.peaks = self._written(joined_tables([self.peaks, rows]), PEAKS)

    def step_facts(self, unit: str) -> dict[str, Any] | None:
        """The facts in the `config` column of a unit's step-times row; None if the unit has no row."""
        facts = [step for step in self._steps() if step.get("unit") == unit]
        return facts[-1] if facts else None

    def add_step_facts(self, unit: str, facts: Mapping[str, Any]) -> None:
        """Add facts to the `config` column of a unit's step-times row, and write the table."""
        steps = [{**step, **facts} if step.get("unit") == unit else step for step in self._steps()]
        texts = [json.dumps(step, default=str, sort_keys=True) for step in steps]
        self.step_times = self._written(self.step_times.assign(config=texts), STEP_TIMES)

    def _steps(self) -> list[dict[str, Any]]:
        return (
            [json.loads(text) for text in self.step_times["config"]] if len(self.step_times) else []
        )

    def _written(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """The table after it was written. Callers set it only then: rows that do not fit must not block later rows."""
        write_table(table, self.path / name, Path(name).stem, {"device": self.manifest["device"]})
        return table

    def samples_full(self) -> bool:
        """Whether the table of samples has reached its size limit."""
        file = self.path / SAMPLES
        return (
            file.stat().st_size if file.exists() else 0
        ) > MAX_FILE_BYTES - 300_000 or self.room() < 500_000

    def archive_room(self) -> int:
        """Bytes of traces that still fit."""
        free = sum(MAX_FILE_BYTES - size for size in self._archives().values())
        return max(min(free, self.room() - MAX_FILE_BYTES), 0)

    def archive(self, members: Mapping[str, bytes]) -> str | None:
        """Add files to the first trace archive with room for all of them; returns its name, or None if all are full."""
        need = (
            sum(1024 + len(data) for data in members.values()) + 10240
        )  # headers, padding, end of the archive
        for target, size in self._archives().items():
            # keep room for the samples: they are worth more than one more trace
            if size + need > MAX_FILE_BYTES or need > self.room() - MAX_FILE_BYTES:
                continue
            with atomic_path(target) as part:
                if size:
                    shutil.copyfile(target, part)
                with tarfile.open(part, "a" if size else "w", format=tarfile.USTAR_FORMAT) as tar:
                    for name, data in members.items():
                        info = tarfile.TarInfo(name)
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
            return target.name
        return None

    def _archives(self) -> dict[Path, int]:
        """Path of every possible trace archive, with its current size in bytes."""
        paths = [self.path / f"traces_{letter}.tar" for letter in "abcdefgh"[:MAX_NEW_ARCHIVES]]
        return {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def _open(self, device: Mapping[str, Any]) -> None:
        self.manifest = read_manifest(self.path)
        before, now = self.manifest["device"].get("gpu"), device.get("gpu")
        if before != now:
            raise InputError(
                f"--out {self.path}: has a campaign of {before}, but this GPU is {now}; give a new"
                " folder"
            )
        done = {name for name, unit in self.units.items() if unit.get("status") == "done"}
        if (self.path / SAMPLES).exists():
            samples = read_table(self.path / SAMPLES, "samples")
            self.samples = samples[
                [text.partition(":")[2] in done for text in samples["campaign_id"]]
            ]
        if (self.path / STEP_TIMES).exists():
            steps = read_table(self.path / STEP_TIMES, "step_times")
            units = [json.loads(text)["unit"] for text in steps["config"]]
            self.step_times = steps[[bool(done & {unit, times_unit(unit)}) for unit in units]]
        if (self.path / PEAKS).exists():
            peaks = read_peaks(self.path / PEAKS)
            self.peaks = peaks[peaks["unit_name"].isin(done)]


def times_unit(unit: str) -> str:
    """Name of the unit that times a step before it is profiled."""
    return f"{unit}/times"


def joined_tables(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tables; empty tables are left out, because their column types would apply to the result."""
    parts = [table.astype(object) for table in tables if len(table)]
    joined = pd.concat(parts, ignore_index=True) if parts else tables[-1]
    return joined.where(joined.notna(), None)


def remove_parts(folder: Path) -> None:
    """Delete half-written files that a killed run left."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a campaign.

    Raises:
        InputError: the folder has no manifest, or the manifest is damaged or too large.
    """
    path = folder / CAMPAIGN
    try:
        if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
            raise InputError(f"{path}: {size} bytes; at most {MAX_MANIFEST_BYTES} are allowed")
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{folder}: {CAMPAIGN} is missing; give the folder of a campaign"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); measure again") from None
    if (
        not isinstance(manifest, dict)
        or not isinstance(manifest.get("units"), dict)
        or "device" not in manifest
    ):
        raise InputError(f"{path}: not the manifest of a campaign; measure again")
    if not all(
        isinstance(part, dict) for part in (manifest["device"], *manifest["units"].values())
    ):
        raise InputError(f"{path}: its device or units are damaged; measure again")
    if manifest.get("schema") != SCHEMA_VERSION:
        layout = f"layout {manifest.get('schema')!r}, but this Steptime reads {SCHEMA_VERSION}"
        raise InputError(f"{path}: {layout}; measure again")
    return manifest


def write_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    """Write the manifest of a campaign, completely or not at all."""
    text = json.dumps(manifest, indent=1, default=str)
    with atomic_path(folder / CAMPAIGN) as part:
        part.write_text(text)


def read_peaks(path: Path) -> pd.DataFrame:
    """Read and check a table of peaks.

    Raises:
        TableError: the file is missing, damaged, or of another kind, or a value is implausible.
    """
    check_table(path)
    peaks = read_table(path, "peaks")
    wrong = ~((peaks["value"] >= 0) & (peaks["value"] <= MAX_PEAK))
    if wrong.any():
        row = peaks[wrong].iloc[0]
        raise TableError(
            f"{path}: {row['name']} is {row['value']:g} {row['unit']}, which no device has; measure"
            " again"
        )
    return peaks


def check_table(path: Path) -> None:
    """Refuse a table that unpacks to more than `MAX_TABLE_BYTES`; the table's reader reports damaged ones.

    Raises:
        TableError: the table is too large.
    """
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if size > MAX_TABLE_BYTES:
        raise TableError(
            f"{path}: {size} bytes after decompression; at most {MAX_TABLE_BYTES} are allowed"
        )


@contextmanager
def _open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive of traces that is not compressed as a whole."""
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except (tarfile.TarError, OSError, KeyError) as error:
        raise TraceError(f"{path}: damaged archive ({error}); measure again") from None


def archives(folder: Path) -> list[Path]:
    """The archives of a campaign's folder, in order.

    Raises:
        TraceError: there are more archives than `MAX_ARCHIVES`.
    """
    paths = sorted(path for path in folder.glob("traces_*.tar") if path.is_file())
    if len(paths) > MAX_ARCHIVES:
        raise TraceError(f"{folder}: {len(paths)} archives; at most {MAX_ARCHIVES} are allowed")
    return paths


def member_names(path: Path) -> list[str]:
    """Names of the regular files in an archive; unsafe names (absolute, or with `.` or `..`) are left out.

    Raises:
        TraceError: the archive is damaged, or has more or larger files than a campaign writes.
    """
    names: list[str] = []
    with _open_archive(path) as tar, path.open("rb") as file:
        for number, info in enumerate(tar, 1):
            if number > MAX_MEMBERS:
                raise TraceError(
                    f"{path}: more than {MAX_MEMBERS} files; this is not the archive of a campaign"
                )
            if info.size > MAX_MEMBER_BYTES:
                raise TraceError(
                    f"{path}: {info.name} has {info.size} bytes; at most {MAX_MEMBER_BYTES} are"
                    " allowed"
                )
            if info.isreg() and not any(part in ("", ".", "..") for part in info.name.split("/")):
                names.append(info.name)
        file.seek(tar.offset)
        end = file.read(tarfile.RECORDSIZE)
    # tarfile takes a damaged header for the end of the archive, and would lose all files behind it
    if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
        raise TraceError(
            f"{path}: damaged or cut archive (after {len(names)} files); measure again"
        )
    return names


def read_member(path: Path, name: str) -> bytes:
    """The stored bytes of a file that `member_names` lists.

    Raises:
        TraceError: the archive is damaged, or the file unpacks to more than a campaign's trace.
    """
    with _open_archive(path) as tar:
        stream = tar.extractfile(name)
        data = stream.read(MAX_MEMBER_BYTES) if stream is not None else b""
    if _unpacks_beyond(data, MAX_TRACE_BYTES):
        limit = f"more than {MAX_TRACE_BYTES} bytes"
        raise TraceError(f"{path}: {name} unpacks to {limit}; this is not the trace of a campaign")
    return data


def _unpacks_beyond(data: bytes, size: int) -> bool:
    """Whether gzip data unpacks to more bytes than `size`; the code that reads damaged data reports the damage."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            stream.seek(size)
            return bool(stream.read(1))
    except (OSError, EOFError, zlib.error):
        return False


def check(folder: Path) -> list[str]:
    """The problems of a campaign's folder; empty if every file fits its schema and the size limits hold."""
    problems: list[str] = []
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    total = sum(file.stat().st_size for file in files)
    if len(files) > 8 or total > 20_000_000:
        problems.append(
            f"{folder}: {len(files)} files with {total} bytes; at most 8 files and 20 MB are"
            " allowed"
        )
    readers: dict[str, Any] = {
        CAMPAIGN: lambda path: read_manifest(path.parent),
        PEAKS: read_peaks,
        STEP_TIMES: lambda path: read_table(path, "step_times"),
        SAMPLES: lambda path: read_table(path, "samples"),
    }
    for file in sorted(files):
        try:
            if file.suffix == ".tar":
                member_names(file)
            elif file.name in readers:
                readers[file.name](file)
            else:
                problems.append(f"{file}: not a file of a campaign")
        except (SteptimeError, OSError) as error:
            problems.append(str(error))
    return problems
