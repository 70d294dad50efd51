"""The search of a plan: points are ruled out by bounds, and what is left is predicted, best first.

Each point goes through stages, and most leave at an early one:

1. Points that do not fit, have no price, or do not divide the global batch are ruled out.
2. Each point gets a roofline as its bound (`plan_bounds`, first stage).
3. Points with the lowest bounds get a tighter bound from kernel models (second stage), `REFINED_AT_ONCE` at a time.
4. Points with the lowest bounds of the second stage are predicted, `POINTS_AT_ONCE` at a time.

A point is ruled out at any stage if both of these hold. A predicted point is at least as fast and as cheap as its
bounds. `CONTENDERS` predicted points that meet the constraints are better than its bound. The front and the best points are
therefore those of the whole space. If a later stage finds less than a bound, all bounds of that stage are lowered by
this ratio, and points that were ruled out may come back.

Room for more axes: `devices` and `parallel` will be options of a point like all others, which `expand` lists. `StepBounds`
is the bound of one device's share of a step, to which the time of collectives adds. `_Open.samples` then counts the
samples of all devices, and `_Open.price` the price of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipeline.answers.made_once import MadeOnce
from pipeline.answers.plan_bounds import StepBounds, modelled_us
from pipeline.answers.plan_results import Choice, Limits, Objective, front_of
from pipeline.answers.predict_grid import Answer, GridModels, device_key, in_order
from pipeline.answers.predict_point import graph_of, memory_of
from pipeline.config import Point
from pipeline.errors import InputError, SteptimeError
from pipeline.prices import price_notes, prices_of
from pipeline.readable import amount, duration, gibibytes, rate
from pipeline.settings import EditSettings, FrozenDict
from pipeline.simulate.compiled_walk import load_if_it_pays
from pipeline.simulate.step_program import Program

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Predict = Callable[[Sequence[Point], bool], Iterable[Answer]]
Told = Callable[[str, int], object]

SEARCH_DRAWS = 10
"""Draws of a prediction during the search, which uses the central time only. The best points get all draws."""

POINTS_AT_ONCE = 32
"""Points that are predicted before the bounds of the others are compared again."""

REFINED_AT_ONCE = 1024
"""Points that get a bound of the second stage at once: enough to share tables of kernels among batch sizes."""

CONTENDERS = 12
"""Number of points, best first, among which the draws decide how often the winner wins."""

ROUNDING = 1e-6
"""Share by which bounds of the second stage are lowered from the start, for sums in another order."""

ROOFLINE, MODELS = 0, 1
"""Stages of a bound."""

LATE, DEAR, WORSE = "over the deadline", "over the budget", ("slower", "too dear")
"""Why points lose; `WORSE` for objectives of time and of cost."""

ROWS_OF_STEP = 1000
"""Rows of a step's program, about: they decide whether compiled code pays."""

BOUNDING, SEARCHING = "bounding", "searching"
"""What a search is at, for the one who watches."""


@dataclass(frozen=True)
class _Open:
    """A point that is not predicted yet."""

    point: Point
    step: StepBounds
    batches: int
    price: float
    """Price per µs; infinite without one."""
    bound_us: float
    """Lower bound of the time of one update, first stage."""

    @property
    def samples(self) -> int:
        """Samples of one update."""
        return self.point.batch_size * self.batches


@dataclass
class Search:
    """A search for an objective under constraints; `look_at` and `run` fill `choices` and `lost`."""

    objective: Objective
    limits: Limits
    predicting: Predict
    models: GridModels
    told: Told = lambda _stage, _points: None
    lost: Counter[str] = field(default_factory=Counter)
    open: list[_Open] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    currency: str = ""
    notes: tuple[str, ...] = ()
    nearest: tuple[float, str] | None = None
    """Least memory need over the room for it, among the points that do not fit, and the message about it."""
    once: MadeOnce = field(default_factory=MadeOnce)
    ratios: Floats = field(default_factory=lambda: np.array([1.0, 1.0 - ROUNDING]))
    """By stage, the smallest ratio of what a later stage found to its bound, at most 1."""

    def look_at(self, points: Sequence[Point]) -> None:
        """Rule out what does not fit or has no price, and compute the first bounds of the rest, step by step."""
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
        before = 0
        for (model, edit), same in steps.items():
            known: dict[int, int] = {}
            ascending = sorted(same, key=lambda point: point.batch_size)
            possible = [point for point in ascending if self._possible(point, per_us, known)]
            if possible:
                step = StepBounds(model, edit, sorted({point.batch_size for point in possible}))
                self._bound(step, possible, per_us, before, len(same))
            before += len(same)
            self.told(BOUNDING, before)

    def _possible(self, point: Point, per_us: Mapping[str, float], known: dict[int, int]) -> bool:
        """Whether a point divides the global batch, can be made, fits, and has a price if it needs one.

        `known` holds memory needs of the step at smaller batch sizes. What does not fit with fewer samples is not asked for.
        """
        batch, total = point.batch_size, self.limits.global_batch
        model, edit = point.settings.model, point.settings.edit
        if total is not None and total % batch:
            self.lost["batch does not divide the global batch"] += 1
            return False
        try:
            gpu = self.models.gpu(point)
            if edit:
                self.once((model, edit), lambda: graph_of(model, batch, edit).memory_bytes)  # does it match operators?
            room = min(gpu.memory_bytes, self.limits.memory_bytes or gpu.memory_bytes)
            need = max(known.values(), default=0)
            if need <= room:
                need = known[batch] = memory_of(model, batch)
        except SteptimeError as error:
            self.lost[f"no prediction: {error}"] += 1
            return False
        if need > room:
            self.lost["does not fit"] += 1
            batch = max(known, default=batch, key=known.__getitem__)
            text = f"{point.gpu} batch_size={batch} needs {gibibytes(need)} of {gibibytes(room)}"
            self.nearest = min((need / room, text), self.nearest or (np.inf, ""))
            return False
        if per_us.get(point.gpu) is None and (self.objective.of_cost or self.limits.budget is not None):
            self.lost["no price"] += 1
            return False
        return True

    def _bound(
        self, step: StepBounds, points: Sequence[Point], per_us: Mapping[str, float], before: int, count: int
    ) -> None:
        """Bounds of the first stage; `before` points were looked at before those of this step, which are `count`."""
        gpus: dict[object, list[Point]] = {}
        for point in points:
            gpus.setdefault(point.settings.gpu, []).append(point)
        specs = [self.models.gpu(own[0]) for own in gpus.values()]
        step.map_calls(specs, lambda share: self.told(BOUNDING, before + int(share * count)))
        total = self.limits.global_batch
        for gpu, own in zip(specs, gpus.values(), strict=True):
            sizes = sorted({point.batch_size for point in own})
            found, failed = step.roofline(gpu, sizes)
            bounds = dict(zip(sizes, found.tolist(), strict=True))
            for point in own:
                if point.batch_size in failed:
                    self.lost[f"no prediction: {failed[point.batch_size]}"] += 1
                    continue
                batches = 1 if total is None else total // point.batch_size
                whole, part = bounds[point.batch_size]
                price = per_us.get(point.gpu, np.inf)
                self.open.append(_Open(point, step, batches, price, whole + (batches - 1) * part))
        step.forget_tables()

    def run(self, prune: bool) -> None:
        """Predict points, those with the lowest bounds first, until each of the others is ruled out."""
        bound_us = np.array([each.bound_us for each in self.open])
        samples = np.array([each.samples for each in self.open], dtype=float)
        price = np.array([each.price for each in self.open])
        stages = np.full(len(self.open), ROOFLINE)
        left = np.ones(len(self.open), dtype=bool)
        while True:
            lowered = self._costs(bound_us * self.ratios[stages], samples, price)
            rows = np.flatnonzero(left)
            if prune:  # what is ruled out stays: a lower ratio may bring it back
                rows = rows[self._may_win(lowered[rows])]
            self.told(SEARCHING, len(self.open) - len(rows))
            if not len(rows):
                break
            rows = rows[np.argsort(self._key(lowered[rows]), kind="stable")]
            chunk, rough = rows[:POINTS_AT_ONCE], rows[stages[rows] == ROOFLINE][:REFINED_AT_ONCE]
            if prune and len(rows) > POINTS_AT_ONCE and (stages[chunk] == ROOFLINE).any():
                found = self._refined([self.open[row] for row in rough])
                self._lower(ROOFLINE, found, bound_us[rough])
                bound_us[rough], stages[rough] = found, MODELS
                continue
            found = self._predict([self.open[row] for row in chunk])
            for stage in (ROOFLINE, MODELS):
                self._lower(stage, found[stages[chunk] == stage], bound_us[chunk][stages[chunk] == stage])
            left[chunk] = False
        self._tell_why(lowered[left])

    def _lower(self, stage: int, found: Floats, bounds: Floats) -> None:
        """Lower the bounds of a stage to the least ratio of later times to them; times without a prediction are NaN."""
        known = (found > 0) & (bounds > 0)
        self.ratios[stage] = min(self.ratios[stage], (found[known] / bounds[known]).min(initial=np.inf))

    def _costs(self, us: Floats, samples: Floats, price: Floats) -> Floats:
        """Time and cost of the objective, and time per sample, for times of one update, shape (points, 3)."""
        time = us if self.objective is Objective.step else us / samples
        return np.stack([time, time * price, us / samples], axis=-1)

    def _may_win(self, bounds: Floats) -> Flags:
        """Whether points may be on the front or among the best; `bounds` are `_costs` of their bounds."""
        beaten = np.zeros(len(bounds), dtype=bool)
        for each in front_of(self.choices):
            beaten |= (bounds[:, 0] >= each.time) & (bounds[:, 1] >= each.cost)
        best = sorted(self.value(each) for each in self.choices if self.excess(each) is None)
        enough = best[CONTENDERS - 1] if len(best) >= CONTENDERS else np.inf
        late, dear = self._excess(bounds)
        return ~beaten | ((self._key(bounds) < enough) & (late <= 1) & (dear <= 1))

    def _excess(self, costs: Floats) -> tuple[Floats, Floats]:
        """Ratios of `_costs` to the deadline and to the budget; 0 without a constraint."""
        samples, none = self.limits.samples or 0, np.zeros(len(costs))
        with np.errstate(invalid="ignore"):
            price = np.where(np.isfinite(costs[:, 1]), costs[:, 1] / costs[:, 0], 0.0)
        epoch_us = samples * costs[:, 2]
        late = none if self.limits.deadline_s is None else epoch_us / 1e6 / self.limits.deadline_s
        dear = none if self.limits.budget is None else epoch_us * price / self.limits.budget
        return late, dear

    def _tell_why(self, bounds: Floats) -> None:
        """Why points that were ruled out lost: their bounds are already worse than the best, or break a constraint."""
        late, dear = self._excess(bounds)
        reasons = np.where(late > 1, LATE, np.where(dear > 1, DEAR, WORSE[self.objective.of_cost]))
        self.lost.update(map(str, reasons))

    def _refined(self, points: Sequence[_Open]) -> Floats:
        """Bounds of the second stage, µs, shape (points,)."""
        found = np.zeros(len(points))
        groups: dict[object, list[int]] = {}
        for place, each in enumerate(points):
            groups.setdefault(device_key(each.point), []).append(place)
        load_if_it_pays(len(self.open) * ROWS_OF_STEP)
        for places in groups.values():
            self._refine_device(points, places, found)
        return found

    def _refine_device(self, points: Sequence[_Open], places: Sequence[int], found: Floats) -> None:
        """Bounds of points that have the same kernel models, written to their places in `found`."""
        gpu, kernels = self.models.gpu(points[places[0]].point), self.models.kernels(points[places[0]].point)
        steps: dict[int, list[int]] = {}
        for place in places:
            steps.setdefault(id(points[place].step), []).append(place)
        lines = []
        for own in steps.values():
            sizes = sorted({points[place].point.batch_size for place in own})
            lines += [(each, own, sizes) for each in points[own[0]].step.shared_calls(gpu, sizes)]
        for (shared, own, sizes), times in zip(lines, modelled_us(kernels, [each for each, *_ in lines]), strict=True):
            here = {sizes[place]: row for row, place in enumerate(shared.places)}
            programs: dict[int, list[Program]] = {}
            known: dict[object, Floats] = {}
            for place in own:
                point = points[place].point
                if point.batch_size not in here:
                    continue
                overheads, predict = self.models.overheads(point), point.settings.predict
                key = id(overheads), predict.cuda_graph, predict.critical_path
                if id(overheads) not in programs:
                    programs[id(overheads)] = shared.programs(overheads)
                if key not in known:
                    known[key] = shared.bounds_us(times, programs[id(overheads)], predict)
                whole, part = known[key][here[point.batch_size]]
                found[place] = whole + (points[place].batches - 1) * part

    def _predict(self, chunk: Sequence[_Open]) -> Floats:
        """Predict points. Times of one update in µs, shape (points,); NaN where there is no prediction."""
        quick = [_with_draws(each.point, SEARCH_DRAWS) for each in chunk]
        parts = [_accumulating(point) for each, point in zip(chunk, quick, strict=True) if each.batches > 1]
        answers = in_order([*quick, *parts], self.predicting([*quick, *parts], False))
        updates, accumulated = answers[: len(chunk)], iter(answers[len(chunk) :])
        found = np.full(len(chunk), np.nan)
        for place, (each, answer) in enumerate(zip(chunk, updates, strict=True)):
            part = next(accumulated) if each.batches > 1 else None
            if answer.prediction is None or (part is not None and part.prediction is None):
                self.lost[f"no prediction: {answer.reason or (part.reason if part else '')}"] += 1
                continue
            us = answer.prediction.predicted_us
            us += (each.batches - 1) * part.prediction.predicted_us if part and part.prediction else 0.0
            found[place] = us
            per_sample = us / each.samples
            time = us if self.objective is Objective.step else per_sample
            cost = per_sample * each.price if np.isfinite(each.price) else None
            self.choices.append(
                Choice(each.point, answer.prediction, each.batches, per_sample, cost, time, time * each.price)
            )
        return found

    def _key(self, costs: Floats) -> Floats:
        return np.asarray(costs[:, 1 if self.objective.of_cost else 0])

    def value(self, choice: Choice) -> float:
        """What the objective makes small."""
        return choice.cost if self.objective.of_cost else choice.time

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
        cost = values["cost_per_epoch"]
        has = duration(values["time_per_epoch_s"]) if name == "--deadline" else f"{amount(cost)} {self.currency}"
        where = " ".join((choice.point.gpu, f"batch_size={choice.point.batch_size}", *choice.point.overrides))
        return f"no point meets {name}; the nearest is {where} with {has} an epoch, {rate(ratio)} times as much"

    def why(self, choice: Choice, best: Choice) -> str:
        """Why a predicted point lost to the best."""
        if broken := self.excess(choice):
            return LATE if broken[1] == "--deadline" else DEAR
        if self.objective.of_cost and choice.time <= best.time:
            return "faster, but too dear"
        if choice.prediction.bound == "host" and best.prediction.bound == "device":
            return "host-bound"
        return WORSE[self.objective.of_cost]

    def contenders(self, ranked: Sequence[Choice]) -> list[Choice]:
        """The first points with the share of draws in which each is the best; one point has no rival."""
        ranked = ranked[:CONTENDERS]
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


def _with_draws(point: Point, draws: int) -> Point:
    return replace(point, settings=replace(point.settings, predict=replace(point.settings.predict, draws=draws)))


def _reseeded(point: Point, more: int) -> Point:
    predict = point.settings.predict
    return replace(point, settings=replace(point.settings, predict=replace(predict, seed=predict.seed + more)))


def _accumulating(point: Point) -> Point:
    """The point's step without an update of the weights."""
    model = FrozenDict({**point.settings.model, "optimizer": "none"})
    return replace(point, settings=replace(point.settings, model=model))
