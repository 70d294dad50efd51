"""Writes the folder of a campaign, and recovers it after a kill.

Tables are written before the manifest that refers to them. If a run is killed between the two writes, a table holds
rows of a unit that is not done. These rows are dropped when the folder is opened again.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import InputError, SteptimeError
from pipeline.measured.campaign_files import (
    PEAKS,
    SAMPLES,
    SCHEMA_VERSION,
    STEP_TIMES,
    measured_table,
    member_names,
    read_manifest,
    read_peaks,
)
from pipeline.paths import CAMPAIGN
from pipeline.schemas import atomic_path, read_table, write_table


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
        self.tables = {name: pd.DataFrame() for name in (SAMPLES, STEP_TIMES, PEAKS)}
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

    def save(self) -> None:
        """Write the manifest."""
        write_manifest(self.manifest, self.path)

    def add(self, name: str, rows: pd.DataFrame) -> None:
        """Append rows to the table `SAMPLES`, `STEP_TIMES` or `PEAKS`, and write it."""
        self._write(name, [self.tables[name], rows])

    def step_facts(self, unit: str) -> dict[str, Any] | None:
        """The facts in the `config` column of a unit's step-times row; None if the unit has no row."""
        facts = [step for step in self._steps() if step.get("unit") == unit]
        return facts[-1] if facts else None

    def add_step_facts(self, unit: str, facts: Mapping[str, Any]) -> None:
        """Add facts to the `config` column of a unit's step-times row, and write the table."""
        steps = [{**step, **facts} if step.get("unit") == unit else step for step in self._steps()]
        texts = [json.dumps(step, default=str, sort_keys=True) for step in steps]
        self._write(STEP_TIMES, [self.tables[STEP_TIMES].assign(config=texts)])

    def _steps(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.tables[STEP_TIMES].get("config", ())]

    def _write(self, name: str, parts: list[pd.DataFrame]) -> None:
        """Write and keep the joined table. It is kept only then: rows that do not fit must not block later rows."""
        table, origin = joined_tables(parts), {"device": self.manifest["device"]}
        write_table(table, self.path / name, Path(name).stem, origin)
        self.tables[name] = table

    def archive(self, step: str, files: Mapping[str, bytes]) -> str:
        """Write the traces of a step (`model/variant/b<batch>`) to an archive of their own; returns its name."""
        target = self.path / f"traces_{step.replace('/', '.')}.tar"
        with (
            atomic_path(target) as part,
            tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name, data in files.items():
                info = tarfile.TarInfo(f"{step}/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return target.name

    def _open(self, device: Mapping[str, Any]) -> None:
        self.manifest = read_manifest(self.path)
        before = self.manifest["device"].get("gpu")
        now = device.get("gpu")
        if before != now:
            raise InputError(
                f"--out {self.path}: has a campaign of {before}, but this GPU is {now}; give a new"
                " folder"
            )
        done = {name for name, unit in self.units.items() if unit.get("status") == "done"}
        samples = measured_table(self.path, SAMPLES)
        finished = [text.partition(":")[2] in done for text in samples["campaign_id"]]
        self.tables[SAMPLES] = samples[pd.Series(finished, samples.index, dtype=bool)]
        steps = measured_table(self.path, STEP_TIMES)
        units = [json.loads(text)["unit"] for text in steps["config"]]
        timed = [bool(done & {unit, times_unit(unit)}) for unit in units]
        self.tables[STEP_TIMES] = steps[pd.Series(timed, steps.index, dtype=bool)]
        if (self.path / PEAKS).exists():
            peaks = read_peaks(self.path / PEAKS)
            self.tables[PEAKS] = peaks[peaks["unit_name"].isin(done)]


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


def write_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    """Write the manifest of a campaign, completely or not at all."""
    text = json.dumps(manifest, indent=1, default=str)
    with atomic_path(folder / CAMPAIGN) as part:
        part.write_text(text)


def check(folder: Path) -> list[str]:
    """The problems of a campaign's folder; empty if every file fits its schema."""
    readers: dict[str, Callable[[Path], object]] = {
        CAMPAIGN: lambda path: read_manifest(path.parent),
        PEAKS: read_peaks,
        STEP_TIMES: lambda path: read_table(path, "step_times"),
        SAMPLES: lambda path: read_table(path, "samples"),
    }
    problems: list[str] = []
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file()):
        reader = member_names if file.suffix == ".tar" else readers.get(file.name)
        if reader is None:
            problems.append(f"{file}: not a file of a campaign")
            continue
        try:
            reader(file)
        except (SteptimeError, OSError) as error:
            problems.append(str(error))
    return problems
