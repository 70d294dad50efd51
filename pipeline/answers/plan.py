"""Which GPU, batch size and options are best for an objective: a search over a space of points.

Each point has a time and, where its GPU has a price, a cost. A point is predicted unless a lower bound of its time shows that
an already predicted point is at least as fast and as cheap (`pipeline.answers.plan_bounds`). Points with low bounds are
predicted first. The fastest, the cheapest, and every point of the front of time against cost are therefore predicted,
also under a deadline or a budget.

Bounds are checked while the search runs: if a prediction is below its bound, all bounds are lowered by that ratio, and
points that were ruled out may come back.

How often the winner wins: the best points are predicted with all draws. Points of one GPU have the same random numbers. Points
of different GPUs have others, because the errors of their models are not the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.plan_bounds import CallSizes, sizes_between, step_bounds_us
from pipeline.answers.predict_grid import Answer, in_order, predict_points
from pipeline.answers.predict_point import graph_of, memory_of
from pipeline.config import Point, expand
from pipeline.config_checks import written
from pipeline.errors import InputError, SteptimeError
from pipeline.graph.graph_cache import calls_of
from pipeline.hardware.spec import GpuSpec
from pipeline.prediction import Prediction
from pipeline.prices import price_notes, prices_of
from pipeline.readable import amount, compact, gibibytes, html_table, milliseconds, rate
from pipeline.settings import EditSettings, FrozenDict

Floats = npt.NDArray[np.float64]
Made = TypeVar("Made")
Predict = Callable[[Sequence[Point], bool], Iterable[Answer]]

SEARCH_DRAWS = 10
"""Draws of a prediction during the search, which uses the central time only. The best points get all draws."""

POINTS_AT_ONCE = 32
"""Points that are predicted before the bounds of the others are compared again."""

CONTENDERS = 12
"""Number of points, best first, among which the draws decide how often the winner wins."""


LISTED = 3
"""Batch sizes up to which a step is bounded from its calls at each."""


class Objective(StrEnum):
    """What is best."""

    step = "step"
    samples_per_s = "samples_per_s"
    time_per_epoch = "time_per_epoch"
    cost_per_epoch = "cost_per_epoch"
    samples_per_dollar = "samples_per_dollar"

    @property
    def of_cost(self) -> bool:
        """Whether it needs a price."""
        return self in (Objective.cost_per_epoch, Objective.samples_per_dollar)


@dataclass(frozen=True)
class Limits:
    """Constraints on a plan; None for no constraint."""

    samples: int | None = None
    """Samples of an epoch."""
    memory_bytes: int | None = None
    """Largest memory need, below that of the GPU."""
    budget: float | None = None
    """Largest cost of an epoch, in the currency of the prices."""
    deadline_s: float | None = None
    """Longest time of an epoch."""
    global_batch: int | None = None
    """Samples of one update of the weights; smaller batches are accumulated."""

    def __post_init__(self) -> None:
        for name, text in _LIMIT_NAMES.items():
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise InputError(f"{text} {value:g}: give a number above 0")
        if self.samples is None and (self.budget is not None or self.deadline_s is not None):
            raise InputError("--budget and --deadline hold for an epoch: give its --samples")


_LIMIT_NAMES = {"samples": "--samples", "memory_bytes": "--memory", "budget": "--budget", "deadline_s": "--deadline",
                "global_batch": "--global-batch"}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A predicted point of a plan."""

    point: Point
    prediction: Prediction
    batches: int
    """Batches that are accumulated for one update."""
    us_per_sample: float
    cost_per_sample: float | None
    """In the currency of the prices; None without a price."""
    time: float
    """Objective `step`: µs of an update; else the same as `us_per_sample`."""
    cost: float
    """Cost over the same work as `time`; infinite without a price."""
    wins: float | None = None
    """Share of the draws in which the point is the best of the contenders."""

    def as_dict(self, samples: int | None) -> dict[str, Any]:
        """Plain values for JSON and tables."""
        found = self.prediction
        epoch = None if samples is None else samples * self.us_per_sample / 1e6
        priced = None if samples is None or self.cost_per_sample is None else samples * self.cost_per_sample
        return {
            "gpu": self.point.gpu, "model": self.point.model, "batch_size": self.point.batch_size,
            "overrides": list(self.point.overrides), "accumulated": self.batches, "step_us": found.predicted_us,
            "p10_us": found.p10_us, "p90_us": found.p90_us, "samples_per_s": 1e6 / self.us_per_sample,
            "samples_per_dollar": None if self.cost_per_sample is None else 1 / self.cost_per_sample,
            "time_per_epoch_s": epoch, "cost_per_epoch": priced, "memory_bytes": found.memory_bytes,
            "bound": found.bound, "evidence": found.evidence, "wins": self.wins,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Plan:
    """The result of a search."""

    objective: Objective
    limits: Limits
    best: Choice
    front: tuple[Choice, ...]
    """Points that no other point beats in both time and cost, fastest first."""
    contenders: tuple[Choice, ...]
    """The best points, best first, with their share of wins."""
    lost: dict[str, int]
    """Why the other points lost: number of points by reason."""
    points: int
    predicted: int
    """Number of points that were predicted; bounds ruled out the rest."""
    currency: str
    prices: tuple[str, ...] = ()
    """Whose prices these are, one line each."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        samples = self.limits.samples
        return {
            "objective": str(self.objective), "points": self.points, "predicted": self.predicted,
            "currency": self.currency, "best": self.best.as_dict(samples),
            "front": [each.as_dict(samples) for each in self.front],
            "contenders": [each.as_dict(samples) for each in self.contenders], "lost": self.lost,
            "prices": list(self.prices),
        }  # fmt: skip

    def table(self) -> pd.DataFrame:
        """The contenders, a row each."""
        return pd.DataFrame([each.as_dict(self.limits.samples) for each in self.contenders])

    def rows(self, choices: Sequence[Choice]) -> list[dict[str, str]]:
        """Choices as text, a column per key."""
        found = []
        for each in choices:
            values = each.as_dict(self.limits.samples)
            row = {
                "GPU": each.point.gpu,
                "batch": f"{each.point.batch_size:,}",
                "options": " ".join(each.point.overrides),
            }
            row |= {"accumulated": f"{each.batches} ×"} if self.limits.global_batch else {}
            row |= {"step": milliseconds(each.prediction.predicted_us), "samples/s": rate(values["samples_per_s"])}
            if self.currency:
                dollars = values["samples_per_dollar"]
                row["samples per " + self.currency] = "" if dollars is None else compact(dollars)
            if values["time_per_epoch_s"] is not None:
                row["epoch"] = duration(values["time_per_epoch_s"])
                cost = values["cost_per_epoch"]
                row |= {f"{self.currency} an epoch": "" if cost is None else amount(cost)} if self.currency else {}
            row |= {"memory": gibibytes(each.prediction.memory_bytes), "bound": each.prediction.bound}
            found.append(row | {"wins": "" if each.wins is None else f"{each.wins:.0%}"})
        return found

    @property
    def summary(self) -> str:
        """One sentence: the winner, and how much was searched."""
        wins = "" if self.best.wins is None else f", best in {self.best.wins:.0%} of the draws"
        options = " ".join((f"batch_size={self.best.point.batch_size}", *self.best.point.overrides))
        return (
            f"best {self.objective}: {self.best.point.model} on {self.best.point.gpu} {options}{wins} "
            f"({self.points:,} points, {self.predicted:,} predicted)"
        )

    def __repr__(self) -> str:
        return f"<Plan: {self.summary}>"

    def _repr_html_(self) -> str:
        rows = self.rows(self.contenders)
        return html_table(self.summary, [list(row.values()) for row in rows], list(rows[0]))


def plan(
    objective: str, gpu: str, model: str, *, samples: int | None = None, memory_gib: float | None = None,
    budget: float | None = None, deadline_s: float | None = None, global_batch: int | None = None, **overrides: Any,
) -> Plan:  # fmt: skip
    """The best point of a space.

    Args:
        objective: a value of `Objective`.
        gpu: names or aliases of GPUs, separated by commas.
        model: names of workloads, separated by commas.
        samples: samples of an epoch.
        memory_gib: largest memory need, GiB.
        budget: largest cost of an epoch.
        deadline_s: longest time of an epoch, seconds.
        global_batch: samples of one update of the weights.
        overrides: any other override, as for `predict_grid`; values separated by commas are an axis of the space.

    Raises:
        InputError: a name or value does not exist, or no point meets the constraints.
    """
    given = {"gpu": gpu, "model": model} | {key.replace("__", "."): value for key, value in overrides.items()}
    memory = None if memory_gib is None else int(memory_gib * 2**30)
    limits = Limits(samples, memory, budget, deadline_s, global_batch)
    return make_plan(_objective(objective), expand([f"{key}={written(value)}" for key, value in given.items()]), limits)


def _objective(name: str) -> Objective:
    try:
        return Objective(name)
    except ValueError:
        raise InputError(f"unknown objective {name!r}: choose one of {', '.join(Objective)}") from None


def make_plan(
    objective: Objective, points: Sequence[Point], limits: Limits, predicting: Predict | None = None, prune: bool = True,
    decided: Callable[[int], object] = lambda _: None,
) -> Plan:  # fmt: skip
    """Search a space.

    Args:
        objective: what is best.
        points: the space.
        limits: constraints.
        predicting: predicts points, with or without their draws; by default `predict_points`.
        prune: whether bounds rule points out.
        decided: called with the number of points that are predicted or ruled out so far. A lower ratio of predictions to
            bounds makes it smaller again.

    Raises:
        InputError: the space is empty, the objective needs what is not given, or no point meets the constraints.
    """
    if not points:
        raise InputError("the space is empty: give at least gpu=... and model=...")
    if objective in (Objective.time_per_epoch, Objective.cost_per_epoch) and limits.samples is None:
        raise InputError(f"{objective}: give the --samples of an epoch")
    search = _Search(objective, limits, predicting or _predicted)
    search.look_at(points)
    search.run(prune, lambda left: decided(len(points) - left))
    feasible = [each for each in search.choices if search.excess(each) is None]
    if not feasible:
        raise InputError(search.nothing())
    ranked = sorted(feasible, key=search.value)
    front = _front(ranked)
    contenders = search.with_wins(ranked[:CONTENDERS])
    told = {id(each.point): each for each in contenders}
    lost = search.lost + Counter(search.why(each, ranked[0]) for each in search.choices if each is not ranked[0])
    front = [told.get(id(each.point), each) for each in front]
    return Plan(
        objective, limits, contenders[0], tuple(front), tuple(contenders), dict(lost.most_common()), len(points),
        len(search.choices), search.currency, search.notes,
    )  # fmt: skip


def _predicted(points: Sequence[Point], keep_draws: bool) -> Iterable[Answer]:
    return predict_points(points, keep_draws=keep_draws)


@dataclass(frozen=True)
class _Open:
    """A point that is not predicted yet, with the lower bounds of its time and cost."""

    point: Point
    batches: int
    price: float | None
    """Price per µs."""
    bound_us: float
    """Lower bound of the time of one update."""


class _StepBounds:
    """Memory needs and bounds of one step at several batch sizes, each computed once. A failure is raised again."""

    def __init__(self, model: FrozenDict, edit: EditSettings, batch_sizes: Sequence[int]) -> None:
        self.model, self.edit, self.batch_sizes = model, edit, batch_sizes
        self._known: dict[object, Any] = {}

    def gpu(self, figures: FrozenDict) -> GpuSpec:
        """The GPU of a composed configuration."""
        return self._once(figures, lambda: gpu_of(figures))

    def memory_bytes(self, batch_size: int) -> int:
        """Memory need; an edit that matches no operator is refused here."""
        if self.edit:
            self._once("edit", lambda: graph_of(self.model, batch_size, self.edit))
        return self._once(batch_size, lambda: memory_of(self.model, batch_size))

    def bounds(self, figures: FrozenDict, batch_size: int) -> tuple[float, float]:
        """Bounds of `step_bounds_us` in µs."""
        gpu = self.gpu(figures)
        # sizes of calls hardly depend on the number of multiprocessors
        kind = gpu.architecture, gpu.compute_capability
        line = self._once(("line", kind), lambda: self._line(kind, gpu)) if len(self.batch_sizes) > LISTED else None
        sizes = line[batch_size] if line is not None else self._calls(kind, gpu, batch_size)
        found = self._once((figures, batch_size), lambda: step_bounds_us(sizes, gpu).reshape(2))
        return float(found[0]), float(found[1])

    def _line(self, kind: object, gpu: GpuSpec) -> Mapping[int, CallSizes] | None:
        try:
            return sizes_between(self.batch_sizes, lambda size: self._calls(kind, gpu, size), gpu)
        except SteptimeError:  # of one batch size: it is raised again by the points that have it
            return None

    def _calls(self, kind: object, gpu: GpuSpec, batch_size: int) -> CallSizes:
        def make() -> CallSizes:
            graph = graph_of(self.model, batch_size, self.edit)
            return CallSizes.of(calls_of(graph, self.model.plain(), batch_size, gpu, self.edit))

        return self._once((kind, batch_size), make)

    def _once(self, key: object, make: Callable[[], Made]) -> Made:
        if key not in self._known:
            try:
                self._known[key] = make()
            except SteptimeError as error:
                self._known[key] = error
        if isinstance(self._known[key], SteptimeError):
            raise self._known[key]
        found: Made = self._known[key]
        return found


@dataclass
class _Search:
    objective: Objective
    limits: Limits
    predicting: Predict
    lost: Counter[str] = field(default_factory=Counter)
    open: list[_Open] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    currency: str = ""
    notes: tuple[str, ...] = ()
    nearest: tuple[float, str] | None = None
    """Least memory need over the room for it, among the points that do not fit, and the message about it."""
    ratio: float = 1.0
    """Smallest ratio of a prediction to its bound, at most 1."""

    def look_at(self, points: Sequence[Point]) -> None:
        """Rule out what does not fit or has no price, and compute the bounds of the rest, workload by workload."""
        prices = prices_of(list(dict.fromkeys(point.gpu for point in points)))
        per_us = {gpu: price / 3600e6 for gpu, price in zip(prices["gpu"], prices["price_per_hour"], strict=True)}
        self.notes = tuple(price_notes(prices, [point.gpu for point in points]))
        self.currency = "" if prices.empty else str(prices["currency"].iloc[0])
        if not per_us and (self.objective.of_cost or self.limits.budget is not None):
            raise InputError(f"{self.objective}: none of these GPUs has a price (docs/prices.md)")
        steps: dict[tuple[FrozenDict, EditSettings], list[Point]] = {}
        for point in points:
            if point.local:
                raise InputError("plan predicts points: name GPUs instead of gpu=local")
            steps.setdefault((point.settings.model, point.settings.edit), []).append(point)
        for (model, edit), same in steps.items():
            self._look_at_step(_StepBounds(model, edit, sorted({each.batch_size for each in same})), same, per_us)

    def _look_at_step(self, step: _StepBounds, same: Sequence[Point], per_us: dict[str, float]) -> None:
        total = self.limits.global_batch
        for point in same:
            batch, price = point.batch_size, per_us.get(point.gpu)
            if total is not None and total % batch:
                self.lost["batch does not divide the global batch"] += 1
                continue
            try:
                need, gpu = step.memory_bytes(batch), step.gpu(point.settings.gpu)
                room = min(gpu.memory_bytes, self.limits.memory_bytes or gpu.memory_bytes)
                if need > room:
                    self.lost["does not fit"] += 1
                    text = f"{point.gpu} batch_size={batch} needs {gibibytes(need)} of {gibibytes(room)}"
                    self.nearest = min((need / room, text), self.nearest or (np.inf, ""))
                    continue
                if price is None and (self.objective.of_cost or self.limits.budget is not None):
                    self.lost["no price"] += 1
                    continue
                whole, part = step.bounds(point.settings.gpu, batch)
            except SteptimeError as error:
                self.lost[f"no prediction: {error}"] += 1
                continue
            batches = 1 if total is None else total // batch
            self.open.append(_Open(point, batches, price, whole + (batches - 1) * part))

    def run(self, prune: bool, still_open: Callable[[int], object]) -> None:
        """Predict points, those with the lowest bounds first, until each of the others is ruled out.

        `still_open` is called with the number of points that are neither predicted nor ruled out.
        """
        self.open.sort(key=lambda each: self._key(*self._time_cost(each, each.bound_us)))
        bounds = np.array([self._time_cost(each, each.bound_us) for each in self.open]).reshape(-1, 2)
        left = np.ones(len(self.open), dtype=bool)
        while True:
            rows = np.flatnonzero(left)
            if prune:  # what is ruled out stays: a lower ratio may bring it back
                rows = rows[~self._beaten(bounds[rows] * self.ratio)]
            still_open(len(rows))
            if not len(rows):
                break
            self._predict([self.open[row] for row in rows[:POINTS_AT_ONCE]])
            left[rows[:POINTS_AT_ONCE]] = False
        if left.any():
            self.lost["ruled out by its bound"] += int(left.sum())

    def _beaten(self, bounds: Floats) -> npt.NDArray[np.bool_]:
        """Whether a predicted point is at least as fast and as cheap as the bounds, shape (points, 2), of each point."""
        known = np.array([(each.time, each.cost) for each in _front(self.choices)]).reshape(-1, 2)
        as_good = (known[None, :, :] <= bounds[:, None, :]).all(axis=2)
        return np.asarray(np.any(as_good, axis=1), dtype=bool)

    def _time_cost(self, each: _Open, us: float) -> tuple[float, float]:
        """Time and cost of the objective, for the time of one update."""
        work = 1 if self.objective is Objective.step else each.point.batch_size * each.batches
        return us / work, np.inf if each.price is None else us / work * each.price

    def _predict(self, chunk: Sequence[_Open]) -> None:
        quick = [_with_draws(each.point, SEARCH_DRAWS) for each in chunk]
        parts = [_accumulating(point) for each, point in zip(chunk, quick, strict=True) if each.batches > 1]
        answers = in_order([*quick, *parts], self.predicting([*quick, *parts], False))
        updates, accumulated = answers[: len(chunk)], iter(answers[len(chunk) :])
        for each, answer in zip(chunk, updates, strict=True):
            part = next(accumulated) if each.batches > 1 else None
            if answer.prediction is None or (part is not None and part.prediction is None):
                self.lost[f"no prediction: {answer.reason or (part.reason if part else '')}"] += 1
                continue
            us = answer.prediction.predicted_us
            us += (each.batches - 1) * part.prediction.predicted_us if part and part.prediction else 0.0
            if each.bound_us > 0:
                self.ratio = min(self.ratio, us / each.bound_us)
            per_sample = us / (each.point.batch_size * each.batches)
            cost = None if each.price is None else per_sample * each.price
            self.choices.append(
                Choice(each.point, answer.prediction, each.batches, per_sample, cost, *self._time_cost(each, us))
            )

    def _key(self, time: float, cost: float) -> float:
        return cost if self.objective.of_cost else time

    def value(self, choice: Choice) -> float:
        """What the objective makes small."""
        return self._key(choice.time, choice.cost)

    def excess(self, choice: Choice) -> tuple[float, str] | None:
        """Ratio to the constraint that a point breaks most, and its name; None if it meets all."""
        samples, found = self.limits.samples or 0, []
        if self.limits.deadline_s is not None:
            found.append((samples * choice.us_per_sample / 1e6 / self.limits.deadline_s, "--deadline"))
        if self.limits.budget is not None and choice.cost_per_sample is not None:
            found.append((samples * choice.cost_per_sample / self.limits.budget, "--budget"))
        worst = max(found, default=(0.0, ""))
        return worst if worst[0] > 1 else None

    def nothing(self) -> str:
        """Why no point is left, with the nearest."""
        if not self.choices:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in self.lost.most_common(3))
            near = f"; the nearest: {self.nearest[1]}" if self.nearest else ""
            return f"no point is left: {reasons}{near}"
        (ratio, name), choice = min(
            ((self.excess(each) or (1.0, ""), each) for each in self.choices), key=lambda pair: pair[0][0]
        )
        values = choice.as_dict(self.limits.samples)
        has = duration(values["time_per_epoch_s"]) if name == "--deadline" else amount(values["cost_per_epoch"])
        where = " ".join((choice.point.gpu, f"batch_size={choice.point.batch_size}", *choice.point.overrides))
        return f"no point meets {name}; the nearest is {where} with {has} an epoch, {ratio:.2f} times as much"

    def why(self, choice: Choice, best: Choice) -> str:
        """Why a predicted point lost to the best."""
        if broken := self.excess(choice):
            return {"--deadline": "over the deadline", "--budget": "over the budget"}[broken[1]]
        if self.objective.of_cost and choice.time <= best.time:
            return "faster, but too dear"
        if choice.prediction.bound == "host" and best.prediction.bound == "device":
            return "host-bound"
        return "too dear" if self.objective.of_cost else "slower"

    def with_wins(self, ranked: Sequence[Choice]) -> list[Choice]:
        """The points with the share of draws in which each is the best; one point has no rival."""
        gpus = list(dict.fromkeys(each.point.settings.gpu for each in ranked))
        seeded = [_reseeded(each.point, gpus.index(each.point.settings.gpu)) for each in ranked]
        parts = [_accumulating(point) if each.batches > 1 else None for each, point in zip(ranked, seeded, strict=True)]
        asked = [*seeded, *(part for part in parts if part is not None)]
        answers = {id(answer.point): answer.prediction for answer in self.predicting(asked, True)}
        drawn, shown = [], []
        for each, point, part in zip(ranked, seeded, parts, strict=True):
            found = answers[id(point)]
            assert found is not None and found.draws_us is not None
            us, accumulated = found.draws_us, None if part is None else answers[id(part)]
            if accumulated is not None and accumulated.draws_us is not None:
                us = us + (each.batches - 1) * accumulated.draws_us
            update_us = each.us_per_sample * each.point.batch_size * each.batches
            drawn.append(us * self.value(each) / update_us)
            shown.append(replace(found, draws_us=None))
        best = np.argmin(np.array(drawn), axis=0)
        wins = np.bincount(best, minlength=len(ranked)) / len(best)
        several = len(ranked) > 1
        return [
            replace(each, prediction=found, wins=float(share) if several else None)
            for each, found, share in zip(ranked, shown, wins, strict=True)
        ]


def _front(choices: Sequence[Choice]) -> list[Choice]:
    """Points that no other point beats in both time and cost, fastest first."""
    front: list[Choice] = []
    for each in sorted(choices, key=lambda choice: (choice.time, choice.cost)):
        if not front or each.cost < front[-1].cost:
            front.append(each)
    return front


def _with_draws(point: Point, draws: int) -> Point:
    return replace(point, settings=replace(point.settings, predict=replace(point.settings.predict, draws=draws)))


def _reseeded(point: Point, more: int) -> Point:
    predict = point.settings.predict
    return replace(point, settings=replace(point.settings, predict=replace(predict, seed=predict.seed + more)))


def _accumulating(point: Point) -> Point:
    """The point's step without an update of the weights."""
    model = FrozenDict({**point.settings.model, "optimizer": "none"})
    return replace(point, settings=replace(point.settings, model=model))


UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
"""Units of time, in seconds."""


def seconds(text: str) -> float:
    """Seconds of a text such as `90s`, `30min`, `2h` or `1.5d`.

    Raises:
        InputError: the text is no time.
    """
    parts = re.fullmatch(r"([\d.]+) ?(d|h|min|s)", text.strip())
    try:
        return float(parts[1]) * UNITS[parts[2]] if parts else float("")
    except ValueError:
        raise InputError(f"{text!r} is no time: write for example 90s, 30min, 2h or 1.5d") from None


def duration(time_s: float) -> str:
    """A time as text in days, hours, minutes or seconds."""
    unit = next((unit for unit, size in UNITS.items() if time_s >= 2 * size), "s")
    return f"{time_s / UNITS[unit]:.3g} {unit}"
