"""What would make a traced step faster: changes of its program, simulated with the kernel times of the trace.

A trace does not hold the code of the step. Only changes of its launches and waits can be predicted: CUDA graphs, fewer
waits of the host, and removed operators. Kernel times stay as traced. The interval comes from host times, which are drawn
with the width of measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.advice import Advice, Refused, take_best_first
from pipeline.answers.drawn_step import DrawnStep
from pipeline.answers.step_changes import SAME
from pipeline.answers.step_errors import HOST_SIGMA, StepErrors, interval
from pipeline.arrays import Array, Flags
from pipeline.prediction import Prediction
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Kind, Program
from pipeline.simulate.program_changes import as_cuda_graphs

DRAWS = 256
"""Number of draws of host times for the interval of a gain."""


@dataclass(frozen=True)
class ChangeableStep:
    """A program with its kernel times in µs, shape (calls,)."""

    program: Program
    kernel_us: Array


@dataclass(frozen=True)
class TraceChange:
    """A change of a traced step."""

    text: str
    how: str
    apply: Callable[[ChangeableStep], ChangeableStep]
    changes: str = SAME


def advise_trace(step: ChangeableStep, traced: Prediction, same_results: bool = False) -> Advice:
    """What would make a traced step faster, best first.

    Args:
        step: the traced iteration.
        traced: the prediction of the trace on its own GPU, which equals its measurement.
        same_results: leave out what changes the results of the step by more than rounding.
    """
    scale = traced.predicted_us / _step_us(step)
    before = _predicted(step, traced, scale)

    def predicted(
        at: ChangeableStep, changes: Sequence[TraceChange]
    ) -> dict[TraceChange, Prediction]:
        return {change: _predicted(change.apply(at), traced, scale) for change in changes}

    wanted = [change for change in changes_of(step) if not same_results or change.changes == SAME]
    lines, after, alone = take_best_first(
        before,
        step,
        wanted,
        predicted,
        lambda at, change: change.apply(at),
        lambda _at, _change: "",  # no command makes the change of a trace
    )
    taken = {line.change for line in lines}
    refused = [
        Refused(change.text, gain, "does not help")
        for change, gain in alone.items()
        if change.text not in taken
    ]
    notes = [*traced.notes, *traced.warnings, "kernel times are those of the trace"]
    if traced.traced is not None and traced.traced.time_per_batch_us is None:
        notes.append(
            "the trace has one iteration: its host times may include work that is done once"
        )
    return Advice(before, tuple(lines), after, tuple(refused), tuple(notes))


def changes_of(step: ChangeableStep) -> Iterator[TraceChange]:
    """The changes that apply to a traced step."""
    program = step.program
    names = program.items.name[program.item]
    for name in dict.fromkeys(names[program.kind == Kind.SYNC]):
        waits = (names == name) & (program.kind == Kind.SYNC)
        how = f"do not read results of the device in {name}"
        yield TraceChange(f"no wait in {name}", how, partial(_without_waits, waits=waits))
    if program.blocking.any():
        how = "DataLoader(pin_memory=True), .to(device, non_blocking=True)"
        yield TraceChange("non-blocking copies", how, _unblocked)
    if program.further is None:
        yield TraceChange("CUDA graphs", "torch.cuda.make_graphed_callables", _as_cuda_graphs)
    dropout = np.array(["dropout" in str(name).lower() for name in names], dtype=bool)
    if (dropout & (program.call >= 0)).any():
        change = partial(_without, rows=dropout)
        yield TraceChange("no dropout", "dropout=0", change, "training has no dropout")


def _with(step: ChangeableStep, **changes: Any) -> ChangeableStep:
    return replace(step, program=replace(step.program, **changes))


def _unblocked(step: ChangeableStep) -> ChangeableStep:
    return _with(step, blocking=np.zeros_like(step.program.blocking))


def _as_cuda_graphs(step: ChangeableStep) -> ChangeableStep:
    return replace(step, program=as_cuda_graphs(step.program))


def _without_waits(step: ChangeableStep, waits: Flags) -> ChangeableStep:
    kind = np.where(waits, int(Kind.HOST), step.program.kind)
    return _with(step, kind=kind, api_us=np.where(waits, 0.0, step.program.api_us))


TIMES_OF_ROWS = ("lead_us", "gap_us", "api_us", "tail_us", "latency_us", "kernel_gap_us")
"""The times of a program's rows."""


def _without(step: ChangeableStep, rows: Flags) -> ChangeableStep:
    """Rows and their kernels take no time."""
    program, kernel_us = step.program, step.kernel_us.copy()
    kernel_us[program.call[rows & (program.call >= 0)]] = 0.0
    times = {name: np.where(rows, 0.0, getattr(program, name)) for name in TIMES_OF_ROWS}
    return replace(_with(step, **times), kernel_us=kernel_us)


def _step_us(step: ChangeableStep) -> float:
    return float(simulate(step.program, step.kernel_us).step_us[0])


def _predicted(step: ChangeableStep, traced: Prediction, scale: float) -> Prediction:
    """The prediction of a changed step, with its draws. `scale` is the ratio of the traced to the simulated step."""
    program, kernel_us = step.program, step.kernel_us
    timeline = simulate(program, kernel_us)
    count, host = len(kernel_us), HOST_SIGMA["measured"]
    errors = StepErrors.of_launches(kernel_us, [""] * count, np.zeros(count), 0.0, host)
    drawn = DrawnStep(errors, program, np.arange(count), pd.DataFrame(), traced.gpu, DRAWS)
    drawn_us = drawn.step_us() * scale
    us = float(timeline.step_us[0]) * scale
    low, high = interval(drawn_us, us)
    return replace(
        traced,
        predicted_us=us,
        p10_us=low,
        p90_us=high,
        draws_us=drawn_us,
        active_us=float(timeline.active_us[0]) * scale,
        host_us=float(timeline.host_us[0]) * scale,
        bound=timeline.bound,
    )
