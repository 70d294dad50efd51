"""Replay of public traces: predicted and measured span of every evaluated iteration, for each prediction method.

Statistics never come from the evaluated iteration:

- The two halves of a trace predict each other.
- A rank is predicted from the other ranks.
- *Another host* means the traces of all other machines, with one factor from a few iterations of the target. These
  iterations are not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from evaluation.checks.method_names import FULL, KERNEL_SUM, PUBLISHED_FORM, SHARED, TRAIN_MEAN
from pipeline.simulate.replay import replay_source
from pipeline.simulate.replay_result import ReplayResult
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.load import load_trace

SINGLE_TRACES = ("rtx2080ti_resnet", "rtx2080ti_linear", "a100x8_dlrm", "v100_ddp")
"""Folders of traces with several iterations of training."""

RANKS, RANK_COUNT = "v100x8_dlrm", 5
"""Folder with traces of one iteration by several ranks, and their number; each rank is predicted from the others."""

TRACE_FILES = (
    *(f"{name}/kineto.json.gz" for name in SINGLE_TRACES),
    *(f"{RANKS}/rank{number}_kineto.json.gz" for number in range(RANK_COUNT)),
)
"""The traces that are replayed, by their path in the folder of traces."""

CALIBRATION_ITERATIONS = 5
"""Largest number of the target's iterations that give the factor between hosts; at most half of its iterations."""


def replay_spans(traces: Path) -> pd.DataFrame:
    """Predictions of every evaluated iteration (or rank) of the public traces, a row per method.

    Args:
        traces: the `traces` folder of the public data.

    Returns:
        trace, device, method, number (iteration or rank), measured_us, predicted_us.

    Raises:
        TraceError: a trace is missing or damaged.
    """
    sources = {
        name: [TraceSelection.of(load_trace(traces / name / "kineto.json.gz"))]
        for name in SINGLE_TRACES
    }
    sources[RANKS] = [
        TraceSelection.of(load_trace(traces / RANKS / f"rank{n}_kineto.json.gz"))
        for n in range(RANK_COUNT)
    ]
    rows = [row for name, group in sources.items() for row in _own(name, group)]
    rows += [row for name in sources for row in _shared(name, sources)]
    return pd.DataFrame(
        rows, columns=["trace", "device", "method", "number", "measured_us", "predicted_us"]
    )


def _own(name: str, group: Sequence[TraceSelection]) -> Iterator[tuple[object, ...]]:
    """Rows predicted with statistics of the trace's other half, or of the other ranks."""
    for number, source in enumerate(group):
        others = [other for other in group if other is not source]
        full = replay_source(source, others)
        for method, result in (
            (FULL, full),
            (PUBLISHED_FORM, replay_source(source, others, published=True)),
        ):
            yield from _rows(name, method, result, number if others else None)
        for replayed in full.replayed:
            place = number if others else replayed.iteration.number
            known = (name, full.trace.device)
            span, kernels = replayed.iteration.span_us, float(replayed.iteration.kernel_us.sum())
            yield (
                *known,
                KERNEL_SUM,
                place,
                span,
                replayed.queued_us + kernels,
            )  # all methods are given this work
            yield (*known, TRAIN_MEAN, place, span, replayed.train_mean_us)


def _rows(
    name: str, method: str, result: ReplayResult, rank: int | None
) -> Iterator[tuple[object, ...]]:
    for replayed in result.replayed:
        place = replayed.iteration.number if rank is None else rank
        yield (
            name,
            result.trace.device,
            method,
            place,
            replayed.iteration.span_us,
            replayed.predicted_us,
        )


def _shared(
    name: str, sources: Mapping[str, Sequence[TraceSelection]]
) -> Iterator[tuple[object, ...]]:
    """Rows predicted with statistics of all other machines' traces and one factor; none for a trace of one iteration."""
    target = sources[name][0]
    after_warm_up = len(target.after_warm_up.chosen)
    if after_warm_up < 2:
        return
    donors = [group[0] for other, group in sources.items() if other != name]
    yield from _rows(
        name,
        SHARED,
        replay_source(
            target, donors, calibrate=max(1, min(CALIBRATION_ITERATIONS, after_warm_up // 2))
        ),
        None,
    )
