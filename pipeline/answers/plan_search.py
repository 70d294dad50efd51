"""The search of a plan: points are ruled out by bounds, and what is left is predicted, best first.

1. Points that do not fit, have no price, or do not divide the global batch are ruled out.
2. Each point gets a lower bound of its time (`plan_bounds`).
3. Points with the lowest bounds are predicted, `POINTS_AT_ONCE` at a time. A predicted point bounds the same step at other
   batch sizes: with more samples it takes no less time, and with fewer no less time per sample (but for `MONOTONE`).

A point is ruled out if both of these hold. A predicted point is at least as fast and as cheap as its bound. `CONTENDERS`
predicted points that meet the constraints are better than its bound. The front and the best points are therefore those of
the whole space. If a prediction is below its bound, all bounds are lowered by this ratio, and points that were ruled out may
come back.

Several GPUs: `StepBounds` is the bound of one GPU's share of a step, because collectives may be hidden behind it.
`_Open.samples` counts the samples of all GPUs, and `_Open.price` the price of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipeline.answers.engine import Answer, Engine, in_order
from pipeline.answers.plan_bounds import StepBounds
from pipeline.answers.plan_results import Choice, Limits, Objective, front_of
from pipeline.answers.ties import lacks, middle_alone, reseeded, shares_of_wins
from pipeline.errors import InputError, SteptimeError
from pipeline.hardware.spec import GpuSpec
from pipeline.prices import price_notes, prices_of
from pipeline.question.question import Question
from pipeline.question.settings import EditSettings, FrozenDict
from pipeline.readable import amount, duration, gibibytes, rate

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Predict = Callable[[Sequence[Question], bool], Iterable[Answer]]
Told = Callable[[str, int], object]

POINTS_AT_ONCE = 128
"""Points that are predicted before the bounds of the others are compared again: enough to share tables of kernels."""

MONOTONE = 0.9
"""Share of a predicted time that the same step takes at least with more samples, and share of a predicted time per sample with
fewer: another batch may run other kernels. See docs/codesign.md for how often it holds."""

CONTENDERS = 12
"""Number of points, best first, among which the draws decide how often the winner wins."""

OVER_DEADLINE, OVER_BUDGET, SLOWER, DEARER = (
    "over the deadline",
    "over the budget",
    "slower",
    "too dear",
)
"""Why points lose."""

BOUNDING, SEARCHING = "bounding", "searching"
"""Stages of a search, as the progress line names them."""


@dataclass(frozen=True)
class _Open:
    """A question that is not predicted yet."""

    question: Question
    batches: int
    price: float
    """Price of all GPUs per µs; infinite without one."""
    bound_us: float
    """Lower bound of the time of one update."""

    @property
    def samples(self) -> int:
        """Samples of one update, of all GPUs."""
        return self.question.batch_size * self.batches * self.question.devices


@dataclass
class Search:
    """A search for an objective under constraints; `look_at` and `run` fill `choices` and `lost`."""

    objective: Objective
    limits: Limits
    predicting: Predict
    engine: Engine
    told: Told = lambda _stage, _points: None
    lost: Counter[str] = field(default_factory=Counter)
    open: list[_Open] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    currency: str = ""
    notes: tuple[str, ...] = ()
    nearest: tuple[float, str] | None = None
    """Least memory need over the room for it, among the points that do not fit, and the message about it."""
    ratio: float = 0.8
    """The smallest ratio of a predicted time to its bound; at first a guess, because a few steps are a sixth below theirs."""

    def look_at(self, questions: Sequence[Question]) -> None:
        """Rule out what does not fit or has no price, and compute bounds of the rest, step by step."""
        prices = prices_of(list(dict.fromkeys(question.gpu.name for question in questions)))
        per_us = {
            gpu: price / 3600e6
            for gpu, price in zip(prices["gpu"], prices["price_per_hour"], strict=True)
        }
        self.notes = tuple(price_notes(prices, [question.gpu.name for question in questions]))
        self.currency = "" if prices.empty else str(prices["currency"].iloc[0])
        if not per_us and (self.objective.of_cost or self.limits.budget is not None):
            raise InputError(f"{self.objective}: none of these GPUs has a price (docs/prices.md)")
        steps: dict[tuple[FrozenDict, EditSettings], list[Question]] = {}
        for question in questions:
            if question.local:
                raise InputError("plan predicts points: name GPUs instead of gpu=local")
            steps.setdefault((question.workload, question.edit), []).append(question)
        looked_at = 0
        for same_step in steps.values():
            needs: dict[tuple[str, int], int] = {}
            ascending = sorted(same_step, key=lambda question: question.batch_size)
            possible = [
                question for question in ascending if self._possible(question, per_us, needs)
            ]
            if possible:
                self._bound(possible, per_us, looked_at, len(same_step))
            looked_at += len(same_step)
            self.told(BOUNDING, looked_at)

    def _possible(
        self, question: Question, per_us: Mapping[str, float], needs: dict[tuple[str, int], int]
    ) -> bool:
        """Whether a question divides the global batch, can be made, fits, and has a price if it needs one.

        `needs` holds memory needs of the step by GPU and batch size. What does not fit with fewer samples is not asked for.
        """
        gpu, batch, total = question.gpu, question.batch_size, self.limits.global_batch
        if total is not None and total % (batch * question.devices):
            self.lost["batch does not divide the global batch"] += 1
            return False
        room = min(gpu.usable_memory_bytes, self.limits.memory_bytes or gpu.usable_memory_bytes)
        need, smaller = max(
            ((need, size) for (name, size), need in needs.items() if name == gpu.name),
            default=(0, 0),
        )
        if need <= room:
            try:
                if question.edit and not needs:
                    self.engine.steps.graph(question)  # refuses edits that match no operator
                need, smaller = self.engine.steps.memory_bytes(question), batch
                needs[gpu.name, batch] = need
            except SteptimeError as error:
                self.lost[f"no prediction: {error}"] += 1
                return False
        if need > room:
            self.lost["does not fit"] += 1
            text = f"{gpu.name} batch_size={smaller} needs {gibibytes(need)} of {gibibytes(room)}"
            self.nearest = min((need / room, text), self.nearest or (np.inf, ""))
            return False
        if per_us.get(question.gpu.name) is None and (
            self.objective.of_cost or self.limits.budget is not None
        ):
            self.lost["no price"] += 1
            return False
        return True

    def _bound(
        self, questions: Sequence[Question], per_us: Mapping[str, float], looked_at: int, count: int
    ) -> None:
        """Bounds of one step's questions; `looked_at` others came before those of this step, which are `count`."""
        devices: dict[object, list[Question]] = {}
        for question in questions:
            key = question.gpu, question.host, question.overheads, question.predict.cuda_graph
            devices.setdefault(key, []).append(question)
        step = StepBounds(self.engine, sorted({question.batch_size for question in questions}))
        firsts = [same_device[0] for same_device in devices.values()]
        step.map_calls(firsts, lambda share: self.told(BOUNDING, looked_at + int(share * count)))
        total = self.limits.global_batch
        for same_device in devices.values():
            bounds = step.bounds_us(
                same_device[0], [question.batch_size for question in same_device]
            )
            for question, (whole_us, part_us) in zip(same_device, bounds.tolist(), strict=True):
                batches = 1 if total is None else total // (question.batch_size * question.devices)
                price = per_us.get(question.gpu.name, np.inf) * question.devices
                self.open.append(
                    _Open(question, batches, price, whole_us + (batches - 1) * part_us)
                )

    def run(self, prune: bool) -> None:
        """Predict points, those with the lowest bounds first, until each of the others is ruled out."""
        bound_us = np.array([point.bound_us for point in self.open])
        samples = np.array([point.samples for point in self.open], dtype=float)
        price = np.array([point.price for point in self.open])
        series = _series(self.open)
        series_us, unpredicted = np.zeros(len(self.open)), np.ones(len(self.open), dtype=bool)
        while True:
            costs = self._costs(
                np.maximum(bound_us * self.ratio, series_us * MONOTONE), samples, price
            )
            rows = np.flatnonzero(unpredicted)
            if prune:  # what is ruled out stays open: a lower ratio may bring it back
                rows = rows[self._may_win(costs[rows])]
            self.told(SEARCHING, len(self.open) - len(rows))
            if not len(rows):
                break
            ranked = rows[np.argsort(self._key(costs[rows]), kind="stable")]
            if prune:  # one of each series: it also bounds the others
                ranked = ranked[np.sort(np.unique(series[ranked], return_index=True)[1])]
            chunk = ranked[:POINTS_AT_ONCE]
            predicted_us = self._predict([self.open[row] for row in chunk])
            comparable = (predicted_us > 0) & (bound_us[chunk] > 0)  # NaN without a prediction
            self.ratio = min(
                self.ratio, (predicted_us / bound_us[chunk])[comparable].min(initial=np.inf)
            )
            unpredicted[chunk] = False
            for row, us in zip(chunk[comparable], predicted_us[comparable], strict=True):
                # a predicted point bounds the others of its series
                same = np.flatnonzero(series == series[row])
                series_us[same] = np.maximum(
                    series_us[same], us * np.minimum(samples[same] / samples[row], 1.0)
                )
        self._tell_why(costs[unpredicted])

    def _costs(self, us: Floats, samples: Floats, price: Floats) -> Floats:
        """Time and cost of the objective, and time per sample, for times of one update, shape (points, 3)."""
        time = us if self.objective is Objective.step else us / samples
        return np.stack([time, time * price, us / samples], axis=-1)

    def _may_win(self, bounds: Floats) -> Flags:
        """Whether points may be on the front or among the best; `bounds` are `_costs` of their bounds."""
        beaten = np.zeros(len(bounds), dtype=bool)
        for choice in front_of(self.choices):
            beaten |= (bounds[:, 0] >= choice.time) & (bounds[:, 1] >= choice.cost)
        best = sorted(self.value(choice) for choice in self.choices if self.excess(choice) is None)
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
        reasons = np.where(late > 1, OVER_DEADLINE, np.where(dear > 1, OVER_BUDGET, self._worse))
        self.lost.update(map(str, reasons))

    def _predict(self, chunk: Sequence[_Open]) -> Floats:
        """Predict points. Times of one update in µs, shape (points,); NaN where there is no prediction."""
        quick = [middle_alone(point.question) for point in chunk]  # the best points get all draws
        parts = [
            _accumulating(question)
            for point, question in zip(chunk, quick, strict=True)
            if point.batches > 1
        ]
        answers = in_order([*quick, *parts], self.predicting([*quick, *parts], False))
        updates, accumulated = answers[: len(chunk)], iter(answers[len(chunk) :])
        update_us = np.full(len(chunk), np.nan)
        for row, (point, answer) in enumerate(zip(chunk, updates, strict=True)):
            part = next(accumulated) if point.batches > 1 else None
            if answer.prediction is None or (part is not None and part.prediction is None):
                self.lost[f"no prediction: {answer.reason or (part.reason if part else '')}"] += 1
                continue
            us = answer.prediction.predicted_us
            us += (
                (point.batches - 1) * part.prediction.predicted_us
                if part and part.prediction
                else 0.0
            )
            update_us[row] = us
            per_sample = us / point.samples
            time = us if self.objective is Objective.step else per_sample
            cost = per_sample * point.price if np.isfinite(point.price) else None
            prediction = answer.prediction
            self.choices.append(
                Choice(
                    point.question,
                    prediction,
                    point.batches,
                    per_sample,
                    cost,
                    time,
                    time * point.price,
                )
            )
        return update_us

    @property
    def _worse(self) -> str:
        """Why a point lost that breaks no constraint."""
        return DEARER if self.objective.of_cost else SLOWER

    def _key(self, costs: Floats) -> Floats:
        return np.asarray(costs[:, 1 if self.objective.of_cost else 0])

    def value(self, choice: Choice) -> float:
        """What the objective makes small."""
        return choice.cost if self.objective.of_cost else choice.time

    def excess(self, choice: Choice) -> tuple[float, str] | None:
        """Ratio to the constraint that a point breaks most, and its name; None if it meets all."""
        samples, ratios = self.limits.samples or 0, []
        if self.limits.deadline_s is not None:
            ratios.append(
                (samples * choice.us_per_sample / 1e6 / self.limits.deadline_s, "--deadline")
            )
        if self.limits.budget is not None and choice.cost_per_sample is not None:
            ratios.append((samples * choice.cost_per_sample / self.limits.budget, "--budget"))
        worst = max(ratios, default=(0.0, ""))
        return worst if worst[0] > 1 else None

    def nothing(self) -> str:
        """Why no point is left, with the nearest."""
        if not self.choices:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in self.lost.most_common(3))
            near = f"; the nearest: {self.nearest[1]}" if self.nearest else ""
            return f"no point is left: {reasons}{near}"
        (ratio, name), choice = min(
            ((self.excess(choice) or (1.0, ""), choice) for choice in self.choices),
            key=lambda pair: pair[0][0],
        )
        values = choice.as_dict(self.limits.samples)
        cost = values["cost_per_epoch"]
        has = (
            duration(values["time_per_epoch_s"])
            if name == "--deadline"
            else f"{amount(cost)} {self.currency}"
        )
        where = " ".join(
            (
                choice.question.gpu.name,
                f"batch_size={choice.question.batch_size}",
                *choice.question.overrides,
            )
        )
        return (
            f"no point meets {name}; the nearest is {where} with {has} an epoch, {rate(ratio)}"
            " times as much"
        )

    def why(self, choice: Choice, best: Choice) -> str:
        """Why a predicted point lost to the best."""
        if broken := self.excess(choice):
            return OVER_DEADLINE if broken[1] == "--deadline" else OVER_BUDGET
        if self.objective.of_cost and choice.time <= best.time:
            return "faster, but too dear"
        if choice.prediction.bound == "host" and best.prediction.bound == "device":
            return "host-bound"
        return self._worse

    def contenders(self, ranked: Sequence[Choice]) -> list[Choice]:
        """The first points with the share of draws in which each is the best; one point has no rival."""
        ranked = ranked[:CONTENDERS]
        gpus: list[GpuSpec] = list(dict.fromkeys(choice.question.gpu for choice in ranked))
        seeded = [reseeded(choice.question, gpus.index(choice.question.gpu)) for choice in ranked]
        parts = [
            _accumulating(question) if choice.batches > 1 else None
            for choice, question in zip(ranked, seeded, strict=True)
        ]
        asked = [*seeded, *(part for part in parts if part is not None)]
        predictions = {
            answer.question: answer.prediction for answer in self.predicting(asked, True)
        }
        drawn, shown = [], []
        for choice, question, part in zip(ranked, seeded, parts, strict=True):
            prediction = predictions[question]
            assert prediction is not None and prediction.draws_us is not None
            us, accumulated = prediction.draws_us, None if part is None else predictions[part]
            if accumulated is not None and accumulated.draws_us is not None:
                us = us + (choice.batches - 1) * accumulated.draws_us
            update_us = (
                choice.us_per_sample
                * choice.question.batch_size
                * choice.question.devices
                * choice.batches
            )
            drawn.append(us * self.value(choice) / update_us)
            shown.append(replace(prediction, draws_us=None))
        best = np.array(drawn) == np.min(drawn, axis=0)
        wins = np.mean(best / best.sum(axis=0), axis=1).tolist()  # equal points share a win
        several = len(ranked) > 1
        return [
            replace(
                choice,
                prediction=new,
                wins=won if several else None,
                beats_first=max(beats, 0.5 * lacks(shown[0], new)) if several else None,
            )
            for choice, new, won, beats in zip(
                ranked, shown, wins, shares_of_wins(drawn), strict=True
            )
        ]


def _series(points: Sequence[_Open]) -> npt.NDArray[np.int64]:
    """A number for each point that points share if they differ in their batch size alone, shape (points,)."""
    numbers: dict[object, int] = {}
    keys = (
        (
            replace(point.question, batch_size=0),
            point.batches > 1,
            point.question.batch_size * (point.batches > 1),
        )
        for point in points
    )
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _accumulating(question: Question) -> Question:
    """The question's step without an update of the weights, and without exchange between GPUs (`no_sync`)."""
    question = question.alone() if question.ranks else question
    return replace(question, workload=FrozenDict({**question.workload, "optimizer": "none"}))
