"""Predict a grid of points as one table: `predict_grid(gpu="V100,A100", model="resnet50", batch_size="32,64")`.

The work that points share is done once:

- Each workload is captured and mapped once, whatever the number of GPUs.
- Kernel models and overhead statistics of a GPU are read once.
- The distinct calls of all points of a GPU are predicted as one table.

Every point is then simulated by `predict_step`, which a single prediction uses too. The numbers are those of `predict`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.host_overheads import overhead_model
from pipeline.answers.kernel_models import available_models, kernel_predictor
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.made_once import MadeOnce
from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.predict_point import graph_of, memory_of, points_of, predict_point, subject_of
from pipeline.answers.predict_step import StepParts, Subject, kernel_times, load_walk_if_it_pays, predict_step
from pipeline.config import Point, method_label
from pipeline.errors import SteptimeError, SteptimeWarning
from pipeline.graph.graph_cache import calls_of, gpu_kind
from pipeline.hardware.spec import GpuSpec
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.prediction import Prediction
from pipeline.prices import with_prices
from pipeline.settings import FrozenDict
from pipeline.simulate.program import assemble
from pipeline.simulate.step_program import Program

CALLS_AT_ONCE = 200_000
"""Device calls of the steps that are in memory at a time. A step of 2,500 calls takes 2 MB, so these take about
200 MB."""


@dataclass(frozen=True)
class Answer:
    """A point of a grid with its prediction, or with the error that it raised."""

    point: Point
    prediction: Prediction | None = None
    error: SteptimeError | None = None

    @property
    def reason(self) -> str | None:
        """Why there is no prediction, in one line; None where there is one."""
        return None if self.error is None else " ".join(str(self.error).split())


def predict_grid(gpu: str = "V100", model: str = "dlrm_default", **overrides: Any) -> pd.DataFrame:
    """Predict every point of a grid.

    Args:
        gpu: names or aliases of GPUs, separated by commas.
        model: names of workloads, separated by commas.
        overrides: any other override, as for `predict`. Values separated by commas are a sweep, as in
            `batch_size="32,64"`.

    Returns:
        A row per point, in the order of the sweep: the keys of `Prediction.as_dict`, then `overrides` and `unpredicted`.
        Shares and times by kind have a column for each kind, such as `evidence.pack` and `families_us.gemm`. A point that
        cannot be predicted has its reason in `unpredicted` and no numbers. If any of the GPUs has a price, the columns of
        `pipeline.prices.COST_COLUMNS` are there too, such as `samples_per_dollar`.

    Raises:
        InputError: a name or value does not exist, or prices are in different currencies.
        ConfigError: the price list is damaged.
    """
    points = points_of(gpu, model, overrides)
    answers = in_order(points, predict_points(points))
    for text in dict.fromkeys(text for each in answers if each.prediction for text in each.prediction.warnings):
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return grid_table([_row(each) for each in answers])


def grid_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The table of `predict_grid`.

    Args:
        rows: keys of `Prediction.as_dict` with `unpredicted`, the reason of a point without a prediction, else None.
    """
    table = pd.json_normalize([dict(row) for row in rows], max_level=1)
    kinds = [name for name in table if "." in str(name)]
    known = table["unpredicted"].isna()
    table.loc[known, kinds] = table.loc[known, kinds].fillna(0.0)  # kinds that only other points have
    if "samples_per_s" in table and (priced := with_prices(table))["price_per_hour"].notna().any():
        table = priced
    return table[[name for name in table if name not in _LAST] + _LAST]


_LAST = ["overrides", "unpredicted"]
"""The last columns of `predict_grid`."""


def _row(answer: Answer) -> dict[str, Any]:
    """A row of `predict_grid`."""
    point, found = answer.point, answer.prediction
    names = {"gpu": point.gpu, "model": point.model, "variant": point.variant, "batch_size": point.batch_size}
    last = {"overrides": list(point.overrides), "unpredicted": answer.reason}
    return names | ({} if found is None else found.as_dict()) | last


def in_order(points: Sequence[Point], answers: Iterable[Answer]) -> list[Answer]:
    """The answers in the order of the points."""
    found = {id(answer.point): answer for answer in answers}
    return [found[id(point)] for point in points]


def predict_points(
    points: Sequence[Point],
    results: str | Path | None = "results",
    keep_draws: bool = False,
    models: GridModels | None = None,
) -> Iterator[Answer]:
    """Predict points, workload by workload. Each point gives one answer; an error concerns its own points only.

    Args:
        points: points of one grid or of several.
        results: as for `predict_point`.
        keep_draws: whether predictions hold the step time of each draw (8 kB each), except those measured here.
        models: models of these `results`, if an earlier call has read them.
    """
    shared = models or GridModels(results)
    by_workload: dict[object, list[Point]] = {}
    for point in points:
        by_workload.setdefault((point.settings.model, point.batch_size, point.settings.edit), []).append(point)
    steps: list[_Step] = []
    rows = 0
    for same in by_workload.values():
        known: dict[str, _Mapped] = {}
        for point in same:
            try:
                if point.local:
                    yield Answer(point, predict_point(point, results))
                    continue
                step = _step(point, shared, known)
            except SteptimeError as error:
                yield Answer(point, error=error)
                continue
            steps.append(step)
        rows += sum(len(each.calls) for each in {id(each): each for each in known.values()}.values())
        if rows >= CALLS_AT_ONCE:
            yield from _predicted(steps, shared, keep_draws)
            steps, rows = [], 0
    yield from _predicted(steps, shared, keep_draws)


class GridModels:
    """Models that points share: GPUs, their kernel models, and the overheads of their hosts. Each is read once.

    Args:
        results: as for `predict_point`.
    """

    def __init__(self, results: str | Path | None = "results") -> None:
        self.results = results
        self._once = MadeOnce()

    def gpu(self, point: Point) -> GpuSpec:
        """The GPU of a point."""
        return self._once(("gpu", point.settings.gpu), lambda: gpu_of(point.settings.gpu))

    def kernels(self, point: Point) -> KernelPredictor:
        """Kernel models of a point's GPU and method."""
        gpu, (figures, variant) = self.gpu(point), device_key(point)
        return self._once(
            ("kernels", figures, variant),
            lambda: kernel_predictor(gpu, variant, available_models(point.gpu, variant, self.results)),
        )

    def overheads(self, point: Point) -> OverheadModel:
        """Overheads of a point's host."""
        settings = point.settings.overheads
        workload = point.workload if settings.observations == "own" else ""

        def known() -> OverheadModel:
            """The model, or the equal one of another GPU: many GPUs have the overheads of one host."""
            model = overhead_model(point.gpu, settings, self.results, point.workload)
            return next((other for other in self._once.kept(OverheadModel) if other.equals(model)), model)

        return self._once(("overheads", point.gpu, settings, workload), known)


@dataclass(frozen=True)
class _Step:
    """A point whose step is captured and mapped."""

    point: Point
    subject: Subject
    parts: StepParts


@dataclass(frozen=True)
class _Mapped:
    """Device calls of a workload on one kind of GPU, and what a prediction needs of them."""

    calls: pd.DataFrame
    parts: StepParts


def device_key(point: Point) -> tuple[FrozenDict, str]:
    """What decides the kernel models of a point: the GPU's figures and the label of the method."""
    return point.settings.gpu, method_label(point.settings.kernels)


def _step(point: Point, shared: GridModels, known: dict[str, _Mapped]) -> _Step:
    """The step of a point; `known` holds what was mapped of the same workload, by the kind of GPU.

    Raises:
        SteptimeError: the step cannot be made, or the GPU does not exist.
    """
    gpu, config, edit = shared.gpu(point), point.settings.model, point.settings.edit
    graph = graph_of(config, point.batch_size, edit)
    kind = gpu_kind(gpu)
    if kind not in known:
        calls = calls_of(graph, config.plain(), point.batch_size, gpu, edit)
        # kinds of GPUs mostly launch the same kernels
        same = next((each for each in known.values() if each.calls is calls or each.calls.equals(calls)), None)
        known[kind] = same or _Mapped(calls, StepParts.of(graph.table, calls))
    return _Step(point, subject_of(point, graph), known[kind].parts)


def _predicted(steps: Sequence[_Step], shared: GridModels, keep_draws: bool) -> Iterator[Answer]:
    """Predict the steps: kernel times GPU by GPU, then each step."""
    load_walk_if_it_pays((step.parts, step.subject) for step in steps)
    devices: dict[tuple[FrozenDict, str], list[_Step]] = {}
    for step in steps:
        devices.setdefault(device_key(step.point), []).append(step)
    times: dict[tuple[FrozenDict, str], Mapping[int, pd.DataFrame]] = {}
    for device, own in devices.items():
        with suppress(SteptimeError):  # raised again by the points of this GPU
            times[device] = kernel_times(shared.kernels(own[0].point), [step.parts for step in own])
    programs: dict[tuple[int, int, str | None], Program] = {}  # of GPUs with the same calls and the same host
    for step in steps:
        try:
            kernels, device = shared.kernels(step.point), device_key(step.point)
            own_times = times[device][id(step.parts)] if device in times else kernels.predict(step.parts.calls)
            overheads, workload = shared.overheads(step.point), step.subject.workload
            key = id(step.parts), id(overheads), workload
            if key not in programs:
                calls = len(step.parts.which)
                programs[key] = assemble(step.parts.sequence, overheads, calls, workload=workload)
            gpu, config = shared.gpu(step.point), step.point.settings.model
            prediction, _ = predict_step(
                step.subject, gpu, step.parts, own_times, kernels.folders, programs[key], keep_draws=keep_draws
            )
            yield Answer(step.point, with_what_fits(prediction, gpu, partial(memory_of, config)))
        except SteptimeError as error:
            yield Answer(step.point, error=error)
