"""The one way from questions to answers: `Engine(models, steps).predict(questions)`.

The work that questions share is done once, for any number of them:

- Each step is captured and mapped once, whatever the number of GPUs.
- Kernel models and overhead statistics of a GPU are read once.
- The distinct calls of all questions about a GPU are predicted as one table.

Where steps and models come from is the caller's choice. Commands and Python take what is available (`StepStore`,
`AvailableModels`); a job of Snakemake takes the files that its rule declares (`step_files.StepFiles`, `DeclaredModels`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import on_slowest_card
from pipeline.answers.loading import within_loading
from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.model_sources import AvailableModels, Models, device_key
from pipeline.answers.role_step import RolesStep, predict_roles
from pipeline.answers.scheduled_step import Piece, ScheduledStep, exchanges, predict_scheduled
from pipeline.answers.step_errors import EFFICIENCY_SD, interval, keyed_normals
from pipeline.answers.step_power import (
    Stages,
    limited,
    stage_of_all,
    stages_of_roles,
    stages_of_schedule,
)
from pipeline.answers.step_prediction import (
    SimulatedStep,
    StepParts,
    calls_of_all,
    kernel_times,
    load_walk_if_it_pays,
    predict_step,
)
from pipeline.errors import SteptimeError
from pipeline.graph.step_store import StepStore
from pipeline.graph.table import Graph
from pipeline.hardware.hosts import load_host
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.simulate.assembly import assemble
from pipeline.simulate.chrome_trace import Event
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import as_asked
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.timeline_events import rank_events, stage_events

CALLS_AT_ONCE = 200_000
"""Device calls of the steps that are in memory at a time. A step of 2,500 calls takes 2 MB, so these take about
200 MB."""

Step = tuple[Question, list[StepParts]]
"""A question whose step is captured and mapped."""

STEPS = StepStore()
"""The steps that this process knows."""


@dataclass(frozen=True)
class Answer:
    """A question with its prediction, or with the error that it raised."""

    question: Question
    prediction: Prediction | None = None
    error: SteptimeError | None = None
    timeline: Timeline | None = None
    """The timeline of the prediction, where it was asked for."""
    calls: pd.DataFrame | None = None
    """The device calls that the timeline shows, as of `StepParts.shown_calls`."""
    other_rank: Sequence[Event] = ()
    """What is drawn beside the timeline: the stages of a pipeline, and the rank with least to do where ranks differ."""

    @property
    def reason(self) -> str | None:
        """Why there is no prediction, in one line; None where there is one."""
        return None if self.error is None else " ".join(str(self.error).split())

    @property
    def gpu(self) -> str:
        """Name of the GPU."""
        return self.question.gpu.name

    @property
    def model(self) -> str:
        """Name of the workload."""
        return self.question.model

    @property
    def batch_size(self) -> int:
        """Samples of the step on each GPU."""
        return self.question.batch_size

    @property
    def overrides(self) -> tuple[str, ...]:
        """The other overrides of the point."""
        return self.question.overrides

    def as_row(self) -> dict[str, Any]:
        """The keys of the prediction, or those of the question alone; and `unpredicted`, the reason, null where there is none."""
        names = {
            "gpu": self.gpu,
            "model": self.model,
            "variant": self.question.variant,
            "batch_size": self.batch_size,
        }
        values = {} if self.prediction is None else self.prediction.as_dict()
        return names | values | {"overrides": list(self.overrides), "unpredicted": self.reason}

    def whole(self) -> Prediction:
        """The prediction.

        Raises:
            SteptimeError: there is none.
        """
        if self.prediction is None:
            assert self.error is not None
            raise self.error
        return self.prediction


class Steps(Protocol):
    """Where graphs, device calls and memory needs come from."""

    def graph(self, question: Question) -> Graph:
        """The graph of a question's step."""

    def calls(self, question: Question) -> pd.DataFrame:
        """Device calls of a question's step on its GPU; the same object for GPUs that launch the same kernels."""

    def memory_bytes(self, question: Question, batch_size: int | None = None) -> int:
        """Memory need of a question's step, or of the same step at another batch size."""


@dataclass(frozen=True)
class Engine:
    """Answers questions from steps and models."""

    models: Models = field(default_factory=AvailableModels)
    steps: Steps = STEPS
    energy: bool = False
    """Whether predictions without an interval have their energy, too."""
    _alone: dict[Question, Prediction | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Steps of one GPU, with which steps of several are compared."""

    def predict(
        self,
        questions: Iterable[Question],
        detail: bool = False,
        measured_us: float | None = None,
        with_interval: bool = True,
    ) -> Iterator[Answer]:
        """Answer questions, step by step. Each gives one answer; an error concerns its own question only.

        Args:
            questions: of one grid or of several.
            detail: whether answers hold their timeline, and predictions their device calls (a row each).
            measured_us: a measured step to show beside the predictions; it does not change them.
            with_interval: as for `predict_step`: without, a prediction takes a fraction of the time.
        """
        same_steps: dict[object, list[Question]] = {}
        for question in questions:
            step = question.workload, question.batch_size, question.edit
            same_steps.setdefault(step, []).append(question)
        waiting: list[Step] = []
        rows = 0
        answers = partial(
            self._answers, detail=detail, measured_us=measured_us, with_interval=with_interval
        )
        for asked in same_steps.values():
            parts: dict[int, StepParts] = {}
            for question in asked:
                try:
                    if (measured := self.models.measured(question)) is not None:
                        yield Answer(question, measured)
                        continue
                    pieces = [self._parts(chunk, parts) for chunk in question.chunks]
                    waiting.append((question, pieces))
                except SteptimeError as error:
                    yield Answer(question, error=error)
            rows += sum(len(part.all_calls) for part in parts.values())
            if rows >= CALLS_AT_ONCE:
                yield from answers(waiting)
                waiting, rows = [], 0
        if waiting:
            yield from answers(waiting)

    def predict_one(self, question: Question, detail: bool = True) -> Answer:
        """Answer one question.

        Raises:
            SteptimeError: it cannot be answered.
        """
        (answer,) = self.predict([question], detail=detail)
        answer.whole()
        return answer

    def _parts(self, question: Question, parts: dict[int, StepParts]) -> StepParts:
        """Graph and calls of a question; `parts` holds those of the same step on other GPUs, by the `id` of the calls."""
        graph, calls = self.steps.graph(question), self.steps.calls(question)
        if id(calls) not in parts:
            parts[id(calls)] = StepParts.of(graph, calls)
        return parts[id(calls)]

    def _answers(
        self, steps: Sequence[Step], detail: bool, measured_us: float | None, with_interval: bool
    ) -> Iterator[Answer]:
        """Predict steps: kernel times GPU by GPU, then each step."""
        load_walk_if_it_pays(
            (piece, question.predict) for question, pieces in steps for piece in pieces
        )
        devices: dict[object, list[Step]] = {}
        for question, pieces in steps:
            devices.setdefault(device_key(question), []).append((question, pieces))
        distinct, rows = calls_of_all(piece for _, pieces in steps for piece in pieces)
        times: dict[object, dict[int, pd.DataFrame]] = {}
        for device, same_device in devices.items():
            with suppress(SteptimeError):  # raised again by the questions about this GPU
                kernels = self.models.kernels(same_device[0][0])
                of_device = {
                    id(piece): rows[id(piece)] for _, pieces in same_device for piece in pieces
                }
                times[device] = kernel_times(kernels, distinct, of_device)
        programs: dict[object, Program] = {}
        for question, pieces in steps:
            try:
                shared = times.get(device_key(question))
                own = [self._piece(question, piece, shared, programs) for piece in pieces]
                simulate = partial(self._simulated, question, measured_us)
                energy = with_interval or self.energy  # a search asks for times alone
                ran, simulated = limited(question, own, simulate, with_interval, energy)
                answer = Answer(question, simulated.prediction)
                if detail:
                    answer = self._detailed(question, ran, simulated)
                yield self._completed(answer)
            except SteptimeError as error:
                yield Answer(question, error=error)

    def _piece(
        self,
        question: Question,
        step: StepParts,
        shared: Mapping[int, pd.DataFrame] | None,
        programs: dict[object, Program],
    ) -> Piece:
        """A captured step with its times; `shared` are those that were predicted with other steps, by the `id` of the step."""
        kernels = self.models.kernels(question)
        us = kernels.predict_distinct(step.calls) if shared is None else shared[id(step)]
        if not question.local:
            us = on_slowest_card(us, step.calls, question.devices)
        return Piece(step, us, self._program(question, step, programs))

    def _simulated(
        self,
        question: Question,
        measured_us: float | None,
        pieces: Sequence[Piece],
        with_interval: bool,
    ) -> tuple[SimulatedStep, Stages]:
        """The step of one captured step, or of the pieces of a model, and its stages."""
        kernels = self.models.kernels(question)
        if question.ranks is not None and question.ranks.parallel.spreads:
            roles = RolesStep(question, pieces)
            simulated = predict_roles(roles, kernels.folders, with_interval)
            return simulated, partial(stages_of_roles, roles)
        if question.ranks is None or not question.ranks.scheduled:
            (own,) = pieces
            of_step = own.step, own.predicted, kernels.folders, own.program
            simulated = predict_step(question, *of_step, measured_us, with_interval)
            return simulated, partial(stage_of_all, own, simulated.prediction)
        sent = exchanges(question, [piece.step.memory.gradients for piece in pieces])
        sent_us = kernels.predict_distinct(sent) if len(sent) else pieces[0].predicted.iloc[:0]
        scheduled = ScheduledStep(question, pieces, sent, sent_us)
        simulated = predict_scheduled(scheduled, kernels.folders, with_interval)
        return simulated, partial(stages_of_schedule, scheduled)

    def _detailed(
        self, question: Question, pieces: Sequence[Piece], simulated: SimulatedStep
    ) -> Answer:
        """An answer with its timeline, and with the calls of the prediction."""
        piece, timeline = pieces[simulated.shown], simulated.timeline
        parts, other = piece.step, stage_events(simulated.prediction.stages)
        calls = parts.shown_calls(piece.predicted)
        if simulated.other is not None:
            number, of_other = simulated.other
            second = pieces[number]
            name = f"rank {question.roles[number]}"
            other += rank_events(of_other, second.step.shown_calls(second.predicted), name)
        prediction = replace(
            simulated.prediction,
            calls=timeline.to_frame(calls),
            parameters=parts.parameters,
            kept_bytes=parts.memory.kept,
            drawn=simulated.drawn,
            on_host=partial(self._on_host, question),
        )
        return Answer(question, prediction, None, timeline, calls, other)

    def _on_host(self, question: Question, name: str) -> Prediction | None:
        """The same step on another host; None where it cannot be answered."""
        with suppress(SteptimeError):
            asked = replace(question, host=load_host(name))
            return self.predict_one(asked).prediction
        return None

    def _completed(self, answer: Answer) -> Answer:
        """An answer with what fits in place of a step that does not, and the efficiency of several GPUs."""
        prediction, question = answer.whole(), answer.question
        if not prediction.fits:
            prediction = with_what_fits(prediction, question, self.steps.memory_bytes)
        prediction = within_loading(prediction, question.predict.loader)
        return replace(answer, prediction=self._with_efficiency(prediction, question))

    def _with_efficiency(self, prediction: Prediction, question: Question) -> Prediction:
        """A prediction of several GPUs with its throughput over that of as many single ones, if these compute in its dtype.

        The error of the machine (`EFFICIENCY_SD`) is that of several GPUs alone: it does not cancel.
        """
        several, ranks = prediction.several, question.ranks
        if several is None or several.dp != several.devices or several.micro_batches > 1:
            return prediction
        if ranks is not None and ranks.parallel.mixed_precision != "none":
            return prediction
        alone, draws_us = question.alone(), prediction.draws_us
        one = self._alone.get(alone)
        if alone not in self._alone or (one and one.draws_us is None and draws_us is not None):
            drawn = draws_us is not None
            (answer,) = replace(self, steps=STEPS).predict([alone], with_interval=drawn)
            one = self._alone[alone] = answer.prediction
        spreads = ranks is not None and ranks.parallel.spreads
        if one is None or (spreads and not one.fits):
            return prediction
        efficiency = one.predicted_us / prediction.predicted_us
        several = replace(several, efficiency=efficiency)
        if draws_us is not None and one.draws_us is not None:
            machines = keyed_normals(["machines"], len(draws_us), question.predict.seed)[0]
            ratio = one.draws_us / draws_us * np.exp(EFFICIENCY_SD * machines)
            low, high = interval(ratio, efficiency)
            several = replace(several, efficiency_p10=low, efficiency_p90=high)
        return replace(prediction, several=several)

    def _program(
        self, question: Question, parts: StepParts, programs: dict[object, Program]
    ) -> Program:
        """The step with host times, as asked; shared by GPUs with the same calls and the same host."""
        overheads = self.models.overheads(question)
        key = id(parts), id(overheads), question.step_name
        if key not in programs:
            programs[key] = assemble(
                parts.sequence, overheads, len(parts.which), workload=question.step_name
            )
        as_run = *key, question.predict
        if as_run not in programs:
            compiled = parts.computed.get("compiled", "")
            programs[as_run] = as_asked(programs[key], question.predict, compiled)
        return programs[as_run]


def engine(results: str | Path | None = "results") -> Engine:
    """An engine with the best models that there are now; `results` as for `AvailableModels`."""
    return Engine(AvailableModels(results))


def in_order(questions: Sequence[Question], answers: Iterable[Answer]) -> list[Answer]:
    """The answers in the order of the questions."""
    answer_of = {answer.question: answer for answer in answers}
    return [answer_of[question] for question in questions]


def each_once(
    predict: Callable[[Sequence[Question]], Iterable[Answer]],
) -> Callable[[Sequence[Question]], list[Answer]]:
    """Answers in the order of the questions; a question that comes again is not predicted again."""
    known: dict[Question, Answer] = {}

    def answers(questions: Sequence[Question]) -> list[Answer]:
        new = [question for question in questions if question not in known]
        known.update(zip(new, in_order(new, predict(new)), strict=True))
        return [known[question] for question in questions]

    return answers
