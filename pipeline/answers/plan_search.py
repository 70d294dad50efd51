"""The search of a plan: all points that fit are predicted, and the best get intervals.

1. Points that do not divide the global batch, do not fit, or have no price are ruled out.
2. The others are predicted without draws of their errors, which takes a fraction of the time.
3. The best `CONTENDERS` and the front of time against cost (or energy) are predicted again with draws. These say how often each
   contender is the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from pipeline.answers.engine import Engine, in_order
from pipeline.answers.fitting_layouts import least_devices
from pipeline.answers.plan_results import Choice, Limits, Objective
from pipeline.answers.step_errors import keyed_normals
from pipeline.answers.ties import Tie, tie_of, unchecked_limits
from pipeline.arrays import Array, Flags
from pipeline.errors import InputError, SteptimeError
from pipeline.prediction import Prediction
from pipeline.prices import no_price, one_currency, price_notes, price_of
from pipeline.question.question import Question
from pipeline.question.settings import FrozenDict
from pipeline.readable import amount, distinct, duration, gibibytes, rate

OnProgress = Callable[[str, int], object]

CONTENDERS = 12
"""Number of points, best first, among which the draws decide how often the winner wins."""

BROKEN = {
    "--deadline": "over the deadline",
    "--budget": "over the budget",
    "--max-watts": "over the watts",
}
"""Constraints, and why points lose that break one."""

SURE = 0.8
"""Share of draws in which a point must meet a deadline or a budget, so that it is a contender."""

MARGINS = (1.0, 0.85, 0.7)
"""Largest shares of a deadline or a budget that points are looked for below: those just below it may miss it."""

CHECKING, PREDICTING = "checking the memory of", "predicting"
"""Stages of a search, as the progress line names them."""


@dataclass(frozen=True)
class Space:
    """The predicted points of a plan, a row each.

    Attributes:
        questions: what was asked.
        samples: samples of one update, of all GPUs.
        update_us: predicted time of one update, µs.
        cost: cost of one update; infinite without a price.
        joules: energy of one update, of all GPUs; NaN where nothing asks for it.
        host_bound: whether the host limits the step.
    """

    questions: Sequence[Question]
    samples: Array
    update_us: Array
    cost: Array
    joules: Array
    host_bound: Flags

    def time_and_spent(self, objective: Objective) -> tuple[Array, Array]:
        """Time of what is compared, µs, and its cost, or joules for an objective of energy; shape (points,)."""
        spent = self.joules if objective.of_energy else self.cost
        work = 1.0 if objective is Objective.step else self.samples
        return self.update_us / work, spent / work


@dataclass
class Search:
    """A search for an objective under constraints.

    Attributes:
        lost: number of points that lost, by reason.
        predicted: number of points that were predicted.
        currency: of the prices; empty without one.
        prices: whose prices these are, a line each.
        nearest: least memory need over the room for it, among the points that do not fit, and the message about it.
        unfit: a decoder on several GPUs that does not fit.
    """

    objective: Objective
    limits: Limits
    engine: Engine
    on_progress: OnProgress = lambda _stage, _points: None
    lost: Counter[str] = field(default_factory=Counter)
    predicted: int = 0
    currency: str = ""
    prices: tuple[str, ...] = ()
    nearest: tuple[float, str] | None = None
    unfit: Question | None = None

    def run(self, questions: Sequence[Question]) -> tuple[list[Choice], list[Choice], Tie | None]:
        """The contenders, best first, the front of time against cost, fastest first, and the tie of the best, if any.

        Raises:
            InputError: no point can be predicted, or none meets the constraints.
        """
        if any(question.local for question in questions):
            raise InputError("plan predicts points: name GPUs instead of gpu=local")
        names = [question.gpu.name for question in questions]
        asked = {question.gpu.name: question.own_price for question in questions}
        found = {gpu: price_of(gpu, own) for gpu, own in asked.items()}
        prices = {gpu: price for gpu, price in found.items() if price}
        self.prices = tuple(price_notes(prices, names, questions[0].electricity))
        self.currency = one_currency(prices.values())
        hourly = {gpu: price.per_hour for gpu, price in prices.items()}
        if not hourly and self._needs_price:
            raise InputError(f"{self.objective}: {no_price(distinct(names))}")
        space = self._predict(list(self._possible(questions, hourly)), hourly)
        excess = self._excess(space)
        feasible = np.flatnonzero((excess <= 1).all(axis=0))
        if not len(feasible):
            raise InputError(self._nothing(space, excess))
        time, cost = space.time_and_spent(self.objective)
        value = cost if self.objective.of_cost or self.objective.of_energy else time
        ranked = feasible[np.argsort(value[feasible], kind="stable")]
        front = ranked[np.lexsort((cost[ranked], time[ranked]))]
        cheaper = np.append(np.inf, np.minimum.accumulate(cost[front])[:-1]) > cost[front]
        cheaper[:1] = True
        limited = excess[:2].max(axis=0)[ranked]
        near = [ranked[limited <= margin][:CONTENDERS].tolist() for margin in MARGINS]
        rows = distinct(chain.from_iterable(near))
        best = self._best(space, excess, value, rows, front[cheaper].tolist())
        self._count_losers(space, excess, time, space.questions.index(best[0][0].question))
        return best

    @property
    def _needs_energy(self) -> bool:
        return self.objective.of_energy or self.limits.max_watts is not None

    @property
    def _needs_price(self) -> bool:
        return self.objective.of_cost or self.limits.budget is not None

    def _possible(
        self, questions: Sequence[Question], hourly: Mapping[str, float]
    ) -> Iterable[Question]:
        """Questions that divide the global batch, can be made, fit, and have a price if they need one.

        A batch size is not asked for where a smaller one of the same step does not fit.
        """
        needs: dict[object, tuple[int, int]] = {}
        ascending = sorted(questions, key=lambda question: question.batch_size)
        for done, question in enumerate(ascending):
            self.on_progress(CHECKING, done)
            total = self.limits.global_batch
            if total is not None and not _divides(question, total):
                self.lost["batch does not divide the global batch"] += 1
                continue
            gpu = question.gpu
            most = np.inf if self.limits.memory_gib is None else self.limits.memory_gib * 2**30
            room = min(gpu.usable_memory_bytes, most)
            step = gpu, question.workload, question.edit, question.ranks
            need, batch = needs.get(step, (0, 0))
            if need <= room and batch != question.batch_size:
                try:
                    if question.edit and step not in needs:
                        self.engine.steps.graph(question)  # refuses edits that match no operator
                    need, batch = self.engine.steps.memory_bytes(question), question.batch_size
                except SteptimeError as error:
                    self.lost[f"no prediction: {error}"] += 1
                    continue
                needs[step] = need, batch
            if need > room:
                self.lost["does not fit"] += 1
                self.unfit = question if question.ranks and question.ranks.layers else self.unfit
                text = f"{gpu.name} batch_size={batch} needs {gibibytes(need)} of {gibibytes(room)}"
                self.nearest = min((need / room, text), self.nearest or (np.inf, ""))
            elif self._needs_price and gpu.name not in hourly:
                self.lost["no price"] += 1
            else:
                yield question

    def _steps(self, question: Question) -> list[tuple[Question, int]]:
        """The steps of an update, and how often each runs: one updates the weights, those before it accumulate gradients.

        These leave out the exchange between GPUs, too (`no_sync`).
        """
        total = self.limits.global_batch
        before = 0 if total is None else total // question.global_batch - 1
        if not before:
            return [(question, 1)]
        part = question.alone() if question.ranks else question
        without = FrozenDict({**question.workload, "optimizer": "none"})
        return [(question, 1), (replace(part, workload=without), before)]

    def _predict(self, questions: Iterable[Question], hourly: Mapping[str, float]) -> Space:
        """The points that can be predicted, without intervals."""
        updates = {question: self._steps(question) for question in questions}
        energy = self._needs_energy or any(question.electricity for question in updates)
        engine = replace(self.engine, energy=energy)
        found, failed = dict[Question, Array](), dict[Question, str]()
        host_bound = set[Question]()
        asked = dict.fromkeys(step for steps in updates.values() for step, _ in steps)
        for answer in engine.predict(asked, with_interval=False):
            if (p := answer.prediction) is None:
                failed[answer.question] = str(answer.reason)
                continue
            paid = p.electricity_per_hour / 3600e6 * p.predicted_us
            found[answer.question] = np.array([p.predicted_us, _joules(p), paid])
            host_bound |= {answer.question} if p.bound == "host" else set()
            self.on_progress(PREDICTING, len(found))
        points = []
        for question, steps in updates.items():
            if reasons := [failed[step] for step, _ in steps if step in failed]:
                self.lost[f"no prediction: {reasons[0]}"] += 1
                continue
            us, joules, paid = np.sum([count * found[step] for step, count in steps], axis=0)
            rent = us / 3600e6 * hourly.get(question.gpu.name, np.inf)
            spent = (rent + paid) * question.devices, joules * question.devices
            samples = float(question.global_batch * sum(count for _, count in steps))
            points.append((question, samples, us, *spent, question in host_bound))
        self.predicted = len(points)
        columns = [np.array(column) for column in zip(*points, strict=True)] or [np.zeros(0)] * 6
        return Space(columns[0].tolist(), *columns[1:])

    def _excess(self, space: Space) -> Array:
        """Ratios of points to the constraints of `BROKEN`, shape (constraints, points); 0 without a constraint."""
        most = self.limits.deadline_s, self.limits.budget, self.limits.max_watts
        pairs = zip(self._constrained(space), most, strict=True)
        return np.stack([value / limit if limit else 0 * space.samples for value, limit in pairs])

    def _constrained(self, space: Space) -> tuple[Array, Array, Array]:
        """Seconds and cost of an epoch, and mean watts of all GPUs, each of shape (points,)."""
        epochs = (self.limits.samples or 0) / space.samples
        watts = 1e6 * space.joules / space.update_us
        return epochs * space.update_us / 1e6, epochs * space.cost, watts

    def _count_losers(self, space: Space, excess: Array, time: Array, best: int) -> None:
        """Why points other than the best lost."""
        of = self.objective
        why = "too dear" if of.of_cost else "more energy" if of.of_energy else "slower"
        faster = (why != "slower") & (time <= time[best])
        waits = space.host_bound & ~space.host_bound[best]
        over = np.array(list(BROKEN.values()), object)[excess.argmax(axis=0)]
        reasons = np.select(
            [excess.max(axis=0) > 1, faster, waits], [over, f"faster, but {why}", "host-bound"], why
        )
        self.lost.update(np.delete(reasons, best).tolist())

    def _nothing(self, space: Space, excess: Array) -> str:
        """Why no point is left, with the nearest."""
        if not space.questions:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in self.lost.most_common(3))
            near = f"; the nearest: {self.nearest[1]}" if self.nearest else ""
            few = self.unfit and least_devices(self.unfit, self.engine.steps.memory_bytes)
            return (
                f"no point is left: {reasons}{near}{f'; the fewest that fit: {few}' if few else ''}"
            )
        row = int(np.argmin(excess.max(axis=0)))
        broken = int(excess[:, row].argmax())
        seconds, cost, watts = (float(values[row]) for values in self._constrained(space))
        money = f"{amount(cost)} {self.currency} an epoch" if np.isfinite(cost) else ""
        has = (f"{duration(seconds)} an epoch", money, f"{watts:,.0f} W")[broken]
        question = space.questions[row]
        where = [question.gpu.name, f"batch_size={question.batch_size}", *question.overrides]
        return (
            f"no point meets {list(BROKEN)[broken]}; the nearest is {' '.join(where)} with {has},"
            f" {rate(excess[broken, row])} times as much"
        )

    def _best(
        self, space: Space, excess: Array, value: Array, near: Sequence[int], front: Sequence[int]
    ) -> tuple[list[Choice], list[Choice], Tie | None]:
        """Contenders with the share of draws in which each is the best, the front, and the tie of the best.

        Under a deadline or a budget, contenders are those of the rows `near` that meet it in `SURE` of the draws, if any do.
        """
        rows = distinct([*near, *front])
        updates = {row: self._steps(space.questions[row]) for row in rows}
        asked = distinct(step for steps in updates.values() for step, _ in steps)
        answers = in_order(asked, self.engine.predict(asked))
        predictions = {answer.question: answer.whole() for answer in answers}
        choices, drawn = dict[int, Choice](), dict[int, Array]()
        for row, steps in updates.items():
            prediction = predictions[space.questions[row]]
            answered = [(predictions[step], count) for step, count in steps]
            us = np.sum([count * np.asarray(p.draws_us) for p, count in answered], axis=0)
            joules = sum(count * _joules(p) for p, count in answered)
            relative, error = us / space.update_us[row], self._energy_error(prediction, len(us))
            choices[row] = self._choice(space, row, prediction, joules, excess, relative)
            drawn[row] = relative * error * value[row]
        sure = [row for row in near if (choices[row].meets or 1.0) >= SURE]
        kept = sorted(sure or near, key=lambda row: float(value[row]))[:CONTENDERS]
        best = np.array([drawn[row] for row in kept])
        best = best == best.min(axis=0)
        wins = np.mean(best / best.sum(axis=0), axis=1).tolist()  # equal points share a win
        if len(kept) > 1:  # one point has no rival
            for row, won in zip(kept, wins, strict=True):
                choices[row] = replace(choices[row], wins=won)
        first = [choices[row] for row in kept]
        tie = tie_of([choice.prediction for choice in first], [drawn[row] for row in kept])
        if self.objective.of_energy:
            tie = unchecked_limits([choice.prediction for choice in first]) or tie
        return first, [choices[row] for row in front], tie

    def _choice(
        self, space: Space, row: int, p: Prediction, joules: float, excess: Array, relative: Array
    ) -> Choice:
        """A point with its prediction, the joules of an update on one GPU, and the share of draws within the limits."""
        time, spent = (float(of[row]) for of in space.time_and_spent(self.objective))
        samples, question = float(space.samples[row]), space.questions[row]
        cost = float(space.cost[row]) / samples
        limited = self.limits.deadline_s is not None or self.limits.budget is not None
        return Choice(
            question,
            p,
            int(samples) // question.global_batch,
            float(space.update_us[row]) / samples,
            cost if np.isfinite(cost) else None,
            joules * p.devices / samples,
            time,
            spent,
            meets=float(np.mean(excess[:2, row].max() * relative <= 1)) if limited else None,
        )

    def _energy_error(self, p: Prediction, draws: int) -> Array | float:
        """Factors on the energy of a step in each draw, shape (draws,), which all steps on its GPU share."""
        if p.power is None or not self.objective.of_energy:
            return 1.0
        (normals,) = keyed_normals([f"power of {p.gpu}"], draws, 0)
        return np.asarray(np.exp(p.power.log_sd * normals))


def _joules(p: Prediction) -> float:
    """Energy of a step on one GPU; NaN where it is not predicted."""
    return float("nan") if p.power is None else p.power.joules


def _divides(question: Question, total: int) -> bool:
    """Whether steps of a question make an update of `total` samples: one step where it has several passes, else one or more."""
    steps, left = divmod(total, question.global_batch)
    scheduled = question.ranks is not None and question.ranks.scheduled
    return not left and (steps == 1 or not scheduled)
