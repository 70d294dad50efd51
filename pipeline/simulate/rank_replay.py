"""Replay of a step from the traces of its ranks, which are simulated together (`ranks`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

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
from pipeline.trace.load import load_trace

if TYPE_CHECKING:
    from rich.table import Table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    first_ns = min(step.start_ns for step in steps)
    roles = [
        Role(program, step.kernel_us, numbers, (step.start_ns - first_ns) / 1000.0)
        for program, step, numbers in zip(programs, steps, meetings, strict=True)
    ]
    out = []
    for rank, timeline in enumerate(simulate_ranks(roles)):
        step, communicates = steps[rank], meetings[rank] >= 0
        others = [other.span_us for number, other in enumerate(steps) if number != rank]
        notes = (
            *(_missing(sources) if rank == 0 else ()),
            *sources[rank].act.trace.notes,
            *not_in_trace(sources[rank].only([step])),
            *unforeseen(sources[rank], step),
        )
        result = RankResult(
            iteration=step,
            timeline=timeline,
            error=float(timeline.step_us[0] / step.span_us - 1.0),
            compute_us=float(timeline.active_of(~communicates)[0]),
            communication_us=float(timeline.active_of(communicates)[0]),
            train_mean_us=float(np.mean(others)),
            queued_us=queued_before_us(sources[rank].act, step),
            overheads=samples[rank],
            notes=notes,
        )
        out.append(result)
    return out


def _programs(
    sources: Sequence[TraceSelection], steps: Sequence[Iteration]
) -> tuple[list[pd.DataFrame], list[Program]]:
    """Each rank's observations of overheads, and its program with the host times of the other ranks."""
    trimmed = [source.without_one_time_costs for source in sources]
    samples = [learn([source])[0] for source in trimmed]
    programs = []
    for rank, (source, step) in enumerate(zip(sources, steps, strict=True)):
        others = [number for number in range(len(sources)) if number != rank]
        observed = pd.concat([samples[number] for number in others], ignore_index=True)
        waits = WaitModel()
        for number in others:
            waits.learn(trimmed[number].act, trimmed[number].keys, trimmed[number].chosen)
        programs.append(build(source, step, OverheadModel(summarise(observed)), waits))
    return samples, programs


def _distributed(source: TraceSelection, key: str) -> int | None:
    """A field of the job's description in a trace (`rank`, `world_size`); None where it is absent."""
    info = source.act.trace.metadata.get("distributedInfo")
    value = info.get(key) if isinstance(info, dict) else None
    return value if type(value) is int else None


def _missing(sources: Sequence[TraceSelection]) -> list[str]:
    """A note if the job had more ranks than are given."""
    world = max((_distributed(source, "world_size") or 0 for source in sources), default=0)
    if world <= len(sources):
        return []
    return [
        f"traces of {len(sources)} of the job's {world} ranks are given; a collective ends when the"
        " last of these ranks arrives"
    ]


def _refuse_twice(sources: Sequence[TraceSelection]) -> None:
    seen: dict[int, TraceSelection] = {}
    for source in sources:
        rank = _distributed(source, "rank")
        if rank is None:
            continue
        if rank in seen and seen[rank].act.trace.opens.tolist() == source.act.trace.opens.tolist():
            raise InputError(
                f"{seen[rank].act.trace.path} and {source.act.trace.path} are the same trace of"
                f" rank {rank}; give one trace of each rank"
            )
        seen[rank] = source


def _same_step(sources: Sequence[TraceSelection]) -> list[Iteration]:
    """The last step that the traces of all ranks contain, one iteration per rank."""
    numbered = [{it.step: it for it in source.chosen} for source in sources]
    steps = [source.chosen[-1] for source in sources]
    if all(None not in numbers for numbers in numbered):
        common = set.intersection(*(set(numbers) for numbers in numbered))
        if not common:
            held = "; ".join(
                f"{source.act.trace.path} holds {', '.join(str(n) for n in numbers)}"
                for source, numbers in zip(sources, numbered, strict=True)
            )
            raise InputError(
                f"the traces have no step in common ({held}); give traces of the same step"
            )
        steps = [numbers[max(common, key=lambda n: n or 0)] for numbers in numbered]
    first = min(range(len(steps)), key=lambda i: steps[i].end_ns)
    last = max(range(len(steps)), key=lambda i: steps[i].start_ns)
    if steps[last].start_ns >= steps[first].end_ns:
        raise InputError(
            f"the steps of {sources[first].act.trace.path} and {sources[last].act.trace.path} do"
            " not overlap in time; give traces of the same step, with synchronised clocks"
        )
    return steps


def _meetings(sources: Sequence[TraceSelection], steps: Sequence[Iteration]) -> list[Ints]:
    """Number of the meeting of each call of each rank's step, -1 for none.

    The k-th collective of a name on one rank is the k-th of that name on the others. Ranks may use different communicators in a
    different order: pairing by order alone could pair an all-reduce with another rank's all-to-all.
    """
    tables = []
    for source, step in zip(sources, steps, strict=True):
        names = pd.Series(source.act.trace.names[source.act.call_event[step.calls]], dtype=object)
        names = names.astype(str).str.partition("(")[0]
        moves = names.map(lambda text: bool(COLLECTIVE_KERNELS.match(text))).astype(bool)
        tables.append(names.where(moves, ""))
    kinds = [Counter(names[names != ""]) for names in tables]
    for source, kind in zip(sources[1:], kinds[1:], strict=True):
        if kind != kinds[0]:
            other = min((kind - kinds[0]) + (kinds[0] - kind))
            raise InputError(
                f"{source.act.trace.path} takes part in {kind[other]} collectives {other},"
                f" {sources[0].act.trace.path} in {kinds[0][other]}; give whole traces of the same"
                " step"
            )
    out = []
    for names in tables:
        order = names[names != ""].sort_values(kind="stable").index
        numbers = np.full(len(names), -1, np.int64)
        numbers[order] = np.arange(len(order))
        out.append(numbers)
    return out


def facts(paths: Sequence[str | Path], results: Sequence[RankResult]) -> dict[str, Any]:
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

    def mean(key: str) -> float:
        return float(np.mean([row[key] for row in rows]))

    measured = mean("measured_us")
    return {
        "iterations": len(rows),
        "split": "each rank from the others, simulated together",
        "measured_us": measured,
        "predicted_us": mean("predicted_us"),
        "error": mean("predicted_us") / measured - 1.0,
        "mean_absolute_error": float(np.mean([abs(row["error"]) for row in rows])),
        "active_measured_us": mean("active_measured_us"),
        "active_predicted_us": mean("active_predicted_us"),
        "baselines": {
            f"{name}_mean_absolute_error": float(
                np.mean([abs(row[f"{name}_us"] / row["measured_us"] - 1.0) for row in rows])
            )
            for name in ("queued_and_kernels", "train_mean")
        },
        "overheads": overhead_summary(pd.concat([r.overheads for r in results], ignore_index=True)),
        "ranks": rows,
        "notes": [f"rank {number}: {note}" for number, r in enumerate(results) for note in r.notes],
    }


def table(values: dict[str, Any]) -> Table:
    """Rich table of `facts`: one line per rank."""
    from rich.table import Table

    out = Table(title=f"{values['iterations']} ranks, {values['split']}")
    out.add_column("rank")
    for name in ("measured µs", "predicted µs", "error", "computing µs", "communicating µs"):
        out.add_column(name, justify="right", overflow="fold")
    for number, row in enumerate(values["ranks"]):
        out.add_row(
            str(number),
            f"{row['measured_us']:,.1f}",
            f"{row['predicted_us']:,.1f}",
            f"{row['error']:+.2%}",
            f"{row['compute_us']:,.1f}",
            f"{row['communication_us']:,.1f}",
        )
    if values["notes"]:
        out.caption = "\n".join(f"note: {note}" for note in values["notes"])
        out.caption_justify = "left"
    out.add_section()
    out.add_row("mean absolute error", "", "", f"{values['mean_absolute_error']:.2%}", "", "")
    for name, label in (
        ("queued_and_kernels", "queued work and kernels"),
        ("train_mean", "mean of the other ranks"),
    ):
        out.add_row(
            f"baseline: {label}",
            "",
            "",
            f"{values['baselines'][f'{name}_mean_absolute_error']:.2%}",
            "",
            "",
        )
    return out
