"""What would make a traced step faster: changes of its program, simulated with the kernel times of the trace.

A trace does not hold the code of the step. Only changes of its launches and waits can be predicted: CUDA graphs, fewer
waits of the host, and removed operators. Kernel times stay as traced. The interval comes from host times, which are drawn
with the width of measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from pipeline.answers.advice import Advice, Line, Refused, take_best_first
from pipeline.answers.step_changes import SAME
from pipeline.answers.step_errors import host_sigma, keyed_normals
from pipeline.prediction import Prediction
from pipeline.simulate.critical_path import simulate, step_times
from pipeline.simulate.program import Kind, Program
from pipeline.simulate.program_changes import as_cuda_graphs

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]

DRAWS = 200
"""Number of draws of host times for the interval of a gain."""

HOST_EVIDENCE = {"measured": 1.0}
"""Evidence of the host times of a trace."""


@dataclass(frozen=True)
class ChangeableStep:
    """A program with its kernel times in µs, shape (calls,)."""

    program: Program
    kernel_us: Floats


@dataclass(frozen=True)
class TraceChange:
    """A change of a traced step."""

    name: str
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
    taken, alone_of = take_best_first(
        before, step, wanted, predicted, lambda at, change: change.apply(at)
    )
    lines = [
        Line(
            change.candidate.name,
            change.candidate.how,
            change.alone,
            change.on_top,
            change.candidate.changes,
            traced.evidence,
            "",
        )
        for change in taken
    ]
    chosen = {line.change for line in lines}
    refused = tuple(
        Refused(change.name, gain, "does not help")
        for change, gain in alone_of.items()
        if change.name not in chosen
    )
    notes = [*traced.notes, *traced.warnings, "kernel times are those of the trace"]
    if traced.traced is not None and traced.traced.time_per_batch_us is None:
        notes.append(
            "the trace has one iteration: its host times may include work that is done once"
        )
    return Advice(before, tuple(lines), taken[-1].after if taken else before, refused, tuple(notes))


def changes_of(step: ChangeableStep) -> Iterator[TraceChange]:
    """The changes that apply to a traced step."""
    program = step.program
    names = program.items.name[program.item]
    for name in dict.fromkeys(names[program.kind == Kind.SYNC]):
        waits = (names == name) & (program.kind == Kind.SYNC)
        change = _changed(partial(_without_waits, waits=waits))
        yield TraceChange(
            f"no wait in {name}", f"do not read results of the device in {name}", change
        )
    if program.blocking.any():
        how = "DataLoader(pin_memory=True), .to(device, non_blocking=True)"
        unblocked = np.zeros_like(program.blocking)
        yield TraceChange(
            "non-blocking copies", how, _changed(lambda before: replace(before, blocking=unblocked))
        )
    if program.further is None:
        yield TraceChange(
            "CUDA graphs", "torch.cuda.make_graphed_callables", _changed(as_cuda_graphs)
        )
    dropout = np.array(["dropout" in str(name).lower() for name in names], dtype=bool)
    if (dropout & (program.call >= 0)).any():
        yield TraceChange("no dropout", "dropout=0", _without(dropout), "training has no dropout")


def _changed(change: Callable[[Program], Program]) -> Callable[[ChangeableStep], ChangeableStep]:
    return lambda step: replace(step, program=change(step.program))


def _without_waits(program: Program, waits: Rows) -> Program:
    kind, api_us = (
        np.where(waits, int(Kind.HOST), program.kind),
        np.where(waits, 0.0, program.api_us),
    )
    return replace(program, kind=kind, api_us=api_us)


def _without(rows: Rows) -> Callable[[ChangeableStep], ChangeableStep]:
    """Rows and their kernels take no time."""

    def apply(step: ChangeableStep) -> ChangeableStep:
        program, kernel_us = step.program, step.kernel_us.copy()
        kernel_us[program.call[rows & (program.call >= 0)]] = 0.0
        lead, gap, api, tail, latency, kernel_gap = (
            np.where(rows, 0.0, times)
            for times in (
                program.lead_us,
                program.gap_us,
                program.api_us,
                program.tail_us,
                program.latency_us,
                program.kernel_gap_us,
            )
        )
        shorter = replace(
            program,
            lead_us=lead,
            gap_us=gap,
            api_us=api,
            tail_us=tail,
            latency_us=latency,
            kernel_gap_us=kernel_gap,
        )
        return ChangeableStep(shorter, kernel_us)

    return apply


def _step_us(step: ChangeableStep) -> float:
    return float(simulate(step.program, step.kernel_us).step_us[0])


def _predicted(step: ChangeableStep, traced: Prediction, scale: float) -> Prediction:
    """The prediction of a changed step, with its draws. `scale` is the ratio of the traced to the simulated step."""
    timeline = simulate(step.program, step.kernel_us)
    host = np.exp(host_sigma(HOST_EVIDENCE) * keyed_normals(["host"], DRAWS, 0)[0])
    times = np.repeat(step.kernel_us[:, None], DRAWS, axis=1)
    drawn = step_times(step.program, times, np.arange(len(step.kernel_us)), host) * scale
    us = float(timeline.step_us[0]) * scale
    low, high = np.percentile(drawn, [10, 90])
    return replace(
        traced,
        predicted_us=us,
        p10_us=float(min(low, us)),
        p90_us=float(max(high, us)),
        draws_us=drawn,
        active_us=float(timeline.active_us[0]) * scale,
        host_us=float(timeline.host_us[0]) * scale,
        bound=timeline.bound,
    )
