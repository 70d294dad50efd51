"""Steps of several passes: micro-batches that pass forward and backward through the parts of a pipeline, and one update.

A pass is simulated alone, launch by launch. What it adds to a host and a device that are busy with earlier passes follows from
three times of it (`Pass`). A program without waits of the host is a linear map of the two clocks in max-plus algebra. So equal
layers are simulated once, and a step of thousands of passes takes no longer than its distinct ones, for all draws at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.errors import ConfigError
from pipeline.hardware.rank_layout import stream_of
from pipeline.hardware.stages import Task, order
from pipeline.simulate.compiled_walk import BESIDE_COLLECTIVES, SLOWED
from pipeline.simulate.critical_path import step_ends
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import only_rows, without_calls, without_host

FORWARD, BACKWARD, LAST_BACKWARD, UPDATE = "forward", "backward", "last backward", "update"
"""Passes of a captured micro-batch. In the last backward pass, replicas may exchange gradients."""


@dataclass(frozen=True)
class Pass:
    """What a pass takes, µs, shape (draws,).

    Attributes:
        host: on the host.
        alone: until host and device are done, on an idle device.
        busy: on a device that has always work queued.
    """

    host: Array
    alone: Array
    busy: Array

    @classmethod
    def of(cls, program: Program, times: Array, which: Ints, host_scale: Array) -> Pass:
        """Simulate a pass; arguments as of `critical_path.step_times`."""
        alone, host = step_ends(program, times, which, host_scale)
        busy, _ = step_ends(without_host(program), times, which, host_scale)
        return cls(host, alone, busy)

    def then(self, other: Pass) -> Pass:
        """This pass and one after it."""
        alone = np.maximum(self.host + other.alone, self.alone + other.busy)
        return Pass(self.host + other.host, alone, self.busy + other.busy)

    def repeated(self, count: int) -> Pass:
        """So many of this pass after each other."""
        more = (count - 1) * np.maximum(self.host, self.busy)
        return Pass(count * self.host, self.alone + more, count * self.busy)

    def __add__(self, us: Array) -> Pass:
        """This pass and a time after it in which the device waits."""
        return Pass(self.host, self.alone + us, self.busy + us)


def passes_of(program: Program, inside: Flags, exchanging: Flags) -> dict[str, Program]:
    """The program of each pass of a captured step of one micro-batch. That gradients are deleted belongs to the update.

    Replicas exchange gradients in the last backward pass alone (`DistributedDataParallel.no_sync`), and buffers once a step.

    Args:
        program: the step.
        inside: rows that belong to forward and backward passes, shape (rows,).
        exchanging: rows in which replicas exchange, shape (rows,), beside calls on the stream of replicas.

    Raises:
        ConfigError: the step has several updates.
    """
    phases = program.items.phase[program.item]
    backward = np.flatnonzero(phases == "backward")
    begin = int(backward[0]) if len(backward) else len(program)
    place = np.arange(len(program))
    updates = np.flatnonzero((phases == "optimizer") & (place > begin))
    end = int(updates[0]) if len(updates) else len(program)
    if (phases[end:] == "backward").any():
        raise ConfigError("parallel.micro_batches: not with a step that updates weights twice")
    deletes = (phases == "optimizer") & (place < begin)
    last = (place >= begin) & (place < end) & inside
    return {
        FORWARD: only_rows(program, (place < begin) & ~deletes & ~exchanging & inside),
        BACKWARD: without_calls(
            only_rows(program, last & ~exchanging), _on_stream(program, stream_of("dp"))
        ),
        LAST_BACKWARD: only_rows(program, last),
        UPDATE: only_rows(program, (place >= end) | deletes | (exchanging & (place < begin))),
    }


def _on_stream(program: Program, stream: int) -> Flags:
    """Whether each call of a program is on a stream."""
    found = np.zeros(program.call_count, bool)
    rows = (program.stream >= 0) & (program.call >= 0)
    found[program.call[rows]] = program.streams[program.stream[rows]] == stream
    return found


@dataclass(frozen=True)
class PartPasses:
    """The passes of a part of the model: its ends, and equal layers beside them.

    Attributes:
        ends: passes of a captured micro-batch (`passes_of`) with one layer.
        layer: those of one layer alone.
        layers: further layers.
        exchanges_us: of the gradients of the ends and of a layer, while the backward pass goes on; None: not beside it.
        exchange_us: of all gradients behind the last backward pass.
    """

    ends: Mapping[str, Pass]
    layer: Mapping[str, Pass]
    layers: int
    exchanges_us: tuple[Array, Array] | None = None
    exchange_us: Array | None = None

    def of(self, kind: str) -> Pass:
        """A pass through the part, without exchange beside it."""
        if not self.layers:
            return self.ends[kind]
        return self.ends[kind].then(self.layer[kind].repeated(self.layers))

    @cached_property
    def forward(self) -> Pass:
        """A forward pass."""
        return self.of(FORWARD)

    @cached_property
    def backward(self) -> Pass:
        """A backward pass, without exchange of gradients."""
        return self.of(BACKWARD)

    @cached_property
    def last_backward(self) -> Pass:
        """The last backward pass, which an exchange beside it slows."""
        whole = self.of(LAST_BACKWARD)
        return whole if self.exchanges_us is None else whole + (self._clocks[0] - whole.busy)

    @cached_property
    def left_us(self) -> Array:
        """What is left of the exchange of gradients when the last backward pass ends: other stages do not wait for it."""
        if self.exchanges_us is None:
            return self.exchange_us if self.exchange_us is not None else 0.0 * self.forward.busy
        return np.maximum(self._clocks[1] - self._clocks[0], 0.0)

    @cached_property
    def _clocks(self) -> tuple[Array, Array]:
        """Ends of computing and of exchanging, from the begin of the last backward pass on a busy device."""
        assert self.exchanges_us is not None
        taken = [(self.ends[LAST_BACKWARD].busy, self.exchanges_us[0])]
        if self.layers:
            taken += [(self.layer[LAST_BACKWARD].busy, self.exchanges_us[1])] * self.layers
        nothing = 0.0 * self.exchanges_us[0]
        return reduce(_beside, taken, (nothing, nothing))


def _beside(clocks: tuple[Array, Array], taken: tuple[Array, Array]) -> tuple[Array, Array]:
    """Ends of computing and of exchanging after one more layer, whose gradients are exchanged when it ends."""
    (computed, moved), (busy, exchange) = clocks, taken
    beside = np.maximum(moved - computed, 0.0) * SLOWED
    computed = computed + busy + np.minimum(busy * (BESIDE_COLLECTIVES - 1.0), beside)
    return computed, np.maximum(moved, computed) + exchange


class Slot(NamedTuple):
    """A pass on the device of a stage, the exchange behind it (`communication`), or the update (`optimizer`), in the first draw."""

    stage: int
    chunk: int
    micro_batch: int
    phase: str
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Schedule:
    """A simulated step of several passes. Times are µs, shape (draws,) unless said.

    Attributes:
        step_us: until all stages have updated their weights.
        host_us: of the host of each stage, shape (stages, draws).
        slots: what each stage does, in the order of its simulation.
    """

    step_us: Array
    host_us: Array
    slots: Sequence[Slot] = ()

    @property
    def table(self) -> pd.DataFrame:
        """What each stage does, a row for each slot that takes time, by the names of `Slot`."""
        return pd.DataFrame([slot for slot in self.slots if slot.end_us > slot.begin_us])


def idle_shares(stages: pd.DataFrame) -> dict[int, float]:
    """The share of the step in which the device of each stage waits (its bubble), by the number of the stage."""
    busy = (stages["end_us"] - stages["begin_us"]).groupby(stages["stage"]).sum()
    return dict(enumerate(1.0 - busy / stages["end_us"].max()))


def simulate_schedule(
    parts: Sequence[PartPasses],
    stages: int,
    count: int,
    moved_us: Array,
    joined_us: Array,
    loop: bool = False,
) -> Schedule:
    """Simulate the stages of a pipeline together: a pass begins when what it needs has arrived.

    Args:
        parts: of the model, in order; part k is on stage k modulo `stages`.
        stages: of the pipeline; 1: micro-batches follow each other on one.
        count: micro-batches.
        moved_us: from the end of a pass to the arrival of its result at the next stage, shape (draws,).
        joined_us: of what all stages exchange before the update, shape (draws,).
        loop: whether the host of a single stage begins the next step while the device works on this one; several stages wait
            for each other.
    """
    orders = [order(stage, stages, len(parts) // stages, count) for stage in range(stages)]
    host, device, slots = _walked(orders, parts, count, moved_us)
    if stages > 1:
        device[:] = device.max(axis=0) + joined_us
    full = stages == 1 and loop  # the device has always work queued
    if full:
        device[0] = sum(_taken(parts, task, 0, 1, count).busy for task in orders[0])
        device[0] += parts[0].left_us
    for number, part in enumerate(parts):
        stage, update = number % stages, part.of(UPDATE)
        alone = 0.0 if full else host[stage] + update.alone
        begin = float(device[stage, 0])
        device[stage] = np.maximum(alone, device[stage] + update.busy)
        host[stage] += update.host
        slots.append(
            Slot(stage, number // stages, count, "optimizer", begin, float(device[stage, 0]))
        )
    return Schedule(np.maximum(host, device).max(axis=0), host, slots)


def _taken(parts: Sequence[PartPasses], task: Task, stage: int, stages: int, count: int) -> Pass:
    """What a pass of a stage takes."""
    part = parts[task.chunk * stages + stage]
    if task.forward:
        return part.forward
    return part.last_backward if task.micro_batch == count - 1 else part.backward


def _walked(
    orders: Sequence[Sequence[Task]], parts: Sequence[PartPasses], count: int, moved_us: Array
) -> tuple[Array, Array, list[Slot]]:
    """Ends of hosts and devices after all passes and what they exchange, shape (stages, draws), and what each stage does."""
    stages = len(orders)
    host, device = np.zeros((stages, len(moved_us))), np.full((stages, len(moved_us)), -np.inf)
    exchanged = device.copy()
    arrived: dict[tuple[int, int, bool], Array] = {}
    passed, slots = [0] * stages, list[Slot]()
    moving = True
    while moving:
        moving = False
        for stage, tasks in enumerate(orders):
            while passed[stage] < len(tasks):
                task = tasks[passed[stage]]
                part = task.chunk * stages + stage
                before = part - 1 if task.forward else part + 1
                needs, key = 0 <= before < len(parts), (before, task.micro_batch, task.forward)
                if needs and key not in arrived:
                    break
                taken = _taken(parts, task, stage, stages, count)
                ready = np.maximum(device[stage], arrived.pop(key)) if needs else device[stage]
                begin = float(np.maximum(host[stage], ready)[0])
                device[stage] = np.maximum(host[stage] + taken.alone, ready + taken.busy)
                phase, end = FORWARD if task.forward else BACKWARD, float(device[stage, 0])
                slots.append(Slot(stage, task.chunk, task.micro_batch, phase, begin, end))
                host[stage] += taken.host
                arrived[part, task.micro_batch, task.forward] = device[stage] + moved_us
                if not task.forward and task.micro_batch == count - 1:
                    ready = np.maximum(exchanged[stage], device[stage])
                    exchanged[stage] = ready + parts[part].left_us
                    begin, end = float(ready[0]), float(exchanged[stage, 0])
                    slots.append(
                        Slot(stage, task.chunk, task.micro_batch, "communication", begin, end)
                    )
                passed[stage] += 1
                moving = True
    return host, np.maximum(device, exchanged), slots
