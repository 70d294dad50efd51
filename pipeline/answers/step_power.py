"""A step under the power limit or the locked clock that was asked for, and its energy (`pipeline/hardware/power.py` has the model).

Ranks with equal work are a stage, with a clock and a power of its own: all ranks where each has the whole model, a part of a
pipeline, or those with certain embedding tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import scaled
from pipeline.answers.loading import LOADING, waiting_us
from pipeline.answers.role_step import RolesStep
from pipeline.answers.scheduled_step import Piece, ScheduledStep
from pipeline.answers.step_prediction import SimulatedStep
from pipeline.arrays import Array
from pipeline.families import FAMILIES
from pipeline.families.dims import Dims
from pipeline.families.family import Law
from pipeline.hardware.power import (
    NODE_SHARE,
    SHARED,
    Load,
    PowerConstants,
    PowerCurve,
    idle_w,
    moving_share,
    pj_per_flop,
    product_clock,
)
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, peak_gflop_per_s
from pipeline.prediction import Prediction
from pipeline.prediction_parts import Power
from pipeline.question.question import Question

LEAST_US = 0.5
"""Least time of a kernel in µs, so that no rate is infinite."""

CLOCKED = {Law.COMPUTE: 1.0, Law.LINK: 0.0, Law.COLLECTIVE: 0.0}
"""How much families depend on the clock, by the law of their times; all others: as what only moves data."""

FITTED = ("V100", "V100-PCIE-16GB", "P100")
"""Cards whose power limits set the constants, in fp32."""

CHECKED = ("H200", "B200")
"""Cards with measured watts of products on tensor cores (docs/energy.md)."""


@dataclass(frozen=True)
class Stage:
    """What ranks with equal work run in a step.

    Attributes:
        launches: how often each distinct call of all pieces is launched, shape (rows,).
        active_us: time in which any kernel of such a rank runs.
        ranks: how many such ranks there are, or their share.
    """

    launches: Array
    active_us: float
    ranks: int = 1


@dataclass(frozen=True)
class StepPower:
    """The kernels of a step on a GPU: their times at any clock, and the clock that its power limit leaves.

    Attributes:
        gpu: the GPU, with the limit and the clock that were asked for.
        moving, clocked: bandwidth share and dependence on the clock of each distinct call, shape (rows,).
        curve: the step at every clock.
        usual: the share of the boost clock under the default limit.
        clock: the share under what was asked for.
        binds: what keeps the clock there: `power`, `locked clock` or `boost clock`.
        tensor: whether tensor cores compute a part of the step.
    """

    gpu: GpuSpec
    moving: Array
    clocked: Array
    curve: PowerCurve
    usual: float
    clock: float
    binds: str
    tensor: bool

    @classmethod
    def of(
        cls,
        gpu: GpuSpec,
        calls: pd.DataFrame,
        us: Array,
        counts: Array,
        idle_us: float,
        constants: PowerConstants = SHARED,
    ) -> StepPower:
        """From distinct device calls.

        Args:
            gpu: the GPU.
            calls: distinct calls, `calls` schema.
            us: their times under the default limit, µs, shape (rows,).
            counts: how often each occurs in a step, shape (rows,).
            idle_us: time of the step in which no kernel runs.
            constants: those of the power model.
        """
        d, laws = Dims(calls), [FAMILIES[name].law for name in calls["family"].astype(str)]
        computes = np.array([law is Law.COMPUTE for law in laws], dtype=bool)
        clocked = np.array([CLOCKED.get(law, constants.moving) for law in laws])
        links = np.array([law is Law.LINK for law in laws], dtype=bool)
        us, flops = np.maximum(us, LEAST_US), d("flops", 0.0)
        plain_flop_per_us = 1e3 * gpu.fp32_gflop_per_s
        pj = np.full(len(us), constants.fp32_pj(gpu))
        tensor = np.zeros(len(us), dtype=bool)
        for dtype in DTYPES:
            if peak_gflop_per_s(gpu, dtype) is not None:
                rows = computes & (d.dtype == dtype)
                us = np.where(rows, us * product_clock(gpu, dtype), us)
                pj[rows], tensor = pj_per_flop(gpu, dtype, constants), tensor | rows
        # Winograd's convolutions compute less than they count
        flops = np.where(tensor, flops, np.minimum(flops, us * plain_flop_per_us))
        # copies from and to the host touch device memory once
        moved = d("bytes_written", 0.0) + np.where(links, 0.0, d("bytes_read", 0.0))
        joules = 1e-12 * flops * pj
        ran = counts > 0
        sums = [(counts * each)[ran] for each in (us, joules, moved)]
        load = Load.of(sums[0], sums[1], sums[2], clocked[ran])
        curve = PowerCurve.of(load, gpu, idle_us, constants)
        usual = curve.clock(gpu.tdp_w)
        locked = (gpu.locked_clock_mhz or gpu.boost_clock_mhz) / gpu.boost_clock_mhz
        clock = curve.clock(gpu.power_limit_w or gpu.tdp_w, locked)
        binds = "power" if clock < locked else "locked clock" if locked < 1.0 else "boost clock"
        moving, on_tensor_cores = moving_share(gpu, us, moved), bool(tensor.any())
        return cls(gpu, moving, clocked, curve, usual, clock, binds, on_tensor_cores)

    @property
    def factor(self) -> Array:
        """Time of each distinct call over that under the default limit, shape (rows,)."""
        at, usual = (
            SHARED.slowed(self.moving, self.clocked, each) for each in (self.clock, self.usual)
        )
        return at / usual

    def answer(self, step_us: float, active_us: float, bound: str) -> Power:
        """Power and energy of a step that takes `step_us`, in which kernels run for `active_us`."""
        us, joules = self.curve.at(self.clock)
        joules *= active_us / us if us else 0.0  # kernels beside each other share the card
        joules += 1e-6 * idle_w(self.gpu) * (step_us - active_us)
        waits = bound in ("host", "loader") and self.binds == "boost clock"
        binds = bound if waits else self.binds
        evidence = "checked" if self.gpu.name in CHECKED else "assumed"
        evidence = "fitted" if self.gpu.name in FITTED and not self.tensor else evidence
        limit_w = self.gpu.power_limit_w or self.gpu.tdp_w
        clock_mhz = self.clock * self.gpu.boost_clock_mhz
        rest_w = NODE_SHARE * self.gpu.tdp_w
        return Power(joules, limit_w, clock_mhz, binds, evidence, rest_w)


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
        Stage(step.launches(role), float(timeline.active_us[0]))
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
