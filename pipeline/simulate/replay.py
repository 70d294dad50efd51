"""Replays a trace: evaluates how well host statistics and the critical path predict held-out iterations.

The order of calls, the device durations and the backlog are taken from the evaluated iteration. Host time and waiting
are predicted. Without other traces, the iterations are split into two halves, and each half is predicted with
statistics of the other. If there are three or more iterations, the first is left out. Predictions are compared with two
baselines: the backlog and the sum of kernel times, and the mean span of the iterations that the statistics come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import InputError, TraceError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import MIN_COMMON, merged, summarise
from pipeline.overheads.statistics import calibrate as factor_of
from pipeline.prediction_parts import Arithmetic
from pipeline.schemas import refuse_overwriting
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.measured_rows import measured_rows
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import as_published
from pipeline.simulate.replay_result import Replayed, ReplayResult
from pipeline.simulate.timeline_page import write_timeline
from pipeline.simulate.trace_program import (
    Iteration,
    program_from_trace,
    queued_before_us,
    time_per_batch_us,
)
from pipeline.simulate.trace_selection import TraceSelection, learn, not_in_trace, unforeseen
from pipeline.simulate.waits import WaitModel
from pipeline.trace.kineto_fields import API_CATEGORIES, KERNEL_LAUNCHES
from pipeline.trace.linked_trace import PREDICT_INSTEAD
from pipeline.trace.load import load_trace
from pipeline.transfer.trace_calls import trace_calls, traced_arithmetic

MAX_UNMATCHED_SHARE = 0.5
"""Share of host time without statistics of its own ops from which a replay prints a note."""


@dataclass(frozen=True)
class Fold:
    """Iterations to predict and those that statistics come from.

    Attributes:
        train: sources of statistics.
        test: what is evaluated.
        few: iterations of the target that give one factor on host times; they are not evaluated. None for no factor.
    """

    train: tuple[TraceSelection, ...]
    test: TraceSelection
    few: TraceSelection | None = None


def replay(
    path: str | Path,
    overheads: Sequence[str | Path] = (),
    published: bool = False,
    timeline: str | Path | None = None,
    calibrate: int = 0,
) -> ReplayResult:
    """Replay a trace from statistics of other iterations of it, or of other traces.

    Args:
        path: the trace to evaluate.
        overheads: traces to take statistics from; without any, the halves of `path` predict each other.
        published: Algorithm 1 as Lin et al. print it, with statistics per op name, outliers beyond 1.5 IQR removed.
        timeline: where to write the predicted iterations, with the measured trace's time axis: a page (`.html`), or
            Chrome JSON for Perfetto (`.json`, `.json.gz`).
        calibrate: number of iterations of `path` that give one factor on the host times of `overheads`, for traces of
            another host or workload. These iterations are not evaluated.

    Raises:
        TraceError: a file cannot be read, or holds no operators to replay.
        InputError: `calibrate` without other traces, or with no iteration left to evaluate; `timeline` is a trace that
            is read.
    """
    if timeline is not None:
        refuse_overwriting(timeline, path, *overheads)
    target = TraceSelection.of(load_trace(path))
    if not target.chosen or not any(iteration.span_us > 0 for iteration in target.chosen):
        notes = "; ".join(["", *target.act.trace.notes])
        raise TraceError(
            f"{path}: no operators in any iteration{notes}; record the trace with activities=[CPU,"
            " CUDA] and at least one step"
        )
    refuse_unlinked(target)
    target = target.only([iteration for iteration in target.chosen if iteration.span_us > 0])
    others = [TraceSelection.of(load_trace(other)) for other in overheads]
    for other, source in zip(overheads, others, strict=True):
        if not source.chosen:
            raise TraceError(
                f"{other}: no operators in any iteration, so overheads cannot be extracted"
            )
        refuse_unlinked(source)
    result = replay_source(target, others, published, calibrate)
    if any(_same_run(target, other) for other in others):
        itself = (
            "overheads come from the evaluated trace itself, so the error is not a held-out error"
        )
        result = replace(result, notes=(itself, *result.notes), held_out=False)
    if timeline is not None:
        _write(target, result.replayed, timeline)
    return result


def _same_run(one: TraceSelection, other: TraceSelection) -> bool:
    """Whether two traces contain the same events, regardless of file name and compression."""
    ours, theirs = one.act.trace.columns, other.act.trace.columns
    return all(
        np.array_equal(ours[name], theirs[name]) for name in ("ts_ns", "dur_ns", "correlation")
    )


def refuse_unlinked(source: TraceSelection) -> None:
    """Raise for a trace without usable GPU work: no kernel was recorded, or the CPU did the work instead.

    Raises:
        TraceError: kernels were launched and none was recorded, or no recorded work is tied to a launch.
    """
    trace = source.act.trace
    if source.act.on_cpu:
        launches = trace.where("name", KERNEL_LAUNCHES.match) & trace.is_category(*API_CATEGORIES)
        if launches.any():
            raise TraceError(
                f"{trace.path}: {launches.sum()} kernel launches, but no GPU events: the profiler"
                " lost them (no permission for CUPTI, or a second profiler); record the trace with"
                " activities=[CPU, CUDA]"
            )
    elif not len(source.act.call_event):
        raise TraceError(
            f"{trace.path}: no operators launched any of the GPU's work (correlation ids are"
            " missing, or it is another process's); record the trace with activities=[CPU, CUDA]"
        )


def replay_source(
    target: TraceSelection,
    others: Sequence[TraceSelection] = (),
    published: bool = False,
    calibrate: int = 0,
) -> ReplayResult:
    """`replay` for loaded traces, to run both forms on one trace."""
    split, folds = _folds(target, tuple(others), calibrate)
    estimator = "trimmed_mean" if published else "clipped_mean"
    if split == "none":
        estimator = "mean"  # a trace's own mean gives its own host time
    replayed: list[Replayed] = []
    samples = []
    alone = (
        "only one iteration: it is predicted from its own statistics, so the error is not a"
        " held-out error"
    )
    notes = [alone] if split == "none" else []
    for fold in folds:
        train = (
            fold.train
            if split == "none"
            else tuple(source.without_one_time_costs for source in fold.train)
        )
        seen = learn(train, waiting=published)
        samples.append(seen[0])
        model, remark = _model(fold, seen, estimator, published)
        notes += remark
        replayed += list(_evaluate(fold, model, seen[1], published))
    replayed.sort(key=lambda r: r.iteration.number)
    notes += not_in_trace(target.only([r.iteration for r in replayed]))
    if target.act.on_cpu:
        notes.append(
            f"nothing ran on a GPU, these are times of the CPU; for a GPU, {PREDICT_INSTEAD}"
        )
    if split != "none":
        notes += [*_left_out(folds), *_unmatched(replayed)]
        notes += [text for r in replayed for text in unforeseen(target, r.iteration)]
    return ReplayResult(
        target.act.trace,
        split,
        tuple(replayed),
        pd.concat(samples, ignore_index=True),
        tuple(notes),
        time_per_batch_us(target.chosen),
        _arithmetic(target, replayed[len(replayed) // 2].iteration),
        held_out=split != "none",
    )


def _arithmetic(target: TraceSelection, iteration: Iteration) -> Arithmetic | None:
    """What an iteration computes; None where no GPU file describes the device, or shapes do not show it."""
    with suppress(UnknownNameError):
        return traced_arithmetic(
            trace_calls(target.act, iteration.calls), load_gpu(target.act.trace.device)
        )
    return None


def _write(target: TraceSelection, replayed: Sequence[Replayed], path: str | Path) -> None:
    trace, events = target.act.trace, target.act.call_event
    base = int(trace.metadata.get("baseTimeNanoseconds", 0))
    if Path(path).suffix == ".html":  # the page begins at 0
        base = min(r.iteration.start_ns for r in replayed)
    shown = [(r.iteration, r.timeline, (r.iteration.start_ns - base) / 1000.0) for r in replayed]
    beside = measured_rows(target.act, [(iteration, begin) for iteration, _, begin in shown])
    write_timeline(
        [(timeline, begin) for _, timeline, begin in shown],
        path,
        names=[list(trace.names[events[iteration.calls]]) for iteration, *_ in shown],
        beside=beside,
        title=f"{Path(trace.path).name}: predicted and measured iterations",
        measured_us=[iteration.span_us for iteration, *_ in shown],
    )


def _folds(
    target: TraceSelection, others: tuple[TraceSelection, ...], calibrate: int
) -> tuple[str, list[Fold]]:
    """The split between statistics and evaluation: its name and the folds."""
    if calibrate < 0:
        raise InputError(f"--calibrate {calibrate}: give a number of iterations, 1 or more")
    if calibrate and not others:
        raise InputError(
            f"--calibrate {calibrate}: give traces of other hosts too, with --overheads TRACE"
        )
    iterations = target.after_warm_up.chosen
    if calibrate:
        if calibrate >= len(iterations):
            raise InputError(
                f"{target.act.trace.path}: {len(iterations)} iterations after the first; to"
                f" calibrate on {calibrate} leaves none to evaluate"
            )
        few, rest = target.only(iterations[:calibrate]), target.only(iterations[calibrate:])
        return f"other traces, factor from {calibrate} iterations", [Fold(others, rest, few)]
    if others:
        return "other traces", [Fold(others, target)]
    half = len(iterations) // 2
    if not half:
        return "none", [Fold((target,), target)]
    first, second = target.only(iterations[:half]), target.only(iterations[half:])
    return "halves", [Fold((second,), first), Fold((first,), second)]


def _model(
    fold: Fold, seen: tuple[pd.DataFrame, WaitModel], estimator: str, published: bool
) -> tuple[OverheadModel, list[str]]:
    """Host statistics of a fold, with the factor from a few iterations of the target if any are given."""
    samples, waits = seen
    if fold.few is None:
        table = summarise(samples, estimator, signatures=not published)
        if published:  # gaps before an op have one mean, whatever the thread and the op before
            table = table[~table["type"].isin(["T1", "loading"]) | table["signature"].isna()]
        return OverheadModel(table), []
    few = fold.few.without_one_time_costs
    target_samples, _ = learn([few])
    waits.learn(few.act, few.keys, few.chosen)
    donor = OverheadModel(merged(samples, estimator))
    calibration = factor_of(donor, target_samples)
    if calibration.common < MIN_COMMON:
        return donor, [
            f"only {calibration.common} overheads in common with the other traces, so host times"
            " are not scaled"
        ]
    return donor.scaled(calibration.scale), [
        f"host times of the other traces times {calibration.scale:.3f}, from {len(few.chosen)}"
        f" iterations that are not evaluated ({calibration.coverage:.0%} of their host time is in"
        " ops of the other traces)"
    ]


def _left_out(folds: Sequence[Fold]) -> list[str]:
    """Notes on what statistics leave out of the traces that they come from."""
    counts: dict[str, int] = {}
    for source in (source for fold in folds for source in fold.train):
        counts[source.name] = counts.get(source.name, 0) + len(source.one_time)
    return [
        f"statistics of {name} exclude {count} one-time calls of the CUDA runtime"
        for name, count in counts.items()
        if count
    ]


def _unmatched(replayed: Sequence[Replayed]) -> list[str]:
    """A note where statistics of other ops had to be used."""
    share = float(np.mean([r.program.unmatched_host_share for r in replayed]))
    if share < MAX_UNMATCHED_SHARE:
        return []
    return [
        f"{share:.0%} of the predicted host time comes from means over all ops, because the"
        " statistics do not have this trace's ops"
    ]


def _evaluate(
    fold: Fold, model: OverheadModel, waits: WaitModel, published: bool
) -> Iterator[Replayed]:
    mean = float(
        np.mean([iteration.span_us for source in fold.train for iteration in source.chosen])
    )  # as measured
    for iteration in fold.test.chosen:
        program = build(fold.test, iteration, model, waits, published)
        timeline = simulate(program, iteration.kernel_us)
        yield Replayed(
            iteration, program, timeline, mean, queued_before_us(fold.test.act, iteration)
        )


def build(
    source: TraceSelection,
    iteration: Iteration,
    model: OverheadModel,
    waits: WaitModel,
    published: bool = False,
) -> Program:
    """Program of one iteration."""
    edges = waits.edges(source.act, source.keys, iteration)
    program = program_from_trace(source.act, source.keys, iteration, model, edges)
    return as_published(program) if published else program
