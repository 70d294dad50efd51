"""Predictions of points from the files that their rule declares, written beside each point.

Points of one job that have the same kernel models are predicted as one table, like those of `predict_grid`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.host_overheads import overheads_from
from pipeline.answers.kernel_models import kernel_predictor
from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.predict_step import StepParts, Subject, predict_step
from pipeline.collect.campaign_reader import measured_step
from pipeline.config import method_label
from pipeline.graph.graph_cache import memory_need
from pipeline.graph.graph_file import read_graph
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.schemas import read_table, write_table
from pipeline.settings import FrozenDict, Settings
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.perfetto import write_timeline
from pipeline.simulate.program import assemble


@dataclass(frozen=True)
class PointFiles:
    """One point of a job: its settings (`Flow.settings`), what it is predicted from, and the files to write."""

    point: Mapping[str, Any]
    graph: str
    calls: str
    models: tuple[str, ...]
    overheads: str
    prediction: str
    timeline: str
    page: str
    summary: str
    measured: str | None = None
    trace: str | None = None


@dataclass(frozen=True)
class _Step:
    """A point whose graph and calls are read."""

    files: PointFiles
    settings: Settings
    subject: Subject
    calls: pd.DataFrame
    parts: StepParts


def predict_files(points: Sequence[PointFiles], made: Callable[[PointFiles], Mapping[str, Any]]) -> None:
    """Predict points and write their files.

    Args:
        points: the points of a job.
        made: provenance of a point's files.

    Raises:
        SteptimeError: a file cannot be read or written, or a point cannot be predicted.
    """
    devices: dict[object, list[_Step]] = {}
    for files in points:
        settings = Settings.of(files.point)
        device = (settings.gpu, method_label(settings.kernels), files.models)
        devices.setdefault(device, []).append(_read(files, settings))
    for own in devices.values():
        _predict(own, made)


def _read(files: PointFiles, settings: Settings) -> _Step:
    point, graph = files.point, read_graph(files.graph)
    subject = Subject(
        point["name"],
        point["variant"],
        point["batch_size"],
        graph.memory_bytes,
        tuple(point["overrides"]),
        point["workload"],
        settings.predict,
        point["host"],
        graph.warnings,
    )
    calls = read_table(files.calls, "calls")
    return _Step(files, settings, subject, calls, StepParts.of(graph.table, calls))


def _predict(steps: Sequence[_Step], made: Callable[[PointFiles], Mapping[str, Any]]) -> None:
    """Predict the steps of one device: all kernel times as one table, then each step."""
    first = steps[0]
    gpu = gpu_of(first.settings.gpu)
    kernels = kernel_predictor(gpu, method_label(first.settings.kernels), list(first.files.models))
    times = kernels.predict(pd.concat([step.parts.calls for step in steps], ignore_index=True))
    ends = np.cumsum([len(step.parts.calls) for step in steps])

    @cache
    def overheads(path: str, settings: Any, workload: str) -> OverheadModel:
        return overheads_from(read_table(path, "overheads"), settings, workload)

    for step, end in zip(steps, ends, strict=True):
        files, point = step.files, step.files.point
        own = times.iloc[end - len(step.parts.calls) : end].reset_index(drop=True)
        prediction, timeline = predict_step(
            step.subject,
            gpu,
            step.parts,
            own,
            kernels.folders,
            assemble(
                step.parts.sequence,
                overheads(files.overheads, step.settings.overheads, point["workload"]),
                len(step.parts.which),
                workload=point["workload"],
            ),
            measured_step(files.measured, point["workload"], point["model"]) if files.measured else None,
        )
        prediction = replace(prediction, calls=timeline.to_frame(step.calls, own.iloc[step.parts.which]))
        prediction = with_what_fits(prediction, gpu, partial(_memory_bytes, step.settings.model))
        origin = made(files)
        beside = measured_events(files.trace) if files.trace else []
        title = f"{prediction.model} on {prediction.gpu}, batch {prediction.batch_size:,}"
        write_timeline(timeline, [files.timeline, files.page], step.calls, beside=beside, title=title)
        write_table(prediction.calls, files.prediction, "prediction", origin)
        write_table(prediction.summary_row(), files.summary, "summary", origin)


def _memory_bytes(model: FrozenDict, batch_size: int) -> int:
    """Memory need of a workload's step."""
    return memory_need(model.plain(), batch_size).total
