"""A captured step under the power limit or the locked clock that was asked for, and what its answer says of energy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.answers.scheduled_step import Piece
from pipeline.answers.step_power import StepPower
from pipeline.answers.step_prediction import SimulatedStep, predict_step
from pipeline.errors import ConfigError
from pipeline.question.question import Question


def power_of(question: Question, piece: Piece, idle_us: float) -> StepPower:
    """Power of a captured step of which no kernel runs for `idle_us`."""
    calls, us = piece.step.calls, piece.predicted["kernel_us"].to_numpy(float)
    counts = np.bincount(piece.step.which, minlength=len(calls)).astype(float)
    return StepPower.of(question.gpu, calls, us, counts, idle_us)


def under_limit(question: Question, piece: Piece) -> Piece:
    """A captured step with the times of the power limit or the locked clock that was asked for.

    Raises:
        ConfigError: the step is put together from pieces, or measured here.
    """
    of = question.ranks
    if question.local or (of is not None and (of.scheduled or of.parallel.spreads)):
        measured = "gpu=local, which is measured as it is"
        where = measured if question.local else "tp, cp, pp or parallel=hybrid"
        raise ConfigError(f"gpu.{question.gpu.run_at}: not with {where}")
    of_step = piece.step, piece.predicted, (), piece.program
    usual = predict_step(question, *of_step, with_interval=False).prediction
    power = power_of(question, piece, usual.idle_us)
    return replace(piece, predicted=power.times(piece.predicted), power=power)


def with_power(simulated: SimulatedStep, question: Question, piece: Piece) -> SimulatedStep:
    """A predicted step with its energy."""
    p = simulated.prediction
    power = piece.power or power_of(question, piece, p.idle_us)
    answer = power.answer(p.predicted_us, p.active_us, p.bound)
    return replace(simulated, prediction=replace(p, power=answer))
