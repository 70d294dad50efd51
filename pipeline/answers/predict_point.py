"""Predict from Python: `predict(gpu="V100", model="dlrm_default", batch_size=2048)`.

No pipeline run is needed first. Kernel models and overheads are those that a pipeline run would use, else the shipped
ones, else they come from other GPUs and the GPU's file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.host_overheads import host_name, overhead_model
from pipeline.answers.kernel_models import available_models, kernel_predictor
from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.predict_step import Subject, predict_from_parts
from pipeline.config import Point, expand, method_label
from pipeline.config_checks import written
from pipeline.errors import ConfigError, InputError, SteptimeWarning
from pipeline.graph.graph_cache import NO_EDITS, calls_of, captured, memory_need
from pipeline.graph.table import Graph
from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.schemas import read_table
from pipeline.settings import EditSettings, FrozenDict
from pipeline.simulate.timeline import Timeline


def predict(gpu: str = "V100", model: str = "dlrm_default", **overrides: Any) -> Prediction:
    """Predict one training step.

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload.
        overrides: any other override, such as `batch_size=512`. `.` is written `__`, as in `model__embedding="sparse"`.
            Lists and dicts are values too, as in `model__rows=[1000, 2000]`.

    Raises:
        InputError: a name or value does not exist, or the overrides describe several points.
    """
    points = points_of(gpu, model, overrides)
    if len(points) != 1:
        raise ConfigError(f"predict takes one point, but these overrides give {len(points)}")
    prediction = predict_point(points[0])
    for text in prediction.warnings:
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return prediction


def points_of(gpu: str, model: str, overrides: Mapping[str, Any]) -> list[Point]:
    """The points that Python arguments describe: `model__embedding="sparse"` is the override `model.embedding=sparse`."""
    given = {"gpu": gpu, "model": model} | {key.replace("__", "."): value for key, value in overrides.items()}
    return expand([f"{key}={written(value)}" for key, value in given.items()])


def predict_point(point: Point, results: str | Path | None = "results") -> Prediction:
    """Predict one grid point from the models that the pipeline's rules would declare for it.

    The order is:

    1. Families fitted under `results`, if their samples still exist.
    2. The shipped pack (also where `results` is None).
    3. Cross-GPU models and physics.

    Raises:
        InputError: `gpu=local`, and the machine was not measured yet.
    """
    if point.local:
        return _measured_here(point, Path(results or "results"))
    return predict_timeline(point, results)[0]


def predict_timeline(point: Point, results: str | Path | None = "results") -> tuple[Prediction, Timeline, pd.DataFrame]:
    """Predict one grid point as `predict_point` does; also its timeline, and the device calls (`calls` schema).

    Raises:
        InputError: `gpu=local`, whose timeline the pipeline writes.
    """
    if point.local:
        folder = Artifacts(str(results or "results")).point(point.gpu, point.model, point.variant, point.batch_size)
        raise InputError(f"gpu=local: the pipeline writes this timeline, {folder}/timeline.html")
    gpu = gpu_of(point.settings.gpu)
    graph = graph_of(point.settings.model, point.batch_size, point.settings.edit)
    calls = calls_of(graph, point.settings.model.plain(), point.batch_size, gpu, point.settings.edit)
    subject = subject_of(point, graph)
    variant = method_label(point.settings.kernels)
    kernels = kernel_predictor(gpu, variant, available_models(point.gpu, variant, results))
    overheads = overhead_model(point.gpu, point.settings.overheads, results, point.workload)
    prediction, timeline = predict_from_parts(subject, gpu, graph.table, calls, kernels, overheads)
    fitting = with_what_fits(prediction, gpu, lambda size: memory_of(point.settings.model, size))
    return fitting, timeline, calls


def subject_of(point: Point, graph: Graph) -> Subject:
    """Names, memory and settings of a point whose step is captured."""
    return Subject(
        point.model,
        point.variant,
        point.batch_size,
        graph.memory_bytes,
        point.overrides,
        point.workload,
        settings=point.settings.predict,
        host=host_name(point.gpu, point.settings.overheads),
        warnings=graph.warnings,
    )


def estimated_largest_batch(point: Point) -> int | None:
    """About the largest batch whose memory need fits the GPU, down to two digits; None where not even one sample fits.

    A step's memory is a fixed part (parameters, gradients, optimizer) plus a part per sample. Captures at two batch
    sizes separate them. A search, as `with_what_fits` makes for a step that does not fit, would capture the step at that
    batch: for DLRM at 940,000 samples this takes 9 s and 6 GB.
    """
    gpu = gpu_of(point.settings.gpu)
    if point.local:
        return None
    model, batch = point.settings.model, max(point.batch_size, 2)
    small, large = (memory_of(model, size) for size in (batch // 2, batch))
    per_sample = (large - small) / (batch - batch // 2)
    room = gpu.memory_bytes - (large - per_sample * batch)
    return first_digits(int(room / per_sample)) if room >= per_sample > 0 else None


def first_digits(number: int, digits: int = 2) -> int:
    """Round a whole number down: all but its first digits are set to zero."""
    unit: int = 10 ** max(len(str(number)) - digits, 0)
    return number // unit * unit


def _measured_here(point: Point, results: Path) -> Prediction:
    path = (
        Path(Artifacts(str(results)).point(point.gpu, point.model, point.variant, point.batch_size)) / "summary.parquet"
    )
    if not path.is_file():
        raise InputError(
            f"gpu=local must be measured first: run `snakemake --config gpu=local model={point.model} "
            f"batch_size={point.batch_size}`"
        )
    return Prediction.all_of(read_table(path, "summary"), path)[0]


_MEMORY: dict[tuple[FrozenDict, int], int] = {}
"""Memory need in bytes of every workload that this process knows."""


def memory_of(config: FrozenDict, batch_size: int) -> int:
    """Memory need of a workload's step in bytes.

    Raises:
        SteptimeError: the workload cannot be made at this batch size.
    """
    if (config, batch_size) not in _MEMORY:
        _MEMORY[config, batch_size] = memory_need(config.plain(), batch_size).total
    return _MEMORY[config, batch_size]


@lru_cache(maxsize=16)
def graph_of(config: FrozenDict, batch_size: int, edit: EditSettings = NO_EDITS) -> Graph:
    """The captured step of a workload after edits; the graphs that were used last stay in memory.

    Raises:
        SteptimeError: the workload cannot be made, or an edit matches no operator.
    """
    graph = captured(config.plain(), batch_size, edit)
    _MEMORY[config, batch_size] = graph.memory_bytes
    return graph
