"""Read the measurements of a campaign: `measurements/<GPU>/`, or the output of the stand-alone script.

Both layouts give the same tables. The `schema` in the manifest is the version of the folder's layout.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.collect import standalone
from pipeline.collect.campaign_folder import (
    PEAK_SCHEMA,
    PEAKS,
    SAMPLES,
    SCHEMA_VERSION,
    STEP_TIMES,
    read_manifest,
    read_peaks,
)
from pipeline.collect.limits import archives, check_table, member_names, read_member
from pipeline.errors import InputError, SteptimeWarning, TableError, TraceError
from pipeline.paths import CAMPAIGN, EXECUTION_TRACE, KINETO
from pipeline.schemas import SCHEMAS, read_provenance, read_table

MAX_IMPLAUSIBLE_US = 0.05
"""Time in µs. A sample with this time or less is dropped, because it cannot be a real measurement."""


MAX_TIME_US = 1e9
"""Longest time in µs that a kernel or a step may take (17 minutes). A longer one is in a wrong unit."""


@dataclass(frozen=True)
class TraceMember:
    """One step's traces inside a campaign's archives; `execution_trace` is None if the step has none."""

    model: str
    variant: str
    batch_size: int
    archive: Path
    kineto: str
    execution_trace: str | None

    @property
    def workload(self) -> str:
        """`model/variant/b<batch>`, the format of grid points."""
        return f"{self.model}/{self.variant}/b{self.batch_size}"

    def extract(self, folder: Path) -> tuple[Path, Path | None]:
        """Write the traces to a folder; returns the paths of `kineto.json.gz` and `execution_trace.json.gz`.

        Raises:
            TraceError: the archive is damaged, or a trace is larger than a campaign's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path | None] = []
        for member, name in ((self.kineto, KINETO), (self.execution_trace, EXECUTION_TRACE)):
            data = read_member(self.archive, member) if member else None
            if data is not None:
                (folder / name).write_bytes(data)
            written.append(None if data is None else folder / name)
        if written[0] is None:
            raise TraceError(f"{self.archive}: {self.kineto} is missing; measure again")
        return written[0], written[1]


def read_samples(folder: str | Path) -> pd.DataFrame:
    """Kernel samples of a campaign (`samples` schema); rows without a usable time are dropped, with a warning.

    Raises:
        InputError, TableError: the folder does not belong to a campaign, or a table is damaged.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.get("schema") == standalone.SCHEMA_VERSION:
        found = standalone.read_samples(folder, manifest)
    elif (folder / SAMPLES).exists():
        check_table(folder / SAMPLES)
        found = read_table(folder / SAMPLES, "samples")
    else:
        found = pd.DataFrame(columns=SCHEMAS["samples"].names)
    kernel = found["kernel_us"].fillna(found["latency_us"]).astype(float)
    each = (kernel, found["latency_us"].astype(float))
    shortest, longest = pd.concat(each, axis=1).min(axis=1), pd.concat(each, axis=1).max(axis=1)
    timed = (shortest > MAX_IMPLAUSIBLE_US) & (longest <= MAX_TIME_US)
    if not timed.all():
        dropped = f"{(~timed).sum()} of {len(found)} samples dropped"
        lost = f"{dropped}: no time above {MAX_IMPLAUSIBLE_US} µs, or one above {MAX_TIME_US:g} µs"
        warnings.warn(f"{folder}: {lost}", SteptimeWarning, stacklevel=2)
    return found[timed].reset_index(drop=True)


def read_step_times(folder: str | Path) -> pd.DataFrame:
    """Unprofiled step times of a campaign (`step_times` schema).

    Raises:
        InputError, TableError: the folder does not belong to a campaign, or the table is damaged.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.get("schema") == standalone.SCHEMA_VERSION:
        return standalone.read_step_times(folder, manifest)
    if not (folder / STEP_TIMES).exists():
        return pd.DataFrame(columns=SCHEMAS["step_times"].names)
    check_table(folder / STEP_TIMES)
    return _plausible(read_table(folder / STEP_TIMES, "step_times"), folder / STEP_TIMES)


def _plausible(found: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The table, if every step has taken a time.

    Raises:
        TableError: a time is 0, negative or longer than `MAX_TIME_US`.
    """
    for name in ("step_us", "p10_us", "p90_us"):
        wrong = ~((found[name] > 0) & (found[name] <= MAX_TIME_US))
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise TableError(
                f"{path}: {name} of row {row} is {found[name].iloc[row]:g}, no time of a step; measure again"
            )
    return found


def read_step_time(path: str | Path) -> float:
    """The measured step time (µs): the single row of the `step_times.parquet` of a step measured on this machine.

    Raises:
        TableError: the table is damaged.
        InputError: the table does not hold exactly one step.
    """
    rows = _plausible(read_table(path, "step_times"), Path(path))
    if len(rows) != 1:
        raise InputError(f"{path}: {len(rows)} step times, expected one; measure again")
    return float(rows["step_us"].iloc[0])


def measured_step(path: str | Path, workload: str, config: Mapping[str, Any]) -> float | None:
    """The measured step time (µs) of a workload, from a `step_times.parquet` with a single row or from a campaign.

    None if a campaign did not measure this workload, or measured it only at other sizes. Sizes differ in a trial, and
    if embedding tables were cut to fit the memory.

    Args:
        path: the table, or the campaign's manifest.
        workload: `model/variant/b<batch>`.
        config: the workload's configuration; a campaign of this project must have run exactly this one.

    Raises:
        InputError, TableError: as `read_step_time`.
    """
    path = Path(path)
    if path.name != CAMPAIGN:
        return read_step_time(path)
    found = [us for us, facts in _steps_of(path.parent, workload) if _same_config(facts["config"], config)]
    return found[-1] if found else None


def profiled_kernel_us(folder: str | Path, workload: str) -> float | None:
    """Kernel time (µs) of a profiled step, from its row of step times.

    The row has it for every profiled step; the archives have space for the traces of only some steps. None if the step
    was not profiled, or if its profile lacks kernels.

    Args:
        folder: folder of the campaign.
        workload: `model/variant/b<batch>`.
    """
    every = [facts for _, facts in _steps_of(folder, workload)]
    whole = [facts for facts in every if facts.get("profiled_kernel_us") and not facts.get("kernels_lost")]
    return float(whole[-1]["profiled_kernel_us"]) if whole else None


def _steps_of(folder: str | Path, workload: str) -> list[tuple[float, dict[str, Any]]]:
    """Step time (µs) and the facts in `config` of every row of a workload, in the order of the table."""
    place, rows = _place_of(workload), read_step_times(folder)
    identity = zip(rows["model"], rows["variant"], rows["batch_size"], strict=True)
    stated = zip(identity, rows["step_us"], rows["config"].fillna("{}"), strict=True)
    try:
        steps = [(float(us), dict(json.loads(text))) for found, us, text in stated if found == place]
        return [(us, facts | {"config": dict(facts.get("config") or {})}) for us, facts in steps]
    except (ValueError, TypeError):
        raise TableError(f"{folder}: the `config` of {workload} in {STEP_TIMES} is damaged; measure again") from None


def _same_config(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the configuration that ran is the wanted one.

    Configurations of the stand-alone script have no `name` and use other keys. They have the published sizes, unless
    embedding tables were cut (`rows_capped`).
    """
    if "name" not in measured:
        return not measured.get("rows_capped")
    return all(measured.get(key) == value for key, value in wanted.items() if key != "batch_size")


def read_traces(folder: str | Path) -> Iterator[TraceMember]:
    """The traces in a campaign's archives, one per step.

    A campaign that was killed between writing an archive and the manifest traced a step twice; the last trace is used.

    Raises:
        InputError: the folder does not belong to a campaign.
        TraceError: an archive is damaged, or it has more or larger files than a campaign writes.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    place = standalone.place_of if manifest.get("schema") == standalone.SCHEMA_VERSION else _place_of
    found: dict[tuple[str, str, int], TraceMember] = {}
    for archive in archives(folder):
        names = member_names(archive)
        for name in names:
            prefix, _, last = name.rpartition("/")
            if last == KINETO and (where := place(prefix)) is not None:
                pair = f"{prefix}/{EXECUTION_TRACE}"
                found[where] = TraceMember(*where, archive, name, pair if pair in names else None)
    yield from found.values()


def read_peaks_of(folder: str | Path) -> pd.DataFrame:
    """Peaks and host costs of a campaign: columns of `campaign_folder.PEAK_SCHEMA`; empty if none were measured."""
    path = Path(folder) / PEAKS
    return read_peaks(path) if path.exists() else pd.DataFrame(columns=PEAK_SCHEMA.names)


def measured_peaks(folder: str | Path) -> dict[str, float]:
    """Figures for a GPU file: `fp32_gflop_per_s`, `tf32...`, `dram_gb_per_s`, `l2_gb_per_s`, `pcie_gb_per_s`.

    - DRAM bandwidth is the best triad at four times the cache's size or more.
    - L2 bandwidth is the best scaling at half of the cache's size or less.
    - PCIe bandwidth is the smaller one of the two directions, with pinned memory.

    Figures that the campaign does not have are left out.
    """
    peaks = read_peaks_of(folder)
    device = read_manifest(Path(folder))["device"]
    cache = device.get("cache_bytes") or device.get("l2_bytes")
    found = {}
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        values = peaks.loc[peaks["name"] == f"gemm_{dtype}", "value"]
        if len(values):
            found[f"{dtype}_gflop_per_s"] = 1e3 * float(values.max())
    if cache:
        dram = peaks.loc[(peaks["name"] == "warm_triad") & (peaks["size"] >= 4 * cache), "value"]
        near = peaks.loc[(peaks["name"] == "warm_scale") & (2 * peaks["size"] <= cache / 2), "value"]
        found |= {name: float(v.max()) for name, v in (("dram_gb_per_s", dram), ("l2_gb_per_s", near)) if len(v)}
    ways = [peaks.loc[peaks["name"] == f"copy_{way}_pinned", "value"] for way in ("h2d", "d2h")]
    if all(len(way) for way in ways):
        found["pcie_gb_per_s"] = min(float(way.max()) for way in ways)
    return found


def profiler_event_us(folder: str | Path) -> float | None:
    """Measured extra host time (µs) per recorded op while profiling; None if it was not measured."""
    peaks = read_peaks_of(folder)
    values = peaks.loc[peaks["name"] == "profiler_event_us", "value"]
    return float(values.iloc[-1]) if len(values) else None


def provenance(folder: str | Path) -> dict[str, Any]:
    """The origin of a campaign's figures: device, versions, campaign, runs."""
    manifest = read_manifest(Path(folder))
    samples = Path(folder) / SAMPLES
    kept = ("schema", "device", "campaign_id", "runs", "command", "started_unix", "gpu_before")
    return {key: manifest[key] for key in kept if key in manifest} | (
        {"tables": read_provenance(samples)} if manifest.get("schema") == SCHEMA_VERSION and samples.exists() else {}
    )


def _place_of(prefix: str) -> tuple[str, str, int] | None:
    """(model, variant, batch size) of a folder `model/variant/b<batch>`."""
    parts = prefix.split("/")
    if len(parts) != 3 or not parts[2].removeprefix("b").isdigit():
        return None
    return parts[0], parts[1], int(parts[2].removeprefix("b"))
