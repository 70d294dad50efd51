"""Read the measurements of a campaign: `measurements/<GPU>/`."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import InputError, SteptimeWarning, TableError
from pipeline.measured.campaign_files import (
    PEAKS,
    SAMPLES,
    STEP_TIMES,
    archives,
    measured_table,
    member_names,
    read_manifest,
    read_member,
    read_peaks,
)
from pipeline.paths import CAMPAIGN, EXECUTION_TRACE, KINETO
from pipeline.schemas import SCHEMAS, SUBSTITUTE, read_provenance, read_table

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
        kineto = read_member(self.archive, self.kineto)
        execution = (
            read_member(self.archive, self.execution_trace) if self.execution_trace else None
        )
        (folder / KINETO).write_bytes(kineto)
        if execution is None:
            return folder / KINETO, None
        (folder / EXECUTION_TRACE).write_bytes(execution)
        return folder / KINETO, folder / EXECUTION_TRACE


def read_samples(folder: str | Path) -> pd.DataFrame:
    """Kernel samples of a campaign (`samples` schema); rows without a usable time are dropped, with a warning.

    Fused lookups are dropped too: a machine that measures has no FBGEMM, and timed PyTorch's operators instead.

    Raises:
        InputError, TableError: the folder does not belong to a campaign, or a table is damaged.
    """
    folder = Path(folder)
    read_manifest(folder)
    samples = measured_table(folder, SAMPLES)
    latency = samples["latency_us"].astype(float)
    times = pd.concat([latency, samples["kernel_us"].astype(float).fillna(latency)], axis=1)
    timed = (times.min(axis=1) > MAX_IMPLAUSIBLE_US) & (times.max(axis=1) <= MAX_TIME_US)
    if not timed.all():
        dropped = f"{(~timed).sum()} of {len(samples)} samples dropped"
        reason = f"no time above {MAX_IMPLAUSIBLE_US} µs, or one above {MAX_TIME_US:g} µs"
        warnings.warn(f"{folder}: {dropped}: {reason}", SteptimeWarning, stacklevel=2)
    # campaigns of 2026 changed the bytes of copies, but not those of their operands
    share = samples["bytes"] / samples["outputs"].where(samples["outputs"] > 0)
    changed = ((samples["family"] == "copy") & (share != 1.0)).fillna(False)
    operands = samples.loc[changed, ["inputs", "outputs"]]
    share = share[changed]
    samples.loc[changed, ["inputs", "outputs"]] = (
        operands.mul(share, axis=0).round().astype("Int64")
    )
    samples.loc[changed, ["B", "H"]] = pd.NA
    substitutes = (
        samples["attributes"].fillna("").str.contains(json.dumps(SUBSTITUTE)[1:-1], regex=False)
    )
    return samples[timed & ~substitutes].reset_index(drop=True)


def read_step_times(folder: str | Path) -> pd.DataFrame:
    """Unprofiled step times of a campaign (`step_times` schema).

    Raises:
        InputError, TableError: the folder does not belong to a campaign, or the table is damaged.
    """
    folder = Path(folder)
    read_manifest(folder)
    return _plausible(measured_table(folder, STEP_TIMES), folder / STEP_TIMES)


def _plausible(steps: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The table, if every step has taken a time."""
    for name in ("step_us", "p10_us", "p90_us"):
        times = steps[name].astype(float).reset_index(drop=True)
        wrong = times[~((times > 0) & (times <= MAX_TIME_US))]
        if len(wrong):
            row = wrong.index[0]
            us = wrong.iloc[0]
            raise TableError(
                f"{path}: {name} of row {row} is {us:g}, no time of a step; measure again"
            )
    return steps


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
    matching = [
        us
        for us, facts in _steps_of(path.parent, workload)
        if _same_config(facts["config"], config)
    ]
    return matching[-1] if matching else None


def profiled_kernel_us(folder: str | Path, workload: str) -> float | None:
    """Kernel time (µs) of a profiled step, from its row of step times.

    The row has it for every profiled step; the archives have space for the traces of only some steps. None if the step
    was not profiled, or if its profile lacks kernels.

    Args:
        folder: folder of the campaign.
        workload: `model/variant/b<batch>`.
    """
    times = [
        facts.get("profiled_kernel_us")
        for _, facts in _steps_of(folder, workload)
        if not facts.get("kernels_lost")
    ]
    profiled = [float(us) for us in times if us]
    return profiled[-1] if profiled else None


def _steps_of(folder: str | Path, workload: str) -> list[tuple[float, dict[str, Any]]]:
    """Step time (µs) and the facts in `config` of every row of a workload, in the order of the table."""
    steps = read_step_times(folder)
    model, variant, batch_size = _identity_of(workload) or ("", "", 0)
    rows = steps[
        (steps["model"] == model)
        & (steps["variant"] == variant)
        & (steps["batch_size"] == batch_size)
    ]
    try:
        facts = [dict(json.loads(text)) for text in rows["config"].fillna("{}")]
        whole = [known | {"config": dict(known.get("config") or {})} for known in facts]
    except (ValueError, TypeError):
        raise TableError(
            f"{folder}: the `config` of {workload} in {STEP_TIMES} is damaged; measure again"
        ) from None
    return list(zip(map(float, rows["step_us"]), whole, strict=True))


def _same_config(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the configuration that ran is the wanted one."""
    return all(measured.get(key) == value for key, value in wanted.items() if key != "batch_size")


def read_traces(folder: str | Path) -> Iterator[TraceMember]:
    """The traces in a campaign's archives, one per step.

    A campaign that was killed between writing an archive and the manifest traced a step twice; the last trace is used.

    Raises:
        InputError: the folder does not belong to a campaign.
        TraceError: an archive is damaged, or it has more or larger files than a campaign writes.
    """
    folder = Path(folder)
    read_manifest(folder)
    members: dict[tuple[str, str, int], TraceMember] = {}
    for archive in archives(folder):
        names = member_names(archive)
        for name in names:
            prefix, _, file = name.rpartition("/")
            identity = _identity_of(prefix)
            if file == KINETO and identity is not None:
                pair = f"{prefix}/{EXECUTION_TRACE}"
                members[identity] = TraceMember(
                    *identity, archive, name, pair if pair in names else None
                )
    yield from members.values()


def read_peaks_of(folder: str | Path) -> pd.DataFrame:
    """Peaks and host costs of a campaign (`peaks` schema); empty if none were measured."""
    path = Path(folder) / PEAKS
    return read_peaks(path) if path.exists() else pd.DataFrame(columns=SCHEMAS["peaks"].names)


def measured_peaks(folder: str | Path) -> dict[str, float]:
    """Figures for a GPU file: `fp32_gflop_per_s`, `tf32...`, `dram_gb_per_s`, `l2_gb_per_s`, `pcie_gb_per_s`.

    - DRAM bandwidth is the best triad at four times the cache's size or more.
    - L2 bandwidth is the best scaling at half of the cache's size or less.
    - PCIe bandwidth is the smaller one of the two directions, with pinned memory.

    Figures that the campaign does not have are left out.
    """
    peaks = read_peaks_of(folder)
    device = read_manifest(Path(folder))["device"]
    size = peaks["size"].astype(float)
    cache = device.get("cache_bytes") or math.nan
    in_dram = size >= 4 * cache
    in_cache = 2 * size <= cache / 2
    largest = peaks.groupby("name")["value"].max()
    figures = {
        f"{dtype}_gflop_per_s": 1e3 * largest.get(f"gemm_{dtype}", math.nan)
        for dtype in ("fp32", "tf32", "bf16", "fp16")
    }
    dram = peaks.loc[in_dram & (peaks["name"] == "warm_triad"), "value"]
    l2 = peaks.loc[in_cache & (peaks["name"] == "warm_scale"), "value"]
    figures["dram_gb_per_s"] = dram.max()
    figures["l2_gb_per_s"] = l2.max()
    copies = [f"copy_{way}_pinned" for way in ("h2d", "d2h")]
    figures["pcie_gb_per_s"] = largest.reindex(copies).min(skipna=False)
    return {name: float(value) for name, value in figures.items() if not math.isnan(value)}


def profiler_event_us(folder: str | Path) -> float | None:
    """Measured extra host time (µs) per recorded op while profiling; None if it was not measured."""
    peaks = read_peaks_of(folder)
    values = peaks.loc[peaks["name"] == "profiler_event_us", "value"]
    return float(values.iloc[-1]) if len(values) else None


def provenance(folder: str | Path) -> dict[str, Any]:
    """The origin of a campaign's figures: device, versions, campaign, runs."""
    manifest = read_manifest(Path(folder))
    samples = Path(folder) / SAMPLES
    origin: dict[str, Any] = {
        key: manifest[key] for key in ("schema", "device", "campaign_id", "runs") if key in manifest
    }
    if samples.exists():
        origin["tables"] = read_provenance(samples)
    return origin


def _identity_of(prefix: str) -> tuple[str, str, int] | None:
    """(model, variant, batch size) of a folder `model/variant/b<batch>`."""
    parts = prefix.split("/")
    if len(parts) != 3 or not parts[2].removeprefix("b").isdigit():
        return None
    return parts[0], parts[1], int(parts[2].removeprefix("b"))
