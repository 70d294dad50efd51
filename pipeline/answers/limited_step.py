"""A step under the power limit or the locked clock that was asked for, and what its answer says of energy.

Ranks with equal work are a stage, with a clock and a power of its own: all ranks where each has the whole model, a part of a
pipeline, or those with certain embedding tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import scaled
from pipeline.answers.loading import LOADING, waiting_us
from pipeline.answers.role_step import RolesStep
from pipeline.answers.scheduled_step import Piece, ScheduledStep
from pipeline.answers.step_power import Stage, StepPower
from pipeline.answers.step_prediction import SimulatedStep
from pipeline.prediction import Prediction
from pipeline.question.question import Question

Stages = Callable[[], Sequence[Stage]]
"""The stages of a simulated step, the one whose device works longest first."""

Simulate = Callable[[Sequence[Piece], bool], tuple[SimulatedStep, Stages]]
"""Simulates a step of pieces, with or without an interval."""


def limited(
    question: Question, pieces: Sequence[Piece], simulate: Simulate, interval: bool, energy: bool
) -> tuple[Sequence[Piece], SimulatedStep]:
    """Simulate a step at the clock that was asked for, or that is left by the limit.

    Args:
        question: what is asked.
        pieces: with times under the default limit.
        simulate: simulates them.
        interval: whether the answer has an interval.
        energy: whether it has its energy; always so where a limit or a clock was asked for.

    Returns:
        The pieces with the times that count, and the step.
    """
    powers = None
    if question.gpu.run_at:
        usual, stages_of = simulate(pieces, False)
        stages = stages_of()
        powers = powers_of(question, pieces, usual.prediction, stages)
        pieces = _at_clocks(pieces, powers, stages)
    simulated, stages_of = simulate(pieces, interval)
    if question.local or not (energy or powers):
        return pieces, simulated
    stages = stages_of()
    powers = powers or powers_of(question, pieces, simulated.prediction, stages)
    return pieces, _with_power(question, simulated, powers, stages)


def powers_of(
    question: Question, pieces: Sequence[Piece], p: Prediction, stages: Sequence[Stage]
) -> list[StepPower]:
    """The power of each stage of a step under the default limit."""
    calls = pd.concat([piece.step.calls for piece in pieces], ignore_index=True)
    us = np.concatenate([piece.predicted["kernel_us"].to_numpy(float) for piece in pieces])
    step_us = p.predicted_us + waiting_us(p, question.predict.loader)
    return [
        StepPower.of(question.gpu, calls, us, stage.launches, max(step_us - stage.active_us, 0.0))
        for stage in stages
    ]


def _at_clocks(
    pieces: Sequence[Piece], powers: Sequence[StepPower], stages: Sequence[Stage]
) -> list[Piece]:
    """Pieces with the times of the clock of the first stage that runs them."""
    ends = np.cumsum([len(piece.step.calls) for piece in pieces])[:-1]
    found = list(pieces)
    for power, stage in reversed(list(zip(powers, stages, strict=True))):
        parts = zip(np.split(stage.launches, ends), np.split(power.factor, ends), strict=True)
        for number, (launches, factor) in enumerate(parts):
            if launches.any():
                times = scaled(pieces[number].predicted, factor)
                found[number] = replace(pieces[number], predicted=times)
    return found


def _with_power(
    question: Question,
    simulated: SimulatedStep,
    powers: Sequence[StepPower],
    stages: Sequence[Stage],
) -> SimulatedStep:
    """A predicted step with the energy of a mean rank, and the clock of the first stage."""
    p = simulated.prediction
    waits_us = waiting_us(p, question.predict.loader)
    at = p.predicted_us + waits_us, LOADING if waits_us else p.bound
    answers = [
        power.answer(at[0], stage.active_us, at[1])
        for power, stage in zip(powers, stages, strict=True)
    ]
    ranks = [stage.ranks for stage in stages]
    joules = float(np.average([answer.joules for answer in answers], weights=ranks))
    power = replace(answers[0], joules=joules, electricity=question.electricity)
    return replace(simulated, prediction=replace(p, power=power))


def stage_of_all(piece: Piece, p: Prediction) -> list[Stage]:
    """The one stage of a step whose ranks have equal work."""
    return [Stage(_launches(piece), p.active_us)]


def stages_of_roles(step: RolesStep) -> list[Stage]:
    """A stage for each role that is simulated, the slowest first."""
    roles = sorted(range(len(step.pieces)), key=lambda role: role != step.slowest)
    times = step.of_roles(step.errors.centre[:, None])
    timelines = step.timelines(times, np.ones(1), roles)
    return [
        Stage(
            np.concatenate(
                [_launches(each) * (number == role) for number, each in enumerate(step.pieces)]
            ),
            float(timeline.active_us[0]),
        )
        for role, timeline in zip(roles, timelines, strict=True)
    ]


def stages_of_schedule(step: ScheduledStep) -> list[Stage]:
    """The stages of a pipeline, those that hold the same pieces as one, the busiest first."""
    kinds = [tuple(sorted(held.items())) for held in step.stages]
    first = tuple(sorted(step.busiest.items()))
    found = []
    for kind in sorted(dict.fromkeys(kinds), key=lambda kind: kind != first):
        held = dict(kind)
        parts = zip(step.pieces, step.launches, strict=True)
        counts = [
            held.get(number, 0) * np.bincount(piece.step.which, launches, len(piece.step.calls))
            for number, (piece, launches) in enumerate(parts)
        ]
        active_us, _, _ = step.activity_of(held)
        found.append(Stage(np.concatenate(counts), active_us, kinds.count(kind)))
    return found


def _launches(piece: Piece) -> np.ndarray:
    return np.bincount(piece.step.which, minlength=len(piece.step.calls)).astype(float)
