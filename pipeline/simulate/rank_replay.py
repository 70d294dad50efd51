"""Replay of a step from the traces of its ranks, which are simulated together (`ranks`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.arrays import Ints
from pipeline.errors import InputError, TraceError
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import summarise
from pipeline.simulate.program import Program
from pipeline.simulate.ranks import Role, simulate_ranks
from pipeline.simulate.replay import build, refuse_unlinked
from pipeline.simulate.replay_result import overhead_summary
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.trace_program import Iteration, queued_before_us
from pipeline.simulate.trace_selection import TraceSelection, learn, not_in_trace, unforeseen
from pipeline.simulate.waits import WaitModel
from pipeline.trace.kineto_fields import COLLECTIVE_KERNELS
from pipeline.trace.linked_trace import Trace
from pipeline.trace.load import load_trace

if TYPE_CHECKING:
    from rich.table import Table


BASELINES = {
    "queued_and_kernels": "queued work and kernels",
    "train_mean": "mean of the other ranks",
}
"""Simple predictions of a step beside the replay, with what they are called."""


@dataclass(frozen=True)
class RankResult:
    """One rank of a co-simulated job.

    Attributes:
        iteration: what was measured.
        timeline: what was simulated.
        error: predicted span divided by measured span, minus 1.
        compute_us: predicted active time of all calls except collectives.
        communication_us: predicted active time of collectives.
        train_mean_us: mean span of the other ranks, whose statistics were used.
        queued_us: time of the span in which the device finished work launched before the step.
        overheads: the rank's own observations, which were used for the other ranks.
        notes: what is unusual in its trace, and what cannot be predicted in its step.
    """

    iteration: Iteration
    timeline: Timeline
    error: float
    compute_us: float
    communication_us: float
    train_mean_us: float
    queued_us: float
    overheads: pd.DataFrame
    notes: tuple[str, ...] = ()


def replay_ranks(paths: Sequence[str | Path]) -> list[RankResult]:
    """Replay one step of a job from the traces of its ranks. Each rank's host times come from the other ranks'
    statistics.

    The time at which each rank begins is taken from the clock of its trace. The ranks must therefore run on one host,
    or on hosts with synchronous clocks. The replayed step is the last one that all traces contain. Steps are matched by
    number where `ProfilerStep` gives one; otherwise the last step of each trace is used.

    Raises:
        TraceError: a trace cannot be read, or holds no operators, or no work of a GPU that is tied to them.
        InputError: fewer than two ranks, one of them twice, ranks of different steps, or with other collectives.
    """
    if len(paths) < 2:
        raise InputError("co-simulation needs the traces of at least two ranks")
    sources = [TraceSelection.of(load_trace(path)) for path in paths]
    for path, source in zip(paths, sources, strict=True):
        if not source.chosen:
            raise TraceError(f"{path}: no operators in any iteration")
        refuse_unlinked(source)
    _refuse_twice(sources)
    steps = _same_step(sources)
    meetings = _meetings(sources, steps)
    samples, programs = _programs(sources, steps)
    starts = np.array([step.start_ns for step in steps])
    begin_us = (starts - starts.min()) / 1000.0
    times = [step.kernel_us for step in steps]
    parts = zip(programs, times, meetings, begin_us.tolist(), strict=True)
    roles = [Role(*part) for part in parts]
    out = []
    for rank, timeline in enumerate(simulate_ranks(roles)):
        step, source = steps[rank], sources[rank]
        communicates = meetings[rank] >= 0
        others = [other.span_us for other in steps if other is not step]
        notes = (
            *(_missing(sources) if rank == 0 else ()),
            *source.act.trace.notes,
            *not_in_trace(source.only([step])),
            *unforeseen(source, step),
        )
        result = RankResult(
            iteration=step,
            timeline=timeline,
            error=float(timeline.step_us[0] / step.span_us - 1.0),
            compute_us=float(timeline.active_of(~communicates)[0]),
            communication_us=float(timeline.active_of(communicates)[0]),
            train_mean_us=float(np.mean(others)),
            queued_us=queued_before_us(source.act, step),
            overheads=samples[rank],
            notes=notes,
        )
        out.append(result)
    return out


def _programs(
    sources: Sequence[TraceSelection],
    steps: Sequence[Iteration],
) -> tuple[list[pd.DataFrame], list[Program]]:
    """Each rank's observations of overheads, and its program with the host times of the other ranks."""
    trimmed = [source.without_one_time_costs for source in sources]
    samples = [learn([source])[0] for source in trimmed]
    programs = []
    for rank, source in enumerate(sources):
        observed = pd.concat(samples[:rank] + samples[rank + 1 :], ignore_index=True)
        overheads = OverheadModel(summarise(observed))
        waits = WaitModel()
        for other in trimmed[:rank] + trimmed[rank + 1 :]:
            waits.learn(other.act, other.keys, other.chosen)
        programs.append(build(source, steps[rank], overheads, waits))
    return samples, programs


def _distributed(source: TraceSelection, key: str) -> int | None:
    """A field of the job's description in a trace (`rank`, `world_size`); None where it is absent."""
    info = source.act.trace.metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return None
    value = info.get(key)
    return value if type(value) is int else None


def _missing(sources: Sequence[TraceSelection]) -> list[str]:
    """A note if the job had more ranks than are given."""
    stated = [_distributed(source, "world_size") for source in sources]
    world = max(number or 0 for number in stated)
    if world <= len(sources):
        return []
    return [
        f"traces of {len(sources)} of the job's {world} ranks are given; a collective ends when the"
        " last of these ranks arrives"
    ]


def _refuse_twice(sources: Sequence[TraceSelection]) -> None:
    seen: dict[int, Trace] = {}
    for source in sources:
        rank, trace = _distributed(source, "rank"), source.act.trace
        if rank is None:
            continue
        other = seen.setdefault(rank, trace)
        if other is not trace and np.array_equal(other.opens, trace.opens):
            raise InputError(
                f"{other.path} and {trace.path} are the same trace of rank {rank}; give one trace"
                " of each rank"
            )


def _same_step(sources: Sequence[TraceSelection]) -> list[Iteration]:
    """The last step that the traces of all ranks contain, one iteration per rank."""
    numbered = [{it.step: it for it in source.chosen} for source in sources]
    paths = [source.act.trace.path for source in sources]
    steps = [source.chosen[-1] for source in sources]
    if all(None not in numbers for numbers in numbered):
        common = set.intersection(*(set(numbers) for numbers in numbered))
        if not common:
            held = "; ".join(
                f"{path} holds {', '.join(map(str, numbers))}"
                for path, numbers in zip(paths, numbered, strict=True)
            )
            raise InputError(
                f"the traces have no step in common ({held}); give traces of the same step"
            )
        last_common = max(common, key=lambda n: n or 0)
        steps = [numbers[last_common] for numbers in numbered]
    starts = [step.start_ns for step in steps]
    ends = [step.end_ns for step in steps]
    if max(starts) >= min(ends):
        first, last = ends.index(min(ends)), starts.index(max(starts))
        raise InputError(
            f"the steps of {paths[first]} and {paths[last]} do not overlap in time; give traces of"
            " the same step, with synchronised clocks"
        )
    return steps


def _meetings(
    sources: Sequence[TraceSelection],
    steps: Sequence[Iteration],
) -> list[Ints]:
    """Number of the meeting of each call of each rank's step, -1 for none.

    The k-th collective of a name on one rank is the k-th of that name on the others. Ranks may use different communicators in a
    different order: pairing by order alone could pair an all-reduce with another rank's all-to-all.
    """
    tables = []
    for source, step in zip(sources, steps, strict=True):
        events = source.act.call_event[step.calls]
        names = pd.Series(source.act.trace.names[events], dtype=str)
        names = names.str.partition("(")[0]
        tables.append(names[names.str.match(COLLECTIVE_KERNELS)])
    kinds = [Counter(names) for names in tables]
    paths, first = [source.act.trace.path for source in sources], kinds[0]
    for path, kind in zip(paths, kinds, strict=True):
        differing = (kind - first) + (first - kind)
        if differing:
            name = min(differing)
            raise InputError(
                f"{path} takes part in {kind[name]} collectives {name}, {paths[0]} in"
                f" {first[name]}; give whole traces of the same step"
            )
    out = []
    for step, names in zip(steps, tables, strict=True):
        ordered = names.sort_values(kind="stable").index
        numbers = np.full(
            len(step.calls),
            -1,
            np.int64,
        )
        numbers[ordered] = np.arange(len(names))
        out.append(numbers)
    return out


def facts(
    paths: Sequence[str | Path],
    results: Sequence[RankResult],
) -> dict[str, Any]:
    """Output of `steptime replay TRACE --rank TRACE... --json`: means over the ranks, then each rank."""
    rows: list[dict[str, Any]] = [
        {
            "trace": str(path),
            "measured_us": r.iteration.span_us,
            "predicted_us": float(r.timeline.step_us[0]),
            "error": r.error,
            "active_measured_us": r.iteration.active_us,
            "active_predicted_us": float(r.timeline.active_us[0]),
            "compute_us": r.compute_us,
            "communication_us": r.communication_us,
            "train_mean_us": r.train_mean_us,
            "queued_and_kernels_us": r.queued_us + float(r.iteration.kernel_us.sum()),
        }
        for path, r in zip(paths, results, strict=True)
    ]

    frame = pd.DataFrame(rows)
    measured_us = frame["measured_us"]
    predicted_us = frame["predicted_us"]
    absolute_error = frame["error"].abs().mean()
    baselines = {}
    for name in BASELINES:
        errors = frame[f"{name}_us"] / measured_us - 1.0
        baselines[f"{name}_mean_absolute_error"] = float(errors.abs().mean())
    means = frame[["measured_us", "predicted_us", "active_measured_us", "active_predicted_us"]]
    overheads = pd.concat([r.overheads for r in results], ignore_index=True)
    notes = [f"rank {i}: {note}" for i, result in enumerate(results) for note in result.notes]
    return {
        "iterations": len(rows),
        "split": "each rank from the others, simulated together",
        **{str(name): float(value) for name, value in means.mean().items()},
        "error": predicted_us.mean() / measured_us.mean() - 1.0,
        "mean_absolute_error": float(absolute_error),
        "baselines": baselines,
        "overheads": overhead_summary(overheads),
        "ranks": rows,
        "notes": notes,
    }


def table(values: dict[str, Any]) -> Table:
    """Rich table of `facts`: one line per rank."""
    from rich.table import Table

    count, split = values["iterations"], values["split"]
    out = Table(title=f"{count} ranks, {split}")
    out.add_column("rank")
    for name in ("measured µs", "predicted µs", "error", "computing µs", "communicating µs"):
        out.add_column(name, justify="right", overflow="fold")
    for number, row in enumerate(values["ranks"]):
        keys = ("measured_us", "predicted_us", "compute_us", "communication_us")
        measured, predicted, *parts = (f"{row[key]:,.1f}" for key in keys)
        error = f"{row['error']:+.2%}"
        out.add_row(str(number), measured, predicted, error, *parts)
    if values["notes"]:
        notes = values["notes"]
        out.caption = "\n".join(f"note: {note}" for note in notes)
        out.caption_justify = "left"
    out.add_section()
    errors = {"mean absolute error": values["mean_absolute_error"]}
    for name, label in BASELINES.items():
        of_name = values["baselines"][f"{name}_mean_absolute_error"]
        errors[f"baseline: {label}"] = of_name
    for label, error in errors.items():
        out.add_row(label, "", "", f"{error:.2%}")
    return out
