"""The evaluated iteration gives its order of calls, device durations and backlog, and nothing else: proof by warping.

Host stamps of the evaluated trace are moved so that every gap has another length and the order of all begins and ends
stays; statistics come from the trace as it was. Measured spans move, predictions must not move at all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.simulate.replay import replay_source
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.kineto_fields import HOST_CATEGORIES
from pipeline.trace.linked_trace import Trace
from pipeline.trace.load import load_trace

DRAWN = Path(__file__).parents[1] / "trace" / "golden" / "drawn_gpu" / "input" / "kineto.json.gz"
"""Steps on two streams and two threads, with waits of the host and of streams (`tests/trace/test_golden.py`)."""

FIRM_NS = 2_000
"""Gaps up to here are kept: within the resolution of a stamp nesting is read from how far two events overlap."""


def warped(source: TraceSelection, seed: int) -> Trace:
    """The trace with other host times in the same order; iterations and their first launches stay where they were.

    The backlog, which a replay is told, reaches to where the first launch stops to wait for the device.
    """
    trace, rng = source.act.trace, np.random.default_rng(seed)
    host = np.flatnonzero(trace.is_category(*HOST_CATEGORIES))
    start, end = trace.columns["ts_ns"][host], trace.end_ns[host]
    stamps = np.unique(np.concatenate([start, end]))
    moved = stamps.copy()
    first_launch = [
        source.act.action_end[source.act.call_action[iteration.calls]].min()
        for iteration in source.chosen
    ]
    firm = np.searchsorted(
        stamps, [*(iteration.start_ns for iteration in source.chosen), *first_launch]
    )
    bounds = np.unique([0, *firm.tolist(), len(stamps) - 1])
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        moved[low : high + 1] = stamps[low] + np.concatenate(
            [[0], np.cumsum(_stretched(stamps[low : high + 1], rng))]
        )
    columns = {
        **trace.columns,
        "ts_ns": trace.columns["ts_ns"].copy(),
        "dur_ns": trace.columns["dur_ns"].copy(),
    }
    columns["ts_ns"][host] = moved[np.searchsorted(stamps, start)]
    columns["dur_ns"][host] = moved[np.searchsorted(stamps, end)] - columns["ts_ns"][host]
    return replace(trace, columns=columns)


def _stretched(stamps: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Gaps between stamps, the longer ones redistributed at random with the same sum."""
    gaps = np.diff(stamps)
    free = np.flatnonzero(gaps > FIRM_NS)
    if len(free):
        weight = gaps[free] * np.exp(rng.normal(0.0, 1.5, len(free)))
        spare = int((gaps[free] - FIRM_NS - 1).sum())
        new = FIRM_NS + 1 + np.floor(weight / weight.sum() * spare).astype(np.int64)
        new[-1] += gaps[free].sum() - new.sum()
        gaps[free] = new
    return gaps


def unmoved(source: TraceSelection, seed: int) -> None:
    told = replay_source(source, [source])
    other = TraceSelection.of(warped(source, seed))
    blind = replay_source(other, [source])
    assert [r.predicted_us for r in blind.replayed] == [r.predicted_us for r in told.replayed]
    moved = np.abs(source.act.end - other.act.end)
    assert np.median(moved) > 1_000  # the test would prove nothing otherwise


def test_the_host_times_of_a_drawn_iteration_do_not_enter_its_prediction() -> None:
    for seed in range(2):
        unmoved(TraceSelection.of(load_trace(DRAWN)), seed)


def test_the_host_times_of_a_public_iteration_do_not_enter_its_prediction(datasets: Path) -> None:
    unmoved(TraceSelection.of(load_trace(datasets / "traces/v100_ddp/kineto.json.gz")), 7)
