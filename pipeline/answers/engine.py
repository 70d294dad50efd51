"""The one way from questions to answers: `Engine(models, steps).predict(questions)`.

The work that questions share is done once, for any number of them:

- Each step is captured and mapped once, whatever the number of GPUs.
- Kernel models and overhead statistics of a GPU are read once.
- The distinct calls of all questions about a GPU are predicted as one table.

Where steps and models come from is the caller's choice. Commands and Python take what is available (`StepStore`,
`AvailableModels`); a job of Snakemake takes the files that its rule declares (`StepFiles`, `DeclaredModels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from pipeline.answers.memory_fit import with_what_fits
from pipeline.answers.model_sources import AvailableModels, Models, device_key
from pipeline.answers.scheduled_step import (
    Piece,
    ScheduledStep,
    exchanges,
    predict_scheduled,
)
from pipeline.answers.step_prediction import (
    SimulatedStep,
    StepParts,
    calls_of_all,
    kernel_times,
    load_walk_if_it_pays,
    on_slowest_card,
    predict_step,
)
from pipeline.errors import SteptimeError
from pipeline.graph.step_store import StepStore, between_ranks, read_graph
from pipeline.graph.table import Graph
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.schemas import read_table
from pipeline.simulate.program import Program, assemble
from pipeline.simulate.timeline import Timeline

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
class StepFiles:
    """The step of one question, from the files that a rule declares. Other batch sizes come from the process's steps."""

    graph_file: str
    calls_file: str

    def graph(self, question: Question) -> Graph:
        """The graph in the file."""
        return read_graph(self.graph_file)

    def calls(self, question: Question) -> pd.DataFrame:
        """The calls in the file, with collectives between the GPUs of the question."""
        return between_ranks(read_table(self.calls_file, "calls"), question)

    def memory_bytes(self, question: Question, batch_size: int | None = None) -> int:
        """As `StepStore.memory_bytes`."""
        return STEPS.memory_bytes(question, batch_size)


@dataclass(frozen=True)
class Engine:
    """Answers questions from steps and models."""

    models: Models = field(default_factory=AvailableModels)
    steps: Steps = STEPS
    _alone_us: dict[Question, float | None] = field(default_factory=dict, compare=False, repr=False)
    """Step times of one GPU, with which steps of several are compared."""

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
        self,
        steps: Sequence[Step],
        detail: bool,
        measured_us: float | None,
        with_interval: bool,
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
        programs: dict[tuple[int, int, str], Program] = {}
        for question, pieces in steps:
            try:
                kernels = self.models.kernels(question)
                shared = times.get(device_key(question))
                kernel_us = [
                    self._slowest(
                        question,
                        part,
                        kernels.predict_distinct(part.calls)
                        if shared is None
                        else shared[id(part)],
                    )
                    for part in pieces
                ]
                own = [self._program(question, part, programs) for part in pieces]
                if question.ranks is not None and question.ranks.scheduled:
                    gradients = [part.memory.gradients for part in pieces]
                    sent = exchanges(question, gradients)
                    sent_us = kernels.predict_distinct(sent) if len(sent) else kernel_us[0].iloc[:0]
                    last = len(pieces) - 1 if question.ranks.layers else -1
                    captured = [
                        Piece(*each, is_layer=number == last)
                        for number, each in enumerate(zip(pieces, kernel_us, own, strict=True))
                    ]
                    scheduled = ScheduledStep(question, captured, sent, sent_us)
                    simulated = predict_scheduled(scheduled, kernels.folders, with_interval)
                else:
                    simulated = predict_step(
                        question,
                        pieces[0],
                        kernel_us[0],
                        kernels.folders,
                        own[0],
                        measured_us,
                        with_interval,
                    )
                answer = Answer(question, simulated.prediction)
                if detail:
                    answer = _detailed(question, pieces[0], kernel_us[0], simulated)
                yield self._completed(answer)
            except SteptimeError as error:
                yield Answer(question, error=error)

    def _slowest(self, question: Question, part: StepParts, us: pd.DataFrame) -> pd.DataFrame:
        return us if question.local else on_slowest_card(us, part.calls, question.devices)

    def _completed(self, answer: Answer) -> Answer:
        """An answer with what fits in place of a step that does not, and the efficiency of several GPUs."""
        prediction, question = answer.whole(), answer.question
        if not prediction.fits:
            prediction = with_what_fits(prediction, question, self.steps.memory_bytes)
        return replace(answer, prediction=self._with_efficiency(prediction, question))

    def _with_efficiency(self, prediction: Prediction, question: Question) -> Prediction:
        """A prediction of several GPUs with its throughput over that of as many single ones."""
        several = prediction.several
        if several is None or several.dp != several.devices or several.micro_batches > 1:
            return prediction
        alone = question.alone()
        if alone not in self._alone_us:
            (answer,) = replace(self, steps=STEPS).predict([alone], with_interval=False)
            self._alone_us[alone] = (
                None if answer.prediction is None else answer.prediction.predicted_us
            )
        alone_us = self._alone_us[alone]
        efficiency = None if alone_us is None else alone_us / prediction.predicted_us
        return replace(prediction, several=replace(several, efficiency=efficiency))

    def _program(
        self, question: Question, parts: StepParts, programs: dict[tuple[int, int, str], Program]
    ) -> Program:
        """The step with host times, shared by GPUs with the same calls and the same host."""
        overheads = self.models.overheads(question)
        key = id(parts), id(overheads), question.step_name
        if key not in programs:
            programs[key] = assemble(
                parts.sequence, overheads, len(parts.which), workload=question.step_name
            )
        return programs[key]


def _detailed(
    question: Question, parts: StepParts, kernel_us: pd.DataFrame, simulated: SimulatedStep
) -> Answer:
    """An answer with its timeline, and with the calls of the prediction."""
    calls, timeline = parts.shown_calls(kernel_us), simulated.timeline
    prediction = replace(
        simulated.prediction,
        calls=timeline.to_frame(calls),
        parameters=parts.parameters,
        drawn=simulated.drawn,
    )
    return Answer(question, prediction, None, timeline, calls)


def engine(results: str | Path | None = "results") -> Engine:
    """An engine with the best models that there are now; `results` as for `AvailableModels`."""
    return Engine(AvailableModels(results))


def in_order(questions: Sequence[Question], answers: Iterable[Answer]) -> list[Answer]:
    """The answers in the order of the questions."""
    answer_of = {answer.question: answer for answer in answers}
    return [answer_of[question] for question in questions]
