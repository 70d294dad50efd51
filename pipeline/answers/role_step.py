"""A predicted step whose ranks have different work, because each holds other embedding tables.

Each role (`Question.roles`) is captured as a step of its own; all are simulated together and meet in collectives. The slowest rank
decides how long the step takes. What is said of active time, families and communication is that of the rank whose device works
longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from pipeline.answers.arithmetic import arithmetic_of
from pipeline.answers.drawn_step import drawn_times, parts_of_timeline
from pipeline.answers.scheduled_step import Piece
from pipeline.answers.step_errors import ErrorSources, StepErrors
from pipeline.answers.step_prediction import (
    SimulatedStep,
    answered,
    device_time,
    memory_fields,
    several_gpus,
    timeline_fields,
)
from pipeline.arrays import Array, Ints
from pipeline.graph.gpu_memory import needed_bytes, stage_memory
from pipeline.question.embedding_tables import spreads
from pipeline.question.question import Question
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from pipeline.simulate.ranks import Role, simulate_ranks
from pipeline.simulate.timeline import Timeline


@dataclass(frozen=True)
class RolesStep:
    """The step of each role with the errors of its times; its draws are as of `drawn_step.DrawnStep`.

    Attributes:
        question: what is asked.
        pieces: of the roles, in the order of `Question.roles`.
    """

    question: Question
    pieces: Sequence[Piece]

    @cached_property
    def programs(self) -> list[Program]:
        """The program of each role."""
        return [piece.program for piece in self.pieces]

    @cached_property
    def meetings(self) -> list[Ints]:
        """The number of the meeting of each call of each role: the collectives of all ranks come in one order."""
        found = []
        for piece in self.pieces:
            meets = piece.step.all_calls["family"].to_numpy(object) == "collective"
            found.append(np.where(meets, np.cumsum(meets) - 1, -1))
        return found

    def timelines(
        self, times: Sequence[Array], host: Array, roles: Sequence[int]
    ) -> list[Timeline]:
        """The steps of some roles, one of a loop of equal steps.

        How long each role waits in a meeting is that of a step alone, which all roles begin together.

        Args:
            times: of the distinct calls of each role, µs, shape (calls, draws).
            host: factors on host times, shape (draws,).
            roles: their numbers.
        """
        parts = zip(self.programs, times, self.pieces, self.meetings, strict=True)
        together = simulate_ranks(
            [
                Role(replace(program, loop=False), us[piece.step.which].T, met, host_scale=host)
                for program, us, piece, met in parts
            ],
            waits_inside=False,
        )
        return [
            simulate(self.programs[role], together[role].kernel_us, host_scale=host)
            for role in roles
        ]

    @cached_property
    def central(self) -> list[Timeline]:
        """The steps of the slowest rank and of the last role, which has least to do, with predicted times."""
        times = self.of_roles(self.errors.centre[:, None])
        return self.timelines(times, np.ones(1), [self.slowest, len(self.pieces) - 1])

    @cached_property
    def computing_us(self) -> Array:
        """Kernel time of each role without collectives, shape (roles,)."""
        pairs = zip(self.pieces, self.meetings, strict=True)
        return np.array([piece.central_us[met < 0].sum() for piece, met in pairs])

    @property
    def slowest(self) -> int:
        """The role whose device works longest."""
        return int(self.computing_us.argmax())

    @property
    def imbalance(self) -> float:
        """Time of the longest lookups of a rank over the mean of all ranks."""
        lookups = self.question.lookups_of_ranks[0].sum(axis=1)
        return float(lookups.max() / lookups.mean()) if lookups.any() else 1.0

    @cached_property
    def errors(self) -> StepErrors:
        """Widths of the errors of the distinct calls of all roles, in order; equal calls share an error."""
        calls = pd.concat([piece.step.calls for piece in self.pieces])
        times = pd.concat([piece.predicted for piece in self.pieces])
        host = self.pieces[0].program.host_evidence
        return StepErrors.of(ErrorSources.of(calls), times, host, self.question)

    def of_roles(self, times: Array) -> list[Array]:
        """Times of all distinct calls by role."""
        return np.split(times, np.cumsum([len(piece.step.calls) for piece in self.pieces])[:-1])

    def launches(self, role: int) -> Array:
        """How often a role launches each of the distinct calls of all."""
        return np.concatenate(
            [
                np.bincount(piece.step.which, minlength=len(piece.step.calls)) * (number == role)
                for number, piece in enumerate(self.pieces)
            ]
        ).astype(float)

    def _drawn(self) -> tuple[list[Array], Array]:
        """Drawn times of the distinct calls of each role, shape (calls, draws), and factors on host times, shape (draws,)."""
        of, program = self.question, self.programs[self.slowest]
        settings, cards = of.predict, (of.gpu.name, of.host.name)
        of_calls, host = drawn_times(
            self.errors,
            self.launches(self.slowest),
            program,
            cards,
            settings.draws,
            settings.seed,
        )
        times, (lookups_us, *_) = self.of_roles(of_calls), of.lookups_of_ranks
        if any(sds := spreads(of.workload)):
            times = self._with_spread(times, lookups_us, np.array(sds))
        return times, host

    def _with_spread(self, times: list[Array], us: Array, sds: Array) -> list[Array]:
        """Drawn times with lookups that differ between batches; all parts of a table have those of a batch."""
        random = np.random.default_rng(self.question.predict.seed)
        drawn = 1.0 + sds[:, None] * random.standard_normal((len(sds), times[0].shape[1]))
        found = []
        for role, piece, own in zip(self.question.roles, self.pieces, times, strict=True):
            factor = us[role] @ np.maximum(drawn, 0.0) / max(us[role].sum(), 1e-9)
            looks_up = piece.step.calls["family"].str.startswith("embedding").to_numpy(bool)
            found.append(np.where(looks_up[:, None], own * factor, own))
        return found

    @property
    def calls(self) -> pd.DataFrame:
        """Device calls of the slowest rank."""
        return self.pieces[self.slowest].step.all_calls

    def step_us(self) -> Array:
        """The step time of each draw, µs, shape (draws,)."""
        (timeline,) = self.timelines(*self._drawn(), [self.slowest])
        return np.asarray(timeline.step_us)

    def parts(self) -> dict[str, Array]:
        """The parts of the slowest rank's step in each draw, µs, shape (draws,), as of `parts_of_step`."""
        times, host = self._drawn()
        (timeline,) = self.timelines(times, host, [self.slowest])
        piece = self.pieces[self.slowest].step
        us = times[self.slowest] * np.bincount(piece.which, minlength=len(piece.calls))[:, None]
        families = {
            str(family): us[rows].sum(axis=0)
            for family, rows in piece.calls.groupby("family").indices.items()
        }
        return parts_of_timeline(timeline, families)


def predict_roles(
    step: RolesStep, folders: tuple[str, ...], with_interval: bool = True
) -> SimulatedStep:
    """Predict a step whose ranks have different work.

    Args:
        step: its roles with predicted times.
        folders: folders that the kernel models were read from.
        with_interval: as of `step_prediction.predict_step`.
    """
    question, slowest = step.question, step.slowest
    assert question.ranks is not None
    piece, program = step.pieces[slowest], step.programs[slowest]
    timeline, last = step.central
    draws = step if with_interval else None
    memory = stage_memory(
        [one.step.memory for one in step.pieces], question.ranks, question.workload
    )
    prediction = answered(
        question,
        piece.step,
        device_time([(piece.step, piece.predicted, piece.central_us)]),
        draws,
        **memory_fields(question.gpu, needed_bytes(memory, question.gpu)),
        **timeline_fields(timeline, program, piece.central_us if with_interval else None),
        arithmetic=arithmetic_of(question.gpu, piece.step.model_flops),
        several=replace(
            several_gpus(question.ranks, *timeline.communication_us),
            imbalance=step.imbalance,
            sharding=question.ranks.parallel.sharding,
        ),
        models_from=folders,
    )
    other = (len(step.pieces) - 1, last) if slowest < len(step.pieces) - 1 else None
    return SimulatedStep(prediction, timeline, draws, slowest, other)
