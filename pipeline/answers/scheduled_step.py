"""A predicted step of several passes: micro-batches, through the parts of a pipeline where the model is cut into some.

A piece of the model (its first, middle or last layer, with what stands before or behind) is captured as one micro-batch. Its
passes are simulated alone and put together by the schedule (`pipeline.simulate.schedule`), for all draws of errors at once. What is
said of active time, families and communication is that of the stage whose device works longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.arithmetic import arithmetic_of
from pipeline.answers.drawn_step import drawn_times, parts_of_step
from pipeline.answers.step_errors import ErrorSources, StepErrors
from pipeline.answers.step_prediction import (
    SimulatedStep,
    StepParts,
    answered,
    device_time,
    memory_fields,
    several_gpus,
)
from pipeline.arrays import Array, Ints
from pipeline.graph.device_calls import calls_table
from pipeline.graph.gpu_memory import needed_bytes, stage_memory, widened_gradients
from pipeline.hardware.rank_layout import COMMUNICATION, Groups, is_wrapper
from pipeline.hardware.stages import held_pieces, of_part
from pipeline.question.question import Question
from pipeline.question.several_gpus import Ranks
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from pipeline.simulate.schedule import (
    BACKWARD,
    FORWARD,
    LAST_BACKWARD,
    UPDATE,
    PartPasses,
    Pass,
    Schedule,
    passes_of,
    simulate_schedule,
)

BETWEEN_STAGES, TIED_WEIGHTS, NORM, GRADIENTS = (
    "between stages", "tied weights", "norm of gradients", "gradients",
)  # fmt: skip
"""What ranks exchange beside what a capture shows. Gradients are those of the piece with the number behind the word."""

COMMON: dict[str, Any] = {
    "family": "collective", "phase": "communication", "dtype": "fp32", "stream": 0, "api": "",
    "node_id": 0, "call": 0, "flops": 0.0, "blocking": False, "evidence": "",
}  # fmt: skip
"""What all rows of `exchanges` have."""

LAYERS = ".layers."
"""Part of the path of every module inside a layer (`pipeline.workloads.parallel_decoder`)."""


def exchanges(question: Question, gradients: Sequence[int]) -> pd.DataFrame:
    """What ranks exchange beside what a capture shows (`calls` schema), with `what`.

    A rank sends its part of the activations: tensor-parallel ranks share the sending (Megatron-LM's scatter and gather). A
    distributed optimizer scatters gradients and gathers weights: as an all-reduce of half of each moves.

    Args:
        question: what is asked.
        gradients: bytes of the gradients of each piece as autograd makes them, in the dtype of its weights (`Question.chunks`).
    """
    ranks, of = question.ranks, question.workload
    assert ranks is not None
    p, layout, records = ranks.parallel, ranks.layout, []

    def exchange(what: str, op: str, size: float, groups: Groups) -> None:
        row = {"what": what, "op": op, "bytes_read": float(size), "bytes_written": float(size)}
        shared = groups.node_groups if groups.node_groups > 1 else None
        records.append({**row, "ranks": groups.ranks, "nodes": groups.nodes, "node_groups": shared})

    if ranks.layers and ranks.replicas > 1:
        widened = widened_gradients(p, of)
        share = (1 + widened) / 2 if p.zero else widened
        *ends, middle = (share * size for size in gradients)
        further = 0 if p.overlap else ranks.layers - 1
        for number, size in enumerate(
            [*(own + further * middle for own in ends), middle * (1 + further)]
        ):
            exchange(f"{GRADIENTS} {number}", "all_reduce", size, layout.groups("dp"))
    if p.pp > 1:
        on_node = ranks.devices // ranks.nodes
        far = ranks.nodes > 1 and ranks.devices // p.pp >= on_node
        pair = Groups(2, 2, on_node) if far else Groups(2, 1, 1)
        element = 2 if of["precision"] == "pure" else 4
        tokens = question.batch_size * int(of["seq_len"]) // p.cp
        exchange(BETWEEN_STAGES, "send_recv", tokens * int(of["width"]) * element // p.tp, pair)
        if of["tied"]:
            table = int(of["vocabulary"]) * int(of["width"]) * element // p.tp
            exchange(TIED_WEIGHTS, "all_reduce", table, pair)
        exchange(NORM, "all_reduce", element, Groups(ranks.devices, ranks.nodes, 1))
    found: pd.DataFrame = calls_table([{**COMMON, **row} for row in records])
    return found.assign(what=np.array([row["what"] for row in records], object))


@dataclass(frozen=True)
class Piece:
    """A piece of the model as one micro-batch.

    Attributes:
        step: operators and device calls.
        predicted: what the kernel models predict for `step.calls`.
        program: `step.sequence` with host times, as section `predict` has it run.
    """

    step: StepParts
    predicted: pd.DataFrame
    program: Program

    def passes(self, is_layer: bool) -> dict[str, Program]:
        """Its passes. Of a middle layer, what stands outside the layer is left out."""
        modules = [str(module) for module in self.step.item_modules]
        inside, exchanging = (
            np.array(flags, bool)[self.program.item]
            for flags in (
                [not is_layer or LAYERS in module for module in modules],
                [module == COMMUNICATION or is_wrapper(module) for module in modules],
            )
        )
        return passes_of(self.program, inside, exchanging)

    @cached_property
    def central_us(self) -> Array:
        """Predicted time of each device call, shape (calls,)."""
        return self.predicted["kernel_us"].to_numpy(float)[self.step.which]


@dataclass(frozen=True)
class ScheduledStep:
    """A step of several passes with the errors of its times.

    Attributes:
        question: what is asked.
        pieces: of the model, as of `Question.chunks`.
        exchanged: what ranks exchange (`exchanges`).
        exchanged_times: what the kernel models predict for it.
    """

    question: Question
    pieces: Sequence[Piece]
    exchanged: pd.DataFrame
    exchanged_times: pd.DataFrame

    @property
    def ranks(self) -> Ranks:
        """How the work is shared."""
        assert self.question.ranks is not None
        return self.question.ranks

    @cached_property
    def passes(self) -> list[dict[str, Program]]:
        """Passes of each piece."""
        last = len(self.pieces) - 1 if self.ranks.layers else -1
        return [piece.passes(number == last) for number, piece in enumerate(self.pieces)]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each pass runs."""
        count = self.ranks.parallel.micro_batches
        return {FORWARD: count, BACKWARD: count - 1, LAST_BACKWARD: 1, UPDATE: 1}

    @cached_property
    def stages(self) -> list[dict[int, int]]:
        """How often each stage holds each piece, by the number of the piece."""
        of = self.ranks.parallel
        return held_pieces(of.pp, of.parts, self.ranks.layers, len(self.pieces))

    @cached_property
    def launches(self) -> list[Ints]:
        """How often a step launches each device call of each piece that a stage holds once."""
        found = []
        for piece, passes in zip(self.pieces, self.passes, strict=True):
            launches = np.zeros(len(piece.step.which), np.int64)
            for name, program in passes.items():
                launches[program.call[program.call >= 0]] += self.counts[name]
            found.append(launches)
        return found

    @cached_property
    def busiest(self) -> dict[int, int]:
        """The pieces of the stage whose device works longest, as of `stages`."""
        busy = [
            float(piece.central_us @ launches)
            for piece, launches in zip(self.pieces, self.launches, strict=True)
        ]
        return max(self.stages, key=lambda held: sum(n * busy[piece] for piece, n in held.items()))

    @cached_property
    def errors(self) -> StepErrors:
        """Widths of the errors of all distinct calls: those of the pieces in order, then what ranks exchange."""
        calls = pd.concat([*(piece.step.calls for piece in self.pieces), self.exchanged])
        times = pd.concat([*(piece.predicted for piece in self.pieces), self.exchanged_times])
        host = self.pieces[0].program.host_evidence
        return StepErrors.of(ErrorSources.of(calls), times, host, self.question)

    def drawn(self) -> tuple[Array, Array]:
        """Times of all distinct calls in each draw, shape (calls, draws), and factors on host times, shape (draws,)."""
        settings = self.question.predict
        how_often = [
            self.busiest.get(number, 0)
            * np.bincount(piece.step.which, launches, len(piece.step.calls))
            for number, (piece, launches) in enumerate(zip(self.pieces, self.launches, strict=True))
        ]
        weights = np.concatenate([*how_often, np.ones(len(self.exchanged))])
        cards, program = (self.question.gpu.name, self.question.host.name), self.pieces[0].program
        return drawn_times(self.errors, weights, program, cards, settings.draws, settings.seed)

    def of_pieces(self, times: Array) -> list[Array]:
        """Times of all distinct calls by piece; the last are those of what ranks exchange."""
        return np.split(times, np.cumsum([len(piece.step.calls) for piece in self.pieces]))

    def simulated(self, times: Array, host: Array) -> Schedule:
        """The step with given times of all distinct calls, shape (calls, draws), and factors on host times, shape (draws,)."""
        *own, exchanged = self.of_pieces(times)
        passes = [
            {
                name: Pass.of(program, piece_times, piece.step.which, host)
                for name, program in programs.items()
            }
            for piece, programs, piece_times in zip(self.pieces, self.passes, own, strict=True)
        ]
        of, what = self.ranks.parallel, self.exchanged["what"].to_numpy(object)
        moving = {str(name): exchanged[row] for row, name in enumerate(what)}
        nothing, parts = np.zeros(times.shape[1]), []
        for part in range(of.parts):
            piece = of_part(part, of.parts) % len(passes)
            ends, layer = (
                moving.get(f"{GRADIENTS} {number % len(passes)}") for number in (piece, -1)
            )
            beside = None if ends is None or layer is None or not of.overlap else (ends, layer)
            behind = None if of.overlap else ends
            parts.append(
                PartPasses(passes[piece], passes[-1], max(self.ranks.layers - 1, 0), beside, behind)
            )
        moved = moving.get(BETWEEN_STAGES, nothing)
        joined = moving.get(TIED_WEIGHTS, nothing) + moving.get(NORM, nothing)
        loop = not self.question.predict.wait_each_step
        return simulate_schedule(parts, of.pp, of.micro_batches, moved, joined, loop)

    @cached_property
    def central(self) -> Schedule:
        """The step with predicted times."""
        return self.simulated(self.errors.centre[:, None], np.ones(1))

    @cached_property
    def activity(self) -> tuple[float, float, float]:
        """Active time, time of collectives, and that in which they run alone, of the busiest stage, µs."""
        active, moved, exposed = self.activity_of(self.busiest)
        return active, moved + self._exchanged_us(), exposed

    def activity_of(self, stage: Mapping[int, int]) -> tuple[float, float, float]:
        """The same of a stage by the pieces that it holds, without what it exchanges beside its passes."""
        active, moved, exposed = np.sum([n * self._active_us[k] for k, n in stage.items()], axis=0)
        return float(active), float(moved), float(exposed)

    @cached_property
    def _active_us(self) -> list[Array]:
        """The three times of each piece that a stage holds once."""
        found = []
        for piece, passes in zip(self.pieces, self.passes, strict=True):
            sums = np.zeros(3)
            for name, program in passes.items():
                timeline = simulate(program, piece.central_us)
                times = float(timeline.active_us[0]), *timeline.communication_us
                sums += self.counts[name] * np.array(times)
            found.append(sums)
        return found

    def _exchanged_us(self) -> float:
        """Time of what the busiest stage exchanges beside its passes, µs."""
        of, total, begins = self.ranks.parallel, 0.0, dict(self.busiest)
        if not of.overlap:  # one exchange for each part, counted with the piece that it begins with
            begins[len(self.pieces) - 1] -= (self.ranks.layers - 1) * of.virtual_stages
        for what, us in zip(self.exchanged["what"], self.exchanged_times["kernel_us"], strict=True):
            name, _, number = str(what).rpartition(" ")
            passes = 2 * of.virtual_stages * of.micro_batches if what == BETWEEN_STAGES else 1
            total += us * (begins.get(int(number), 0) if name == GRADIENTS else passes)
        return float(total)

    def device_time(self) -> dict[str, Any]:
        """Fields of a prediction about the device time of the busiest stage."""
        rows = []
        for number, held in self.busiest.items():
            piece = self.pieces[number]
            us = held * piece.central_us * self.launches[number]
            rows.append((piece.step, piece.predicted, us))
        return device_time(rows)

    def model_flops(self) -> dict[str, float]:
        """FLOPs that the model needs for a step on one GPU, in the mean over the stages, by dtype."""
        of, flops = self.ranks.parallel, dict[str, float]()
        for held in self.stages:
            for number, times in held.items():
                for dtype, value in self.pieces[number].step.model_flops.items():
                    own = value * times * of.micro_batches / of.pp
                    flops[dtype] = flops.get(dtype, 0.0) + own
        return flops


@dataclass(frozen=True)
class ScheduledDraws:
    """The draws of a step of several passes, as of `drawn_step.DrawnStep`."""

    step: ScheduledStep

    @property
    def calls(self) -> pd.DataFrame:
        """Device calls of a micro-batch in the first piece."""
        return self.step.pieces[0].step.all_calls

    def step_us(self) -> Array:
        """The step time of each draw, µs, shape (draws,)."""
        return self.step.simulated(*self.step.drawn()).step_us

    def parts(self) -> dict[str, Array]:
        """The parts of the step in each draw, µs, shape (draws,), as of `parts_of_step`."""
        step, (times, host) = self.step, self.step.drawn()
        own, families = step.of_pieces(times), dict[str, Array]()
        for number, held in step.busiest.items():
            calls = step.pieces[number].step
            launches = np.bincount(calls.which, step.launches[number], len(calls.calls))
            us = own[number] * (held * launches)[:, None]
            for family, rows in calls.calls.groupby("family").indices.items():
                families[str(family)] = families.get(str(family), 0.0) + us[rows].sum(axis=0)
        active, _, exposed = step.activity
        total: Array = np.sum(list(families.values()), axis=0)
        growth = total / max(total.mean(), 1e-9)
        step_us = step.simulated(times, host).step_us
        return parts_of_step(families, step_us, active * growth, exposed * growth)


def predict_scheduled(
    step: ScheduledStep, folders: tuple[str, ...], with_interval: bool = True
) -> SimulatedStep:
    """Predict a step of several passes.

    Args:
        step: its pieces with predicted times.
        folders: folders that the kernel models were read from.
        with_interval: as of `step_prediction.predict_step`.
    """
    question, ranks, first, central = step.question, step.ranks, step.pieces[0], step.central
    step_us, host_us = float(central.step_us[0]), float(central.host_us.max(axis=0)[0])
    active, moved, exposed = step.activity
    without_host = step.simulated(step.errors.centre[:, None], np.zeros(1))
    waits = step_us - float(without_host.step_us[0])
    bounds = {"host": waits, "communication": exposed, "device": step_us - waits - exposed}
    draws = ScheduledDraws(step) if with_interval else None
    memory = stage_memory([piece.step.memory for piece in step.pieces], ranks, question.workload)
    prediction = answered(
        question,
        first.step,
        step.device_time(),
        draws,
        **memory_fields(question.gpu, needed_bytes(memory, question.gpu)),
        arithmetic=arithmetic_of(question.gpu, step.model_flops()),
        predicted_us=step_us,
        active_us=active,
        host_us=host_us,
        host_evidence=first.program.host_shares,
        bound="host" if host_us >= step_us else max(bounds, key=lambda name: bounds[name]),
        several=several_gpus(ranks, moved, exposed),
        models_from=folders,
        stages=central.table if ranks.parallel.pp > 1 else None,
    )
    return SimulatedStep(prediction, simulate(first.program, first.central_us), draws)
