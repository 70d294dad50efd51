"""Who answers for a GPU and its host: kernel models and overheads, best first, by what there is now.

Kernel models of a GPU, best first:

1. Models fitted on samples of that GPU (`family_model.py`): measured on this machine, by a campaign, or public.
2. Its shipped pack, for families that the first lacks.
3. A GPU with the same chip that has a pack, then cross-GPU models (`transferred_models.py`).
4. Products on tensor cores and fused attention (`gap_models.py`), for calls that the models above do not cover. Collectives
   by curves and formulas of the cluster (`pipeline/kernels/collective_bandwidth.py`).
5. Physics and the GPU's file (`pipeline/kernels/physics.py`).

A GPU with altered figures is predicted by the models of the unaltered GPU, and each call is scaled (`altered_gpu.py`).
Overheads are those of the question's host (`pipeline/hardware/hosts.py`): statistics of its traces, or of its shipped
observations, times its factor.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.answers.altered_gpu import AlteredPredictor
from pipeline.answers.kernel_predictor import KernelPredictor, predictor_of
from pipeline.errors import InputError
from pipeline.hardware.clusters import Cluster
from pipeline.hardware.find_gpu import LOCAL, catalogue_spec, differing_figures, proportional_factor
from pipeline.hardware.hosts import Host
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.collective_bandwidth import FAMILY, collective_model
from pipeline.kernels.family_model import DESCRIPTION, find_families
from pipeline.measured.campaign_reader import measured_peaks, profiler_event_us
from pipeline.model_files import MANIFEST, check_if_shipped, file_digest, list_packs, pack_models
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import ProfilerCost, summarise
from pipeline.paths import CAMPAIGN, Artifacts, datasets_dir, measurements_dir, packs_dir
from pipeline.question.settings import OverheadSettings
from pipeline.schemas import read_table, write_table
from pipeline.user_cache import kept, module_digest


class Source(StrEnum):
    """Where the samples or traces of a GPU come from. It decides which rule makes its kernel models and overheads."""

    LOCAL = "local"  # measured on this machine, now.
    MEASUREMENTS = "measurements"  # a campaign of this project, committed under measurements/.
    PUBLIC = "public"  # public data, present on this machine.
    PACK = "pack"  # models fitted on public data, shipped.
    TRANSFER = "transfer"  # no data of this GPU: predicted from other GPUs and its spec file.


PUBLIC_KERNEL_GPUS = ("V100", "P100", "P4", "T4", "A100-PCIE-40GB")
"""GPUs with public kernel latencies."""

PUBLIC_OVERHEAD_GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs with a pack whose host appears in public training traces (`pipeline/overheads/trace_overheads.py`)."""

HAS_MODELS = (Source.LOCAL, Source.MEASUREMENTS, Source.PUBLIC)
"""Sources whose samples are fitted in this run."""


def kernel_source(gpu: str) -> Source:
    """Where the kernel models of a GPU come from, by the files that exist now."""
    public = "neusight/kernels.parquet" if gpu in PUBLIC_KERNEL_GPUS else None
    return _source(gpu, public, packs_dir() / gpu / "kernels")


def overhead_source(gpu: str) -> Source:
    """Where the host overheads of a GPU come from, by the files that exist now."""
    public = "traces/v100_ddp" if gpu in PUBLIC_OVERHEAD_GPUS else None
    return _source(gpu, public, _pack_overheads(gpu))


def _source(gpu: str, public: str | None, pack: Path) -> Source:
    """The first source of a GPU's data: `public` is a path under the public data."""
    if gpu == LOCAL:
        return Source.LOCAL
    if (measurements_dir() / gpu / CAMPAIGN).is_file():
        return Source.MEASUREMENTS
    data = datasets_dir()
    if public and data is not None and (data / public).exists():
        return Source.PUBLIC
    return Source.PACK if pack.exists() else Source.TRANSFER


def shipped_overheads(gpu: str) -> Path:
    """The shipped overhead observations of a GPU's host.

    Raises:
        InputError: none ship.
    """
    path = _pack_overheads(gpu)
    if not path.is_file():
        names = sorted(
            folder.parent.name for folder in packs_dir().glob("*/overhead_samples.parquet")
        )
        raise InputError(
            f"a host states observations: {gpu}, which has none; take one of {', '.join(names)}"
        )
    return path


def _pack_overheads(gpu: str) -> Path:
    return packs_dir() / gpu / "overhead_samples.parquet"


def observations_file(gpu: str, results: str | Path | None) -> Path:
    """The overhead observations of a GPU's host: those that a run read from its traces, if these still exist, else shipped ones.

    Raises:
        InputError: there are none; the message says which command makes those of a campaign.
    """
    read = Artifacts(str(results or "results")).overhead_samples(gpu)
    if results is not None and overhead_source(gpu) in HAS_MODELS and Path(read).is_file():
        return Path(read)
    if overhead_source(gpu) is Source.MEASUREMENTS and not _pack_overheads(gpu).is_file():
        command = run_command(results, f"gpu={gpu}", "model=dlrm_small", read)
        raise InputError(f"host={gpu}: a run reads its traces first: `{command}`")
    return shipped_overheads(gpu)


def run_command(results: str | Path | None, *words: str) -> str:
    """The command that makes what a message asks for, as a shell reads it; None is the default folder of results."""
    folder = [] if results is None or str(results) == "results" else [f"results={results}"]
    return shlex.join(["steptime", "run", *words, *folder])


CHOOSING_VARIANTS = ("auto", "compare")
"""Variants that choose among the other variants. The shipped packs hold such a choice."""


def shipped_models(gpu: str) -> list[Path]:
    """The manifest of a GPU's pack; empty where none ships."""
    return [packs_dir() / gpu / MANIFEST] if gpu in list_packs() else []


def available_models(gpu: str, variant: str, results: str | Path | None) -> list[Path]:
    """The models that the `predict` rule declares for a GPU: fitted families under `results`, then its pack.

    Families that an earlier run fitted count only while the samples of that GPU exist. Otherwise the rule would not
    declare them.

    Args:
        gpu: name of the GPU.
        variant: label of the kernel settings (`Question.kernels_label`).
        results: the results folder; None takes the shipped pack.
    """
    if results is None or kernel_source(gpu) not in HAS_MODELS:
        return shipped_models(gpu)
    fitted = find_families([Artifacts(str(results)).kernels(gpu)], variant)
    return [*fitted.values(), *shipped_models(gpu)]


def kernel_predictor(
    gpu: GpuSpec,
    variant: str,
    models: Sequence[str | Path] | None = None,
    cluster: Cluster | None = None,
) -> KernelPredictor:
    """Kernel models of a GPU, from exactly the `models` given; else cross-GPU models and physics.

    Args:
        gpu: the GPU, with the figures of its file or with altered ones.
        variant: label of the kernel settings (`Question.kernels_label`).
        models: folders of fitted families, `<family>/<variant>`, and manifests of packs, best first; None takes the
            shipped pack of this GPU.
        cluster: what joins the ranks of collectives; None for steps of one GPU.

    Raises:
        InputError: the variant has to be fitted first; packs hold the one that `auto` chose.
        PackError: the GPU's pack is damaged.
    """
    declared = [Path(path) for path in (shipped_models(gpu.name) if models is None else models)]
    stated = catalogue_spec(gpu.name)
    gpu = _with_measured_peaks(gpu, stated or gpu)
    if stated is not None:
        stated = _with_measured_peaks(stated, stated)
        if differing_figures(gpu, stated):
            return AlteredPredictor.of(gpu, kernel_predictor(stated, variant, declared, cluster))
    families: dict[str, Path] = {}
    fitted = [path for path in declared if (path / DESCRIPTION).is_file()]
    for path in fitted:
        families.setdefault(path.parent.name, path)
    for manifest in (path for path in declared if path.name == MANIFEST):
        families = find_families([pack_models(manifest.parent.name)]) | families
    gpu = gpu if families else replace(gpu, in_step=True)  # samples show the clock of their card
    choice = variant.partition("-")[0]
    folders = tuple(
        dict.fromkeys(
            str(p.parent.parent if p in fitted else p.parent) for p in declared if p.exists()
        )
    )
    if fitted or choice in CHOOSING_VARIANTS:
        return replace(predictor_of(gpu, families, cluster=cluster), folders=folders)
    if choice == "roofline":
        by_formula = None if cluster is None else collective_model(gpu, cluster, measured=())
        formulas = {} if by_formula is None else {FAMILY: by_formula}
        return replace(predictor_of(gpu, families), models=formulas, complete=None, folders=folders)
    raise InputError(
        f"kernels={choice}: no such models were fitted for {gpu.name}: use kernels=auto, or run"
        f" `{run_command(None, f'gpu={gpu.name}', f'kernels={choice}')}` if samples of it are"
        " available"
    )


def _with_measured_peaks(gpu: GpuSpec, stated: GpuSpec) -> GpuSpec:
    """`gpu` with measured peaks where it states none, from this project's campaign on the catalogue's `stated`."""
    if kernel_source(gpu.name) is not Source.MEASUREMENTS:
        return gpu
    peaks = {
        f"measured_{name}": value
        for name, value in measured_peaks(measurements_dir() / gpu.name).items()
    }
    missing: dict[str, Any] = {
        name: value * proportional_factor(name, gpu, stated)
        for name, value in peaks.items()
        if hasattr(gpu, name) and getattr(gpu, name) is None
    }
    return replace(gpu, **missing) if missing else gpu


def overhead_model(
    host: Host, settings: OverheadSettings, results: str | Path | None, workload: str
) -> OverheadModel:
    """Overheads of a host, from the same observations that the pipeline's rules would use now (`observations_file`)."""
    gpu = host.observations
    observations = observations_file(gpu, results)
    check_if_shipped(observations)  # statistics of these bytes may be in the cache
    version = overhead_source(gpu), observations.stat().st_mtime_ns
    return overheads_from(
        _kept_statistics(observations, gpu, version, settings), settings, host, workload
    )


def observations_in(path: str | Path) -> pd.DataFrame:
    """Overhead observations of a host, after a check of their pack if they ship.

    Raises:
        PackError: a file of the pack is missing or damaged.
        TableError: the file is no such table.
    """
    check_if_shipped(path)
    return read_table(path, "overhead_samples")


def host_name(host: Host, settings: OverheadSettings) -> str:
    """The name of a host, with the configured factor on its times."""
    factor = settings.host_scale
    return host.name if factor == 1 else f"{host.name}, its times multiplied by {factor:g}"


@lru_cache(maxsize=16)
def _kept_statistics(
    path: Path, gpu: str, _version: tuple[Source, int], settings: OverheadSettings
) -> pd.DataFrame:
    """Statistics of a file of observations, computed once while the file is unchanged, and kept between runs."""
    parts = {
        "observations": file_digest(path),
        "settings": replace(settings, host_scale=1.0),
        "profiler_cost": _profiler_cost(gpu, settings),
        "source": overhead_source(gpu).name,
        "local": gpu == LOCAL,
        "code": module_digest("pipeline.answers.who_answers"),
    }
    return kept(
        "overheads.parquet",
        parts,
        lambda: overhead_statistics(observations_in(path), gpu, settings),
        lambda kept_in: read_table(kept_in, "overheads"),
        lambda table, kept_in: write_table(table, kept_in, "overheads"),
    )


def overhead_statistics(
    observations: pd.DataFrame, gpu: str, settings: OverheadSettings
) -> pd.DataFrame:
    """Statistics of a host's observations with the configured estimator, less the profiler's cost."""
    measured = gpu == LOCAL or overhead_source(gpu) is Source.MEASUREMENTS
    evidence = "measured" if measured else "shared"
    cost, estimator = _profiler_cost(gpu, settings), settings.estimator
    if settings.observations == "pooled":
        return summarise(observations, estimator, cost, "shared", signatures=False)
    if settings.observations == "all":
        return summarise(observations, estimator, cost, evidence, signatures=measured)
    each = [
        summarise(part, estimator, cost, evidence)
        for _, part in observations.groupby("workload", sort=True)
    ]
    return pd.concat(each, ignore_index=True)


def _profiler_cost(gpu: str, settings: OverheadSettings) -> ProfilerCost:
    """The profiler's cost on the host: as a campaign on that GPU's host measured it, else as configured."""
    measured = overhead_source(gpu) is Source.MEASUREMENTS
    event_us = profiler_event_us(measurements_dir() / gpu) if measured else None
    return ProfilerCost(
        settings.profiler_event_us if event_us is None else event_us, settings.profiler_launch_us
    )


def overheads_from(
    table: pd.DataFrame, settings: OverheadSettings, host: Host, workload: str
) -> OverheadModel:
    """The overhead model of a statistics table, scaled to the host; where a host is inferred, its evidence is `transferred`.

    Raises:
        InputError: only the workload's own observations are wanted, and there are none.
    """
    if settings.observations == "own":
        table = table[table["workloads"] == workload]
        if table.empty:
            raise InputError(
                f"{workload}: no trace of it exists on this host; use overheads=shared"
            )
    table = table.assign(evidence="transferred") if host.inferred else table
    return OverheadModel(table, settings.host_scale * host.scale)
