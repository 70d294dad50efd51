"""Device calls and predictions of points from the files that their rule declares, written beside each point.

Points of one job that have the same kernel models are predicted as one table, like those of `predict_grid`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.host_overheads import overheads_from
from pipeline.answers.kernel_models import kernel_predictor
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.made_once import MadeOnce
from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.predict_point import memory_of, subject_of
from pipeline.answers.predict_step import StepParts, Subject, kernel_times, load_walk_if_it_pays, predict_step
from pipeline.collect.campaign_reader import measured_step
from pipeline.config import Point, method_label
from pipeline.graph.device_calls import call_rows
from pipeline.graph.graph_cache import gpu_kind
from pipeline.graph.graph_file import read_graph
from pipeline.graph.table import Graph
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.schemas import SCHEMAS, read_checked, read_table, to_frame, write_table
from pipeline.settings import Settings
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.perfetto import write_timeline
from pipeline.simulate.program import assemble
from pipeline.simulate.step_program import Program


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


class Mapped(NamedTuple):
    """The graph of a point, and its device calls (`calls` schema)."""

    graph: Graph
    calls: pa.Table


@dataclass(frozen=True)
class _Step:
    """A point whose graph and calls are read."""

    files: PointFiles
    settings: Settings
    subject: Subject
    calls: pd.DataFrame
    parts: StepParts


def map_files(points: Sequence[PointFiles], made: Callable[[PointFiles], Mapping[str, Any]]) -> dict[str, Mapped]:
    """Map the operators of points to device calls, and write the calls.

    Points of one workload that follow each other share the calls of one kind of GPU.

    Args:
        points: the points of a job.
        made: provenance of a point's calls.

    Returns:
        What was mapped, by the file of the calls.

    Raises:
        SteptimeError: a file cannot be read or written, or PyTorch refuses the step on a GPU.
    """
    found = {}
    for path, same in groupby(points, key=lambda files: files.graph):
        graph, known, tables = read_graph(path), dict[str, pa.Table](), list[tuple[list[dict[str, Any]], pa.Table]]()
        for files in same:
            gpu = gpu_of(Settings.of(files.point).gpu)
            if gpu_kind(gpu) not in known:
                rows = call_rows(graph, gpu, graph.device)
                table = next((table for others, table in tables if others == rows), None)
                if table is None:  # kinds of GPUs mostly launch the same kernels
                    table = pa.Table.from_pylist(rows, schema=SCHEMAS["calls"])
                    tables.append((rows, table))
                known[gpu_kind(gpu)] = table
            found[files.calls] = Mapped(graph, known[gpu_kind(gpu)])
            write_table(found[files.calls].calls, files.calls, "calls", made(files))
    return found


def predict_files(
    points: Sequence[PointFiles],
    made: Callable[[PointFiles], Mapping[str, Any]],
    mapped: Mapping[str, Mapped] | None = None,
) -> None:
    """Predict points and write their files.

    Points of one workload that follow each other share what does not depend on the GPU.

    Args:
        points: the points of a job.
        made: provenance of a point's files.
        mapped: what `map_files` returned; graphs and calls of other points are read.

    Raises:
        SteptimeError: a file cannot be read or written, or a point cannot be predicted.
    """
    shared, steps, devices = _Shared(), _read(points, mapped or {}), dict[object, list[_Step]]()
    load_walk_if_it_pays((step.parts, step.subject) for step in steps)
    for step in steps:
        devices.setdefault(_device(step), []).append(step)
    times = {device: kernel_times(shared.predictor(own[0]), [s.parts for s in own]) for device, own in devices.items()}
    for step in steps:
        _predict(step, times[_device(step)][id(step.parts)], shared, made)


def _read(points: Sequence[PointFiles], mapped: Mapping[str, Mapped]) -> list[_Step]:
    """Graph, calls and parts of each point. Points of one workload mostly have the same calls, and then the same parts."""
    steps: list[_Step] = []
    for path, same in groupby(points, key=lambda files: files.graph):
        own = list(same)
        graph = next((mapped[files.calls].graph for files in own if files.calls in mapped), None) or read_graph(path)
        known = list[tuple[pa.Table, pd.DataFrame, StepParts]]()
        for files in own:
            table = mapped[files.calls].calls if files.calls in mapped else read_checked(files.calls, "calls")
            found = next((each for each in known if each[0] is table or each[0].equals(table)), None)
            if found is None:
                calls = to_frame(table)
                known.append(found := (table, calls, StepParts.of(graph.table, calls)))
            settings = Settings.of(files.point)
            steps.append(_Step(files, settings, subject_of(_point(files, settings), graph), *found[1:]))
    return steps


def _point(files: PointFiles, settings: Settings) -> Point:
    """The point of a grid that the files belong to."""
    values = files.point
    _, variant, _ = values["workload"].split("/")
    return Point(
        settings.gpu["name"], values["name"], values["variant"], values["batch_size"], settings, tuple(values["overrides"]),
        variant,
    )  # fmt: skip


def _device(step: _Step) -> tuple[object, ...]:
    """What decides the kernel models of a step."""
    return step.settings.gpu, method_label(step.settings.kernels), step.files.models


class _Shared:
    """What the points of a job share: kernel models by device, overheads by file, programs by calls and overheads."""

    def __init__(self) -> None:
        self._once = MadeOnce()
        self.programs: dict[object, tuple[StepParts, Program]] = {}

    def predictor(self, step: _Step) -> KernelPredictor:
        gpu, variant = gpu_of(step.settings.gpu), method_label(step.settings.kernels)
        return self._once(_device(step), lambda: kernel_predictor(gpu, variant, list(step.files.models)))

    def overheads(self, step: _Step) -> OverheadModel:
        """Overheads of the step's host."""
        file, settings, workload = step.files.overheads, step.settings.overheads, step.files.point["workload"]

        def known() -> OverheadModel:
            """The model, or the equal one of another GPU: many GPUs have the overheads of one host."""
            statistics = self._once(file, lambda: read_table(file, "overheads"))
            model = overheads_from(statistics, settings, workload)
            return next((other for other in self._once.kept(OverheadModel) if other.equals(model)), model)

        return self._once((file, settings, workload), known)

    def program(self, step: _Step) -> Program:
        overheads, workload = self.overheads(step), step.files.point["workload"]
        key = id(step.parts), id(overheads), workload
        if key not in self.programs:  # the parts are kept with it, so that no other parts get their identity
            calls = len(step.parts.which)
            program = assemble(step.parts.sequence, overheads, calls, workload=workload)
            self.programs = {k: v for k, v in self.programs.items() if v[0] is step.parts}
            self.programs[key] = step.parts, program
        return self.programs[key][1]


def _predict(
    step: _Step, times: pd.DataFrame, shared: _Shared, made: Callable[[PointFiles], Mapping[str, Any]]
) -> None:
    """Predict one step and write its files."""
    files, point, gpu = step.files, step.files.point, gpu_of(step.settings.gpu)
    prediction, timeline = predict_step(
        step.subject,
        gpu,
        step.parts,
        times,
        shared.predictor(step).folders,
        shared.program(step),
        measured_step(files.measured, point["workload"], point["model"]) if files.measured else None,
    )
    prediction = replace(prediction, calls=timeline.to_frame(step.calls, times.iloc[step.parts.which]))
    prediction = with_what_fits(prediction, gpu, partial(memory_of, step.settings.model))
    origin = made(files)
    beside = measured_events(files.trace) if files.trace else []
    title = f"{prediction.model} on {prediction.gpu}, batch {prediction.batch_size:,}"
    write_timeline(timeline, [files.timeline, files.page], step.calls, beside=beside, title=title)
    write_table(prediction.calls, files.prediction, "prediction", origin)
    row = pa.table({key: [value] for key, value in prediction.summary_values().items()})
    write_table(row, files.summary, "summary", origin)
