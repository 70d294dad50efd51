"""The folder of a campaign: its files, their size limits, and recovery after a kill.

Files:
    manifest.json: What ran, on which device, with which result. It is the last file written after each unit.
    step_times.parquet: Unprofiled step times (schema `step_times`).
    peaks.parquet: Bandwidths, throughputs and host costs.
    samples.parquet: Kernel microbenchmarks (schema `samples`).
    traces_a.tar, ...: Per unit a folder with `kineto.json.gz` and `execution_trace.json.gz`.

Tables are written before the manifest that refers to them. If a run is killed between the two writes, a table holds
rows of a unit that is not done. These rows are dropped when the folder is opened again.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.collect.limits import check_manifest, check_table, member_names
from pipeline.errors import InputError, SteptimeError, TableError
from pipeline.paths import CAMPAIGN
from pipeline.schemas import PROVENANCE_KEY, WRITTEN_AS, atomic_path, read_arrow, read_table, write_table

STEP_TIMES, SAMPLES, PEAKS = "step_times.parquet", "samples.parquet", "peaks.parquet"
SCHEMA_VERSION = 2
"""Version of the folder's layout; version 1 is the layout of the stand-alone script (`pipeline.collect.standalone`)."""

MAX_FOLDER_BYTES, MAX_FILE_BYTES, MAX_NEW_ARCHIVES = 19_000_000, 3_900_000, 4
"""Limits: bytes of a folder, bytes of one file, number of archives. A folder may have 20 MB in 8 files, each
under 4 MB; the values leave a margin for the manifest."""

MAX_PEAK = 1e9
"""Largest plausible value of a peak or cost in any of its units (GB/s, TFLOP/s, µs)."""

PEAK_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name in ("size", "note"))
     for name, kind in (("unit_name", pa.string()), ("name", pa.string()), ("size", pa.int64()),
                        ("value", pa.float64()), ("unit", pa.string()), ("note", pa.string()))]
)  # fmt: skip
"""One row per measured peak or cost: `value` in `unit`, at `size` (bytes, or the side of a matrix)."""


class CampaignFolder:
    """The folder of a new or an interrupted campaign.

    Raises:
        InputError: the folder holds other files, or a campaign of another device.
    """

    def __init__(self, path: Path, device: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {"schema": SCHEMA_VERSION, "device": dict(device), "units": {}, "runs": []}
        self.samples = pd.DataFrame()
        self.step_times = pd.DataFrame()
        self.peaks = pd.DataFrame()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out {path}: {error.strerror or error}; give the path of a folder") from None
        if (path / CAMPAIGN).exists():
            self._open(device)
        elif any(not entry.name.startswith(".") for entry in path.iterdir()):
            raise InputError(
                f"--out {path}: has files but no {CAMPAIGN}; give a new folder or the folder of a campaign"
            )
        for part in path.glob(".*.part"):  # left by a killed run
            part.unlink(missing_ok=True)

    @property
    def units(self) -> dict[str, dict[str, Any]]:
        """Units by name: status, seconds, error."""
        found: dict[str, dict[str, Any]] = self.manifest["units"]
        return found

    def room(self) -> int:
        """Bytes that may still be written."""
        return MAX_FOLDER_BYTES - sum(entry.stat().st_size for entry in self.path.iterdir() if entry.is_file())

    def save(self) -> None:
        """Write the manifest."""
        write_manifest(self.manifest, self.path)

    def add_samples(self, rows: pd.DataFrame) -> None:
        """Append microbenchmark rows and write the table."""
        joined = _concatenated(self.samples, rows)
        write_table(joined, self.path / SAMPLES, "samples", {"device": self.manifest["device"]})
        self.samples = joined  # set only after the write: rows that do not fit the schema must not block later rows

    def add_step_times(self, row: Mapping[str, Any]) -> None:
        """Append one step-times row and write the table."""
        joined = _concatenated(self.step_times, pd.DataFrame([dict(row)]))
        write_table(joined, self.path / STEP_TIMES, "step_times", {"device": self.manifest["device"]})
        self.step_times = joined

    def step_facts(self, unit: str) -> dict[str, Any] | None:
        """The facts in the `config` column of a unit's step-times row; None if the unit has no row."""
        found = [facts for facts in map(json.loads, self._configs()) if facts.get("unit") == unit]
        return found[-1] if found else None

    def add_step_facts(self, unit: str, facts: Mapping[str, Any]) -> None:
        """Add facts to the `config` column of a unit's step-times row, and write the table."""
        told = [json.loads(text) for text in self._configs()]
        merged = [{**one, **facts} if one.get("unit") == unit else one for one in told]
        texts = [json.dumps(one, default=str, sort_keys=True) for one in merged]
        changed = self.step_times.assign(config=texts)
        write_table(changed, self.path / STEP_TIMES, "step_times", {"device": self.manifest["device"]})
        self.step_times = changed

    def _configs(self) -> list[str]:
        return list(self.step_times["config"]) if len(self.step_times) else []

    def add_peaks(self, rows: pd.DataFrame) -> None:
        """Append peaks and write the table."""
        joined = _concatenated(self.peaks, rows)
        write_peaks(joined, self.path / PEAKS, self.manifest["device"])
        self.peaks = joined

    def samples_full(self) -> bool:
        """Whether the table of samples has reached its size limit."""
        file = self.path / SAMPLES
        return (file.stat().st_size if file.exists() else 0) > MAX_FILE_BYTES - 300_000 or self.room() < 500_000

    def archive_room(self) -> int:
        """Bytes of traces that still fit."""
        free = sum(MAX_FILE_BYTES - size for size in self._archives().values())
        return max(min(free, self.room() - MAX_FILE_BYTES), 0)

    def archive(self, members: Mapping[str, bytes]) -> str | None:
        """Add files to the first trace archive with room for all of them; returns its name, or None if all are full."""
        need = sum(1024 + len(data) for data in members.values()) + 10240  # headers, padding, end of the archive
        for target, size in self._archives().items():
            # keep room for the samples: they are worth more than one more trace
            if size + need > MAX_FILE_BYTES or need > self.room() - MAX_FILE_BYTES:
                continue
            with atomic_path(target) as part:
                if size:
                    shutil.copyfile(target, part)
                else:
                    part.unlink()
                with tarfile.open(part, "a", format=tarfile.USTAR_FORMAT) as tar:
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
        if self.manifest.get("schema") != SCHEMA_VERSION:
            raise InputError(f"--out {self.path}: has a run of another kind; give a new folder")
        was = self.manifest["device"].get("gpu")
        if was != device.get("gpu"):
            raise InputError(
                f"--out {self.path}: has a campaign of {was}, but this GPU is {device.get('gpu')}; give a new folder"
            )
        done = {name for name, unit in self.units.items() if unit.get("status") == "done"}
        if (self.path / SAMPLES).exists():
            found = read_table(self.path / SAMPLES, "samples")
            self.samples = found[[text.partition(":")[2] in done for text in found["campaign_id"]]]
        if (self.path / STEP_TIMES).exists():
            found = read_table(self.path / STEP_TIMES, "step_times")
            units = [json.loads(text)["unit"] for text in found["config"]]
            self.step_times = found[[bool(done & {unit, times_unit(unit)}) for unit in units]]
        if (self.path / PEAKS).exists():
            found = read_peaks(self.path / PEAKS)
            self.peaks = found[found["unit_name"].isin(done)]


def times_unit(unit: str) -> str:
    """Name of the unit that times a step before it is profiled."""
    return f"{unit}/times"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a campaign.

    Raises:
        InputError: the folder has no manifest, or the manifest is damaged.
    """
    check_manifest(folder / CAMPAIGN)
    try:
        found = json.loads((folder / CAMPAIGN).read_text())
    except FileNotFoundError:
        raise InputError(f"{folder}: {CAMPAIGN} is missing; give the folder of a campaign") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{folder / CAMPAIGN}: damaged ({error}); measure again") from None
    if not isinstance(found, dict) or not isinstance(found.get("units"), dict) or "device" not in found:
        raise InputError(f"{folder / CAMPAIGN}: not the manifest of a campaign; measure again")
    if not isinstance(found["device"], dict) or not all(isinstance(unit, dict) for unit in found["units"].values()):
        raise InputError(f"{folder / CAMPAIGN}: its device or units are damaged; measure again")
    if type(found.get("schema")) is not int or found["schema"] not in (1, SCHEMA_VERSION):
        told = f"layout {found.get('schema')!r}, but this Steptime reads 1 and {SCHEMA_VERSION}"
        raise InputError(f"{folder / CAMPAIGN}: {told}; measure again")
    return found


def write_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    """Write the manifest of a campaign, completely or not at all."""
    text = json.dumps(manifest, indent=1, default=str)
    with atomic_path(folder / CAMPAIGN) as part:
        part.write_text(text)


def write_peaks(frame: pd.DataFrame, path: Path, device: Mapping[str, Any]) -> None:
    """Write peaks completely or not at all.

    Raises:
        TableError: the table does not fit its schema.
    """
    try:
        table = pa.Table.from_pandas(frame, schema=PEAK_SCHEMA, preserve_index=False)
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise TableError(f"{path}: {str(error).splitlines()[0]}") from None
    text = json.dumps({"schema": "peaks", "device": dict(device)}, default=str)
    with atomic_path(path) as part:
        pq.write_table(table.replace_schema_metadata({PROVENANCE_KEY: text.encode()}), part, **WRITTEN_AS)


def read_peaks(path: Path) -> pd.DataFrame:
    """Read and check a table of peaks.

    Raises:
        TableError: the file is missing, damaged, or of another kind.
    """
    check_table(path)
    table = read_arrow(path, "run the campaign's peaks", "measure again")
    try:
        found: pd.DataFrame = table.select(PEAK_SCHEMA.names).cast(PEAK_SCHEMA).to_pandas()
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise TableError(f"{path}: not a table of peaks ({str(error).splitlines()[0]}); measure again") from None
    wrong = ~((found["value"] >= 0) & (found["value"] <= MAX_PEAK))
    if wrong.any():
        row = found[wrong].iloc[0]
        raise TableError(f"{path}: {row['name']} is {row['value']:g} {row['unit']}, which no device has; measure again")
    return found


def check(folder: Path) -> list[str]:
    """The problems of a campaign's folder; empty if every file fits its schema and the size limits hold."""
    found: list[str] = []
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    total = sum(file.stat().st_size for file in files)
    if len(files) > 8 or total > 20_000_000:
        found.append(f"{folder}: {len(files)} files with {total} bytes; at most 8 files and 20 MB are allowed")
    readers: dict[str, Any] = {
        CAMPAIGN: lambda path: read_manifest(path.parent), PEAKS: read_peaks,
        STEP_TIMES: lambda path: read_table(path, "step_times"), SAMPLES: lambda path: read_table(path, "samples"),
    }  # fmt: skip
    for file in sorted(files):
        try:
            if file.suffix == ".tar":
                member_names(file)
            elif file.name in readers:
                readers[file.name](file)
            else:
                found.append(f"{file}: not a file of a campaign")
        except (SteptimeError, OSError) as error:
            found.append(str(error))
    return found


def _concatenated(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Both tables together; empty tables are left out, because their column types would apply to the result."""
    parts = [part.astype(object) for part in (old, new) if len(part)]
    joined = pd.concat(parts, ignore_index=True) if parts else new
    return joined.where(joined.notna(), None)
