"""Replaying a trace: how well host statistics and the critical path explain iterations they have not seen.

The evaluated iteration gives its order of calls, device durations and backlog; host time and waiting are predicted.
Without other traces the first iteration is dropped where there are three or more, and the rest is cut into two halves,
each predicted with statistics of the other. Two baselines keep the figures honest: the sum of kernel times, and the
mean span of the iterations that statistics come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import TraceError
from pipeline.overheads.extract import ItemKeys, extract_overheads, item_keys
from pipeline.overheads.model import OverheadModel
from pipeline.overheads.statistics import summarise
from pipeline.predict.critical_path import Form, simulate
from pipeline.predict.program import Program
from pipeline.predict.timeline import Timeline
from pipeline.predict.trace_program import Iteration, iterations, program_from_trace
from pipeline.predict.waits import WaitModel
from pipeline.trace.activity import Activity, activity
from pipeline.trace.load import Trace, load_trace

if TYPE_CHECKING:
    from rich.table import Table

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Options:
    """What may be switched off or exchanged, for ablations.

    Attributes:
        estimator: how overhead statistics are taken (`pipeline.overheads.statistics.ESTIMATORS`).
        form: `full` or `published` critical path.
        signatures: look overheads up by full signature first.
        event_waits: keep waits between streams.
        host_waits: keep waits of the host (synchronisation, blocking copies).
        queue: keep the limit of the launch queue.
        occupancy: kernels that fill the device hold up other streams.
        threads: T1 by thread switch and by the op before.
        device_constants: launch latency and kernel gap from the trace; otherwise T4/2 and 1 us.
    """

    estimator: str = "clipped_mean"
    form: Form = "full"
    signatures: bool = True
    event_waits: bool = True
    host_waits: bool = True
    queue: bool = True
    occupancy: bool = True
    threads: bool = True
    device_constants: bool = True


PUBLISHED = Options(estimator="trimmed_mean", form="published", signatures=False, threads=False)
"""Algorithm 1 with statistics per op name, outliers beyond 1.5 IQR removed (Lin et al.)."""


@dataclass(frozen=True)
class Source:
    """A trace to learn from or to evaluate: its activity, keys, and which of its iterations count."""

    act: Activity
    keys: ItemKeys
    chosen: tuple[Iteration, ...]

    @classmethod
    def of(cls, trace: Trace) -> Source:
        """All iterations of a trace that hold work."""
        act = activity(trace)
        return cls(act, item_keys(act), tuple(iterations(act)))

    def only(self, chosen: Sequence[Iteration]) -> Source:
        """The same trace with fewer iterations."""
        return Source(self.act, self.keys, tuple(chosen))

    @property
    def flags(self) -> Flags:
        """Which iterations of the trace count."""
        out = np.zeros(len(self.act.trace.opens), bool)
        out[[iteration.number for iteration in self.chosen]] = True
        return out


@dataclass(frozen=True)
class Replayed:
    """One evaluated iteration.

    Attributes:
        iteration: the measured one.
        program: its program.
        timeline: the simulated one.
        train_mean_us: mean span of the iterations that the statistics come from.
    """

    iteration: Iteration
    program: Program
    timeline: Timeline
    train_mean_us: float

    @property
    def predicted_us(self) -> float:
        """Predicted span."""
        return float(self.timeline.step_us[0])

    @property
    def error(self) -> float:
        """Predicted over measured span, less 1."""
        return self.predicted_us / self.iteration.span_us - 1.0


@dataclass(frozen=True)
class ReplayResult:
    """All evaluated iterations of a trace with what they were predicted from."""

    trace: Trace
    split: str
    replayed: tuple[Replayed, ...]
    overheads: pd.DataFrame
    notes: tuple[str, ...] = field(default=())

    def mean(self, what: str) -> float:
        """Mean over the evaluated iterations: `measured`, `predicted`, `active_measured`, `active_predicted`, ..."""
        pick: dict[str, Callable[[Replayed], float]] = {
            "measured": lambda r: r.iteration.span_us,
            "predicted": lambda r: r.predicted_us,
            "active_measured": lambda r: r.iteration.active_us,
            "active_predicted": lambda r: float(r.timeline.active_us[0]),
            "host": lambda r: float(r.timeline.host_us[0]),
            "kernel_sum": lambda r: float(r.iteration.kernel_us.sum()),
            "train_mean": lambda r: r.train_mean_us,
            "absolute_error": lambda r: abs(r.error),
        }
        return float(np.mean([pick[what](r) for r in self.replayed]))

    def as_dict(self) -> dict[str, Any]:
        """What `steptime replay --json` prints."""
        measured = self.mean("measured")
        return {
            "trace": str(self.trace.path),
            "device": self.trace.device,
            "marker": self.trace.marker,
            "iterations": len(self.replayed),
            "split": self.split,
            "measured_us": measured,
            "predicted_us": self.mean("predicted"),
            "error": self.mean("predicted") / measured - 1.0,
            "mean_absolute_error": self.mean("absolute_error"),
            "active_measured_us": self.mean("active_measured"),
            "active_predicted_us": self.mean("active_predicted"),
            "host_us": self.mean("host"),
            "baselines": {
                "kernel_sum_us": self.mean("kernel_sum"),
                "kernel_sum_error": self.mean("kernel_sum") / measured - 1.0,
                "kernel_sum_mean_absolute_error": self._baseline_error("kernel_sum"),
                "train_mean_us": self.mean("train_mean"),
                "train_mean_error": self.mean("train_mean") / measured - 1.0,
                "train_mean_mean_absolute_error": self._baseline_error("train_mean"),
            },
            "overheads": self.overhead_summary(),
            "host_evidence": {
                "own_op_share": float(1 - np.mean([r.program.unmatched_host_share for r in self.replayed])),
            },
            "per_iteration": [
                {"iteration": r.iteration.number, "measured_us": r.iteration.span_us, "predicted_us": r.predicted_us,
                 "error": r.error} for r in self.replayed
            ],
            "notes": [*self.trace.notes, *self.notes],
        }  # fmt: skip

    def table(self) -> Table:
        """The same as a rich table for the terminal."""
        from pipeline.predict.replay_table import table

        return table(self.as_dict())

    def _baseline_error(self, which: str) -> float:
        value = {
            "kernel_sum": [r.iteration.kernel_us.sum() for r in self.replayed],
            "train_mean": [r.train_mean_us for r in self.replayed],
        }[which]
        spans = np.array([r.iteration.span_us for r in self.replayed])
        return float(np.mean(np.abs(np.array(value) / spans - 1.0)))

    def overhead_summary(self) -> dict[str, dict[str, float]]:
        """Mean, median and number of observations per overhead type, over all ops."""
        frame = self.overheads
        kinds = sorted(frame["type"].unique()) if len(frame) else []
        return {
            str(kind): {
                "mean_us": float(values.mean()), "median_us": float(values.median()), "count": int(values.size),
            }
            for kind in kinds if len(values := frame.loc[frame["type"] == kind, "value_us"])
        }  # fmt: skip


def replay(
    path: str | Path,
    overheads: Sequence[str | Path] = (),
    options: Options | None = None,
    timeline: str | Path | None = None,
) -> ReplayResult:
    """Replay a trace from statistics of other iterations of it, or of other traces.

    Args:
        path: the trace to explain.
        overheads: traces to take statistics from; without any, the halves of `path` predict each other.
        options: switches for ablations.
        timeline: where to write the predicted iterations for Perfetto, with the measured trace's time axis.

    Raises:
        TraceError: a file cannot be read, or holds no operators to replay.
    """
    target = Source.of(load_trace(path))
    if not target.chosen or not any(iteration.span_us > 0 for iteration in target.chosen):
        raise TraceError(
            f"{path}: no operators in any iteration; record the trace with activities=[CPU, CUDA] and at least one step"
        )
    target = target.only([iteration for iteration in target.chosen if iteration.span_us > 0])
    others = [Source.of(load_trace(other)) for other in overheads]
    for other, source in zip(overheads, others, strict=True):
        if not source.chosen:
            raise TraceError(f"{other}: no operators in any iteration; nothing to learn overheads from")
    result = replay_source(target, others, options)
    if timeline is not None:
        _write(target, result.replayed, timeline)
    return result


def replay_source(target: Source, others: Sequence[Source] = (), options: Options | None = None) -> ReplayResult:
    """`replay` for traces that are loaded already (several options on one trace)."""
    options = options or Options()
    replayed: list[Replayed] = []
    samples = []
    split, folds = _folds(target, list(others))
    for train, test in folds:
        seen = learn(train)
        samples.append(seen[0])
        replayed += list(_evaluate(test, train, seen, options))
    replayed.sort(key=lambda r: r.iteration.number)
    notes = ["one iteration only: predicted from its own statistics, no held-out figure"] if split == "none" else []
    return ReplayResult(target.act.trace, split, tuple(replayed), pd.concat(samples, ignore_index=True), tuple(notes))


def _write(target: Source, replayed: Sequence[Replayed], path: str | Path) -> None:
    from pipeline.predict.perfetto import write_timeline

    trace, events = target.act.trace, target.act.call_event
    base = int(trace.metadata.get("baseTimeNanoseconds", 0))
    steps = [(r.timeline, (r.iteration.start_ns - base) / 1000.0) for r in replayed]
    write_timeline(steps, path, names=[list(trace.names[events[r.iteration.calls]]) for r in replayed])


def _folds(target: Source, others: list[Source]) -> tuple[str, list[tuple[list[Source], Source]]]:
    """How statistics and evaluation are kept apart: name of the split, and (train, test) pairs."""
    if others:
        return "other traces", [(others, target)]
    chosen = target.chosen[1:] if len(target.chosen) >= 3 else target.chosen
    half = len(chosen) // 2
    if not half:
        return "none", [([target], target)]
    first, second = target.only(chosen[:half]), target.only(chosen[half:])
    return "halves", [([second], first), ([first], second)]


def learn(train: Sequence[Source]) -> tuple[pd.DataFrame, WaitModel]:
    """Overhead observations and stream waits of the iterations to learn from."""
    samples = [extract_overheads(source.act, source.act.trace.path.name, source.flags, source.keys) for source in train]
    waits = WaitModel()
    for source in train:
        waits.learn(source.act, source.keys, source.chosen)
    return pd.concat(samples, ignore_index=True), waits


def _evaluate(
    test: Source, train: Sequence[Source], seen: tuple[pd.DataFrame, WaitModel], options: Options
) -> Iterator[Replayed]:
    samples, waits = seen
    table = summarise(samples, estimator=options.estimator, signatures=options.signatures)
    table = _ablated(table, options)
    model = OverheadModel(table)
    mean = float(np.mean([iteration.span_us for source in train for iteration in source.chosen]))
    for iteration in test.chosen:
        program = build(test, iteration, model, waits, options)
        timeline = simulate(program, iteration.kernel_us, form=options.form)
        yield Replayed(iteration, program, timeline, mean)


def build(
    source: Source, iteration: Iteration, model: OverheadModel, waits: WaitModel, options: Options | None = None
) -> Program:
    """Program of one iteration, with parts left out as the options say."""
    from dataclasses import replace

    options = options or Options()
    edges = waits.edges(source.act, source.keys, iteration) if options.event_waits and options.form == "full" else {}
    program = program_from_trace(source.act, source.keys, iteration, model, edges)
    if not options.host_waits:
        program = replace(
            program, blocking=np.zeros(len(program), bool), kind=np.where(program.kind == 2, 0, program.kind)
        )
    if not options.queue:
        program = replace(program, queue_depth=0)
    if not options.occupancy:
        program = replace(program, fills=None, competes=None)
    if not options.device_constants:
        program = replace(program, latency_us=program.api_us / 2, kernel_gap_us=np.ones(len(program)))
    return program


def _ablated(table: pd.DataFrame, options: Options) -> pd.DataFrame:
    if options.threads:
        return table
    gaps = table["type"].isin(["T1", "loading"])
    return table[~gaps | table["signature"].isna()]
