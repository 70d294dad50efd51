"""Chooses the overheads of a host: from its own traces, shipped observations of it, or those of another GPU's host."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from pipeline.answers.sources import HAS_MODELS, Source, overhead_source, shipped_overheads
from pipeline.collect.campaign_reader import profiler_event_us
from pipeline.digest import module_digest
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import LOCAL
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import ProfilerCost, summarise
from pipeline.packs import check_if_shipped, file_digest
from pipeline.paths import Artifacts, measurements_dir
from pipeline.question.settings import OverheadSettings
from pipeline.schemas import read_table, write_table
from pipeline.user_cache import kept


def overhead_model(
    gpu: str, settings: OverheadSettings, label: str, results: str | Path | None, workload: str
) -> OverheadModel:
    """Host overheads for a GPU, from the same sources that the pipeline's rules would use now.

    `label` names the statistics of these settings (`Question.overheads_label`).

    Statistics under `results` are used if the traces that they were made from still exist. Otherwise the shipped
    observations are used, and statistics of an earlier run are ignored.
    """
    if results is not None and overhead_source(gpu) in HAS_MODELS:
        artifacts = Artifacts(str(results))
        table = Path(artifacts.overheads(gpu, label))
        if table.is_file() and Path(artifacts.overhead_samples(gpu)).is_file():
            return overheads_from(read_table(table, "overheads"), settings, workload)
    shipped = shipped_overheads(gpu)
    check_if_shipped(shipped)  # statistics of these bytes may be in the cache
    version = overhead_source(gpu), shipped.stat().st_mtime_ns
    return overheads_from(_shipped_statistics(shipped, gpu, version, settings), settings, workload)


def observations_in(path: str | Path) -> pd.DataFrame:
    """Overhead observations of a host, after a check of their pack if they ship.

    Raises:
        PackError: a file of the pack is missing or damaged.
        TableError: the file is no such table.
    """
    check_if_shipped(path)
    return read_table(path, "overhead_samples")


def host_name(gpu: str, settings: OverheadSettings) -> str:
    """The host that is assumed for a GPU, in words, with the configured factor on its times."""
    source = overhead_source(gpu)
    if source is Source.LOCAL:
        name = "this machine"
    elif source is Source.MEASUREMENTS:
        name = f"the host of the measured {gpu}"
    else:
        name = f"the host of public {shipped_overheads(gpu).parent.name} traces"
    factor = settings.host_scale
    return name if factor == 1 else f"{name}, its times multiplied by {factor:g}"


@lru_cache(maxsize=16)
def _shipped_statistics(
    shipped: Path, gpu: str, _version: tuple[Source, int], settings: OverheadSettings
) -> pd.DataFrame:
    """Statistics of shipped observations, computed once while the file is unchanged, and kept between runs."""
    parts = {
        "observations": file_digest(shipped),
        "settings": replace(settings, host_scale=1.0),
        "profiler_cost": _profiler_cost(gpu, settings),
        "source": overhead_source(gpu).name,
        "local": gpu == LOCAL,
        "code": module_digest("pipeline.answers.host_overheads"),
    }
    return kept(
        "overheads.parquet",
        parts,
        lambda: overhead_statistics(observations_in(shipped), gpu, settings),
        lambda path: read_table(path, "overheads"),
        lambda table, path: write_table(table, path, "overheads"),
    )


def overhead_statistics(observations: pd.DataFrame, gpu: str, settings: OverheadSettings) -> pd.DataFrame:
    """Statistics of a host's observations with the configured estimator, less the profiler's cost."""
    own = gpu == LOCAL or overhead_source(gpu) is Source.MEASUREMENTS
    donated = overhead_source(gpu) is Source.TRANSFER
    evidence = "measured" if own else "transferred" if donated else "shared"
    cost, estimator = _profiler_cost(gpu, settings), settings.estimator
    if settings.observations == "pooled":
        return summarise(observations, estimator, cost, "transferred" if donated else "shared", signatures=False)
    if settings.observations == "all":
        return summarise(observations, estimator, cost, evidence, signatures=own)
    each = [summarise(part, estimator, cost, evidence) for _, part in observations.groupby("workload", sort=True)]
    return pd.concat(each, ignore_index=True)


def _profiler_cost(gpu: str, settings: OverheadSettings) -> ProfilerCost:
    """The profiler's cost on the host: as a campaign on that GPU's host measured it, else as configured."""
    event_us = None
    if overhead_source(gpu) is Source.MEASUREMENTS:
        event_us = profiler_event_us(measurements_dir() / gpu)
    configured = settings.profiler_event_us
    return ProfilerCost(configured if event_us is None else event_us, settings.profiler_launch_us)


def overheads_from(table: pd.DataFrame, settings: OverheadSettings, workload: str) -> OverheadModel:
    """The overhead model of a statistics table, scaled to the host.

    Raises:
        InputError: only the workload's own observations are wanted, and there are none.
    """
    if settings.observations == "own":
        table = table[table["workloads"] == workload]
        if table.empty:
            raise InputError(f"{workload}: no trace of it exists on this host; use overheads=shared")
    return OverheadModel(table, settings.host_scale)
