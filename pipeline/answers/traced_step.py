"""A traced step on other GPUs: host times stay as traced, and kernel times are transferred."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.advice import Advice
from pipeline.answers.difference import Difference, difference
from pipeline.answers.drawn_step import DrawnStep
from pipeline.answers.step_errors import NORMAL_P90, StepErrors, interval
from pipeline.answers.step_power import StepPower
from pipeline.answers.trace_advice import ChangeableStep, advise_trace
from pipeline.answers.traced_power import run_at, slowed, traced_power
from pipeline.arrays import Array
from pipeline.errors import InputError, SteptimeWarning, UnknownNameError
from pipeline.hardware.find_gpu import describe_gpu, list_gpus, load_gpu, nearest_gpu, nearest_name
from pipeline.hardware.spec import GpuSpec
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import summarise
from pipeline.prediction import AS_TRACED, ASKED, RUN_AT, Prediction
from pipeline.prediction_parts import TracedStep
from pipeline.prices import with_prices
from pipeline.readable import milliseconds
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import device_bound_from
from pipeline.simulate.replay import build
from pipeline.simulate.trace_program import Iteration, queued_before_us, time_per_batch_us
from pipeline.simulate.trace_selection import TraceSelection, learn, not_in_trace
from pipeline.trace.linked_trace import PREDICT_INSTEAD, UNNAMED, Trace
from pipeline.transfer.trace_calls import (
    named_families,
    precision_notes,
    trace_calls,
    traced_arithmetic,
    transferred,
)

DRAWS = 256
"""Number of draws of kernel times for the interval of a step. Each call of a trace is a row of them."""

MAX_SCALE = 0.2
"""Relative difference between the measured and the simulated step of a trace from which a prediction is warned of."""

SHARED_SHARE = 0.5
"""Share of a transfer's log-variance that all kernels have in common, because the errors of one method have the same
sign."""


@dataclass(repr=False)
class TrackedTrace(Trace):
    """A linked trace whose step can be moved to other GPUs.

    Attributes:
        batch_size: samples per step, for throughput and cost; with 1, both are per step.
        model: name for reports.
        gpu: the GPU that was traced, where the trace does not name it; a name, alias or path of a file.
    """

    batch_size: int = 1
    model: str = ""
    gpu: str = ""

    @classmethod
    def of(cls, trace: Trace, batch_size: int = 1, model: str = "", gpu: str = "") -> TrackedTrace:
        """A linked trace with samples per step; its name is by default from its path (`workload_name`).

        Raises:
            InputError: the batch size is not a whole number of at least 1.
        """
        check_batch_size(batch_size)
        linked = {each.name: getattr(trace, each.name) for each in fields(Trace)}
        return cls(
            **linked, batch_size=batch_size, model=model or workload_name(trace.path), gpu=gpu
        )

    @cached_property
    def origin(self) -> GpuSpec:
        """The GPU that was traced.

        Raises:
            InputError: nothing ran on a GPU, or there is no specification of it.
        """
        if self.device in ("", "cpu"):
            raise InputError(
                f"{self.path}: nothing ran on a GPU, so there is no kernel time to scale;"
                f" {PREDICT_INSTEAD}{self._first_shapes}"
            )
        try:
            return load_gpu(self.gpu or self.device)
        except UnknownNameError:
            if self.gpu:
                raise
            near = nearest_gpu(self.metadata.get("deviceProperties"), self.device)
            near = near or nearest_name(self.device)
            like = f'"{near}") (the nearest)' if near else '"NAME")'
            named = f"no GPU file has the name {self.device}"
            named = "the trace does not name its GPU" if self.device == UNNAMED else named
            raise InputError(
                f"{self.path}: {named}: say which GPU it is, load_trace(path, gpu={like}, for"
                f" commands gpu={near or 'NAME'}; {describe_gpu()}"
            ) from None

    @cached_property
    def _steps(self) -> _Steps:
        return _Steps.of(self)

    @property
    def _first_shapes(self) -> str:
        """The first operator with the shapes of a tensor that were recorded, and these; empty where none were."""
        told = self.events["input_shapes"].str.contains(r"\d", na=False)
        first = self.events.loc[told, ["name", "input_shapes"]][:1]
        return "".join(
            f" (first: {name} {shapes})" for name, shapes in first.itertuples(index=False)
        )

    def calls(self, gpu: str) -> pd.DataFrame:
        """Device calls of one iteration with their time on the origin and on `gpu`, and the method of each."""
        frame = self._steps.calls
        return frame.join(transferred(frame, self.origin, load_gpu(gpu)))

    def to(
        self, gpu: str, power_limit_w: float | None = None, clock_mhz: float | None = None
    ) -> Prediction:
        """The step on another GPU: host times stay as traced, and kernel times are transferred.

        A power limit or a locked clock slows kernels (`pipeline.answers.traced_power`); the traced card ran under its own limit.
        The program of the traced iteration (`pipeline.simulate`) runs with both sets of kernel times. The ratio of the
        two steps scales the measured span. For the origin itself, the result is therefore its measurement.
        A ratio far from 1 is a warning, also of the prediction: the trace then holds too little, or something else.

        Raises:
            UnknownNameError: no such GPU.
            ConfigError: the GPU does not take the limit or the clock.
            InputError: the trace holds no work of a GPU that has a specification.
        """
        destination, steps = load_gpu(gpu), self._steps
        limited = run_at(destination, power_limit_w, clock_mhz)
        at_origin = limited == self.origin
        moved, power = steps.on(self.origin, limited)
        predicted = moved["predicted_us"].to_numpy(np.float64)
        there = simulate(steps.program, predicted)
        step_us = float(there.step_us[0]) * steps.scale
        active_us = float(min(there.active_us[0], step_us))
        asked = zip(RUN_AT, (power_limit_w, clock_mhz), strict=True)
        low, high = interval(steps.drawn_us(moved, destination.name), step_us)
        notes = (*steps.notes, *self.origin.notes, *destination.notes)
        for note in notes:
            warnings.warn(note, SteptimeWarning, stacklevel=2)
        bound = there.bound
        return Prediction(
            gpu=destination.name,
            model=self.model,
            variant="traced",
            batch_size=self.batch_size,
            predicted_us=step_us,
            active_us=active_us,
            power=power.answer(step_us, active_us, bound),
            overrides=tuple(f"{key}{value:g}" for key, value in asked if value is not None),
            host_us=float(min(there.host_us[0], step_us)),
            p10_us=low,
            p90_us=high,
            bound=bound,
            memory_bytes=0,
            fits=True,
            measured_us=steps.step_us if at_origin else None,
            host=AS_TRACED,
            asked=dict.fromkeys(ASKED[:2], AS_TRACED),
            device_bound_from=(
                device_bound_from(steps.program, predicted) if bound == "host" else None
            ),
            traced=steps.traced(self.origin.name),
            arithmetic=traced_arithmetic(steps.calls, destination),
            notes=(
                *self.notes,
                *(() if at_origin else precision_notes(steps.calls, destination)),
            ),
            warnings=notes,
            **_device_time(steps.calls, moved, at_origin),
        )

    @property
    def measured(self) -> Prediction:
        """The step on the GPU that was traced, as it was measured."""
        return self.to(self.origin.name)

    def diff(self, other: Prediction) -> Difference:
        """What makes a prediction shorter or longer than the trace."""
        return difference(self.measured, other)

    def advise(self, same_results: bool = False) -> Advice:
        """What would make the traced step faster on its own GPU, best first (`pipeline.answers.trace_advice`).

        Args:
            same_results: leave out what changes the results of the step by more than rounding.

        Raises:
            InputError: the trace holds no work of a GPU that has a specification.
        """
        measured = self._steps.calls["latency_us"].to_numpy(dtype=np.float64)
        return advise_trace(
            ChangeableStep(self._steps.program, measured), self.measured, same_results
        )

    def to_all(self, gpus: Sequence[str] = (), prices: str | Path | None = None) -> pd.DataFrame:
        """Every GPU side by side, fastest first.

        Returns:
            Columns `gpu, predicted_us, p10_us, p90_us, samples_per_s, bound`, and the costs of `with_prices`
            (`prices` names another price list).
        """
        named = [gpus] if isinstance(gpus, str) else gpus  # a name is a sequence, too
        names = list(filter(None, named)) or [spec.name for spec in list_gpus()]
        columns = ("gpu", "predicted_us", "p10_us", "p90_us", "samples_per_s", "bound")
        rows = [[getattr(p, name) for name in columns] for p in map(self.to, names)]
        table = pd.DataFrame(rows, columns=list(columns))
        return with_prices(table, prices).sort_values("predicted_us", ignore_index=True)


def _errors(calls: pd.DataFrame, moved: pd.DataFrame) -> StepErrors:
    """Errors of transferred kernel times; launches of one kernel with one grid share theirs."""
    predicted, upper = (moved[name].to_numpy(np.float64) for name in ("predicted_us", "p90_us"))
    ratio = np.divide(upper, predicted, out=np.ones_like(upper), where=predicted > 0)
    launches = calls["kernel_name"].astype(str) + calls["grid"].astype(str)
    return StepErrors.of_launches(
        predicted, launches.tolist(), np.log(ratio) / NORMAL_P90, SHARED_SHARE, host=0.0
    )


def _device_time(calls: pd.DataFrame, moved: pd.DataFrame, at_origin: bool) -> dict[str, Any]:
    """Device time of a traced step by evidence and family, and its calls, as fields of a `Prediction`."""
    predicted, family = moved["predicted_us"].to_numpy(np.float64), named_families(calls)
    families = pd.Series(predicted).groupby(family).sum().sort_values(ascending=False)
    unchanged = predicted[(moved["method"] == "unchanged").to_numpy()].sum()
    evidence = {"measured" if at_origin else "transferred": 1.0}
    table = {
        "node_id": calls["step_event"],
        "name": calls["step_op"],
        "module": None,
        "family": family,
        "call": np.arange(len(calls)),
        "kernel_us": predicted,
        "device_end_us": 0.0,
    }
    return {
        "evidence": evidence,
        "host_evidence": dict(evidence),
        "unmodelled_share": 0.0 if at_origin else float(unchanged / max(predicted.sum(), 1e-12)),
        "families_us": {str(name): float(value) for name, value in families.items()},
        "calls": pd.DataFrame(table),
    }


GENERIC_NAMES = ("kineto", "trace", "pt")
"""Words of the names of trace files that say nothing about the workload."""


def workload_name(path: Path) -> str:
    """Name of the workload of a trace: its file's name, with the folder's name in front if the file's is generic.

    `v100_ddp/kineto.json.gz` is `v100_ddp`, and `v100x8_dlrm/rank0_kineto.json.gz` is `v100x8_dlrm_rank0`.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    words = [word for word in stem.replace(".", "_").split("_") if word]
    telling = [word for word in words if word not in GENERIC_NAMES]
    if len(telling) == len(words):
        return stem
    return "_".join([word for word in (path.parent.name,) if word] + telling) or stem


def check_batch_size(batch_size: object) -> None:
    """Check the samples of a step.

    Raises:
        InputError: they are no whole number of at least 1.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size={batch_size!r}: give a whole number of samples, 1 or more")


@dataclass(frozen=True)
class _Steps:
    """The iteration that stands for the trace (the median one), its program and its calls.

    A host that runs ahead begins a step while the device still works on the previous step. That wait is not part of the
    step. Its time counts from the end of the earlier work, and its program starts on an idle device.
    """

    program: Program
    calls: pd.DataFrame
    step_us: float
    queued_us: float
    time_per_batch_us: float | None
    not_in_trace: tuple[str, ...]

    @cached_property
    def scale(self) -> float:
        """Ratio of the measured step to the step that is simulated from its recorded work."""
        measured = self.calls["latency_us"].to_numpy(np.float64)
        return self.step_us / float(simulate(self.program, measured).step_us[0])

    def on(self, origin: GpuSpec, gpu: GpuSpec) -> tuple[pd.DataFrame, StepPower]:
        """Times of the calls on a GPU, at the limit or the clock that was asked for, and its power."""
        moved = transferred(self.calls, origin, gpu.unlimited)
        there = simulate(self.program, moved["predicted_us"].to_numpy(np.float64))
        idle_us = max(float(there.step_us[0] - there.active_us[0]), 0.0)
        power = traced_power(self.calls, moved, gpu, idle_us)
        return slowed(moved, power.factor) if gpu.run_at else moved, power

    def drawn_us(self, moved: pd.DataFrame, gpu: str) -> Array:
        """The step in each draw of the errors of such times, µs, shape (draws,)."""
        errors, which = _errors(self.calls, moved), np.arange(len(self.calls))
        drawn = DrawnStep(errors, self.program, which, self.calls, gpu, DRAWS)
        return drawn.step_us() * self.scale

    @property
    def notes(self) -> list[str]:
        """What predictions must say of this trace."""
        if 1.0 / (1.0 + MAX_SCALE) < self.scale < 1.0 + MAX_SCALE:
            return list(self.not_in_trace)
        simulated, measured = milliseconds(self.step_us / self.scale), milliseconds(self.step_us)
        return [
            f"simulated from its recorded work, the traced step takes {simulated}, measured"
            f" {measured}: its prediction is scaled by that ratio, {self.scale:.2f}",
            *self.not_in_trace,
        ]

    def traced(self, gpu: str) -> TracedStep:
        """The measured times of the iteration."""
        span_us = self.queued_us + self.step_us
        return TracedStep(gpu, span_us, self.queued_us, self.step_us, self.time_per_batch_us)

    @classmethod
    def of(cls, trace: Trace) -> _Steps:
        source = TraceSelection.of(trace)
        chosen = [
            iteration
            for iteration in source.chosen
            if iteration.span_us > 0 and len(iteration.calls)
        ]
        if not chosen:
            raise InputError(
                f"{trace.path}: no iteration has device events; trace at least one whole step"
            )
        per_batch = time_per_batch_us(chosen)
        source = source.only(chosen).after_warm_up
        samples, waits = learn([source])

        def own_us(iteration: Iteration) -> float:
            return iteration.span_us - queued_before_us(source.act, iteration)

        middle = sorted(source.chosen, key=own_us)[len(source.chosen) // 2]
        program = build(source, middle, OverheadModel(summarise(samples)), waits)
        program = replace(program, backlog_us=np.zeros_like(program.backlog_us))
        queued = queued_before_us(source.act, middle)
        return cls(
            program,
            trace_calls(source.act, middle.calls),
            own_us(middle),
            queued,
            per_batch,
            tuple(not_in_trace(source.only([middle]))),
        )
