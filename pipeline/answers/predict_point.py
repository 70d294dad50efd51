"""Predict from Python: `predict(gpu="V100", model="dlrm_default", batch_size=2048)`.

Nothing needs to have run before: kernel models and overheads come from what a pipeline run left under `results/`, else
from the shipped packs, else from other GPUs and the spec file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import LOCAL_GPU, Point, expand, method_label
from pipeline.config_checks import written
from pipeline.errors import ConfigError, InputError
from pipeline.answers.sources import Source, kernel_source, overhead_source, shipped_overheads
from pipeline.packs import check_pack, list_packs
from pipeline.paths import Artifacts, measurements_dir, packs_dir
from pipeline.prediction import Prediction

CHOOSING = ("auto", "compare")
"""Kernel-model variants that choose among others; what ships is such a choice."""

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.graph.table import Graph
    from pipeline.hardware.spec import GpuSpec
    from pipeline.answers.kernel_predictor import KernelPredictor
    from pipeline.overheads.overhead_model import OverheadModel
    from pipeline.overheads.statistics import ProfilerCost


def predict(gpu: str = "V100", model: str = "dlrm_default", **overrides: Any) -> Prediction:
    """Predict one training step.

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload.
        overrides: any other override; `.` is written `__`, as in `model__embedding="sparse"`, `batch_size=512`; lists and
            dicts are values too, as in `model__rows=[1000, 2000]`.

    Raises:
        InputError: a name or value does not exist, or the overrides describe several points.
    """
    given = {"gpu": gpu, "model": model} | {key.replace("__", "."): value for key, value in overrides.items()}
    texts = [f"{key}={written(value)}" for key, value in given.items()]
    points = expand(texts)
    if len(points) != 1:
        raise ConfigError(f"predict takes one point, these overrides make {len(points)}")
    return predict_point(points[0])


def predict_point(point: Point, results: str | Path | None = "results") -> Prediction:
    """Predict one grid point from what is fitted under `results` (None: nothing), shipped, or transferred.

    Raises:
        InputError: `gpu=local`, and the machine was not measured yet.
    """
    from pipeline.answers.predict_step import Subject, evaluate
    from pipeline.graph.device_calls import map_calls

    if point.local:
        return _measured_here(point, Path(results or "results"))
    gpu = gpu_of(point.config["gpu"])
    graph = _captured(_frozen(point.config["model"]), point.batch_size)
    calls = map_calls(graph, gpu, graph.device)
    subject = Subject(
        point.model,
        point.variant,
        point.batch_size,
        graph.memory_bytes,
        point.overrides,
        point.workload,
        settings=point.config["predict"],
    )
    kernels = kernel_predictor(gpu, method_label("kernels", point.config["kernels"]), results)
    overheads = overhead_model(point.gpu, point.config["overheads"], results, point.workload)
    return evaluate(subject, gpu, graph.table, calls, kernels, overheads)[0]


def kernel_predictor(gpu: GpuSpec, variant: str, results: str | Path | None) -> KernelPredictor:
    """Kernel models of a GPU: fitted ones under `results`, else the pack's, else transfer and physics.

    Args:
        gpu: the device, as its file states it or altered.
        variant: label of the kernel settings (`pipeline.config.method_label`).
        results: the results folder; None takes what ships.

    A GPU whose figures are altered is the catalogue's card, each call scaled by what the figures change.

    Raises:
        InputError: the variant has to be fitted first; packs hold the one that `auto` chose.
        PackError: the GPU's pack is damaged.
    """
    from dataclasses import replace

    from pipeline.hardware.altered_figures import catalogue, differing
    from pipeline.answers.kernel_predictor import load_predictor
    from pipeline.kernels.saved_families import find_families

    card = catalogue(gpu.name)
    if card is not None:
        card = _with_measured_peaks(card, card)
        if differing(gpu, card):
            from pipeline.answers.altered_gpu import AlteredPredictor

            return AlteredPredictor.of(gpu, kernel_predictor(card, variant, results))
    folders = [Path(Artifacts(str(results)).kernels(gpu.name))] if results is not None else []
    fitted, choice = bool(find_families(folders, variant)), variant.partition("-")[0]
    if gpu.name in list_packs():
        check_pack(gpu.name)
        folders.append(packs_dir() / gpu.name / "kernels")
    if fitted or choice in CHOOSING:
        return load_predictor(gpu, folders, variant)
    if choice == "roofline":
        return replace(load_predictor(gpu, folders, variant), models={})
    raise InputError(
        f"kernels={choice}: no such models are fitted for {gpu.name}: run `snakemake --config gpu={gpu.name} "
        f"kernels={choice}` where it has samples, or take kernels=auto"
    )


def overhead_model(gpu: str, settings: Mapping[str, Any], results: str | Path | None, workload: str) -> OverheadModel:
    """Host overheads for a GPU: statistics under `results`, else made of the shipped observations."""
    from pipeline.schemas import read_table

    if results is not None:
        table = Path(Artifacts(str(results)).overheads(gpu, method_label("overheads", settings)))
        if table.is_file():
            return overheads_from(read_table(table, "overheads"), settings, workload)
    shipped = shipped_overheads(gpu)
    check_pack(shipped.parent.name)
    version = overhead_source(gpu), shipped.stat().st_mtime_ns
    return overheads_from(_shipped_statistics(shipped, gpu, version, _frozen(settings)), settings, workload)


@lru_cache(maxsize=16)
def _shipped_statistics(shipped: Path, gpu: str, _version: tuple[Source, int], settings: str) -> pd.DataFrame:
    """Statistics of shipped observations, once for all points of a GPU while they are the same."""
    import json

    from pipeline.schemas import read_table

    return overhead_statistics(read_table(shipped, "overhead_samples"), gpu, json.loads(settings))


def overhead_statistics(observations: pd.DataFrame, gpu: str, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Statistics of a host's observations with the configured estimator, less the profiler's cost."""
    import pandas as pd

    from pipeline.overheads.statistics import summarise

    own = gpu == LOCAL_GPU or overhead_source(gpu) is Source.MEASUREMENTS
    donated = overhead_source(gpu) is Source.TRANSFER
    evidence = "measured" if own else "transferred" if donated else "shared"
    cost, estimator = _profiler_cost(gpu, settings), str(settings["estimator"])
    if settings["observations"] == "pooled":
        return summarise(observations, estimator, cost, "transferred" if donated else "shared", signatures=False)
    if settings["observations"] == "all":
        return summarise(observations, estimator, cost, evidence, signatures=own)
    each = [summarise(part, estimator, cost, evidence) for _, part in observations.groupby("workload", sort=True)]
    return pd.concat(each, ignore_index=True)


def _profiler_cost(gpu: str, settings: Mapping[str, Any]) -> ProfilerCost:
    """What recording cost the host: as a campaign on that GPU's host measured it, else as configured."""
    from pipeline.overheads.statistics import ProfilerCost

    event_us = None
    if overhead_source(gpu) is Source.MEASUREMENTS:
        from pipeline.collect.campaign_reader import profiler_event_us

        event_us = profiler_event_us(measurements_dir() / gpu)
    configured = float(settings["profiler_event_us"])
    return ProfilerCost(configured if event_us is None else event_us, float(settings["profiler_launch_us"]))


def overheads_from(table: pd.DataFrame, settings: Mapping[str, Any], workload: str) -> OverheadModel:
    """The lookup over a statistics table, scaled to the host.

    Raises:
        InputError: only the workload's own observations are wanted, and there are none.
    """
    from pipeline.overheads.overhead_model import OverheadModel

    if settings["observations"] == "own":
        table = table[table["workloads"] == workload]
        if table.empty:
            raise InputError(f"{workload}: no trace shows its overheads on this host; take overheads=shared")
    return OverheadModel(table, float(settings["host_scale"]))


def gpu_of(values: Mapping[str, Any]) -> GpuSpec:
    """The GPU of a composed configuration, its figures overridden or not; `local` asks this machine.

    Peaks that a campaign of ours measured stand in where the configuration has none.
    """
    from pipeline.hardware.altered_figures import composed_gpu
    from pipeline.hardware.spec import load_gpu

    if values["name"] == LOCAL_GPU:
        return load_gpu(LOCAL_GPU)
    gpu, card = composed_gpu(values)
    return _with_measured_peaks(gpu, card or gpu)


def _with_measured_peaks(gpu: GpuSpec, card: GpuSpec) -> GpuSpec:
    """`gpu` with the peaks that a campaign of ours measured on the catalogue's `card`, where it states none."""
    from dataclasses import replace

    from pipeline.hardware.altered_figures import following_ratio

    if kernel_source(gpu.name) is not Source.MEASUREMENTS:
        return gpu
    from pipeline.collect.campaign_reader import measured_peaks

    peaks = {f"measured_{name}": value for name, value in measured_peaks(measurements_dir() / gpu.name).items()}
    new: dict[str, Any] = {
        name: value * following_ratio(name, gpu, card)
        for name, value in peaks.items()
        if hasattr(gpu, name) and getattr(gpu, name) is None
    }
    return replace(gpu, **new) if new else gpu


def largest_batch(point: Point) -> int | None:
    """The largest batch whose memory need fits the GPU, down to two digits; None where not even one sample fits.

    A step's memory is a fixed part (parameters, gradients, optimizer) and a part per sample; two captures tell them
    apart.
    """
    gpu = gpu_of(point.config["gpu"])
    if point.local:
        return None
    model, batch = _frozen(point.config["model"]), max(point.batch_size, 2)
    small, large = (_captured(model, size).memory_bytes for size in (batch // 2, batch))
    per_sample = (large - small) / (batch - batch // 2)
    room = gpu.memory_bytes - (large - per_sample * batch)
    return first_digits(int(room / per_sample)) if room >= per_sample > 0 else None


def first_digits(number: int, digits: int = 2) -> int:
    """A whole number with all but its first digits set to zero, never more than it was."""
    unit: int = 10 ** max(len(str(number)) - digits, 0)
    return number // unit * unit


def _measured_here(point: Point, results: Path) -> Prediction:
    from pipeline.schemas import read_table

    path = (
        Path(Artifacts(str(results)).point(point.gpu, point.model, point.variant, point.batch_size)) / "summary.parquet"
    )
    if not path.is_file():
        raise InputError(
            f"gpu=local is measured first: run `snakemake --config gpu=local model={point.model} batch_size={point.batch_size}`"
        )
    return Prediction.all_of(read_table(path, "summary"))[0]


def _frozen(config: Mapping[str, Any]) -> str:
    import json

    return json.dumps(config, sort_keys=True)


@lru_cache(maxsize=64)
def _captured(config: str, batch_size: int) -> Graph:
    import json

    from pipeline.graph.capture import capture

    return capture(json.loads(config), batch_size)
