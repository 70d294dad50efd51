"""Microbenchmarks of the kernel calls of a workload, and of similar sizes.

    samples = measure_calls(calls, device="auto", seconds=60, graph=graph)

Each distinct call of the table is measured. The rest of the time is used for calls of the same families with sampled
sizes (`pipeline.collect.size_sampler`). The rounds over the exact calls are spread over the whole time, so that a
temporary load on the machine does not determine any median.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.case_timing import EVENT_REPETITIONS, Bench, Cache, Timing
from pipeline.collect.cases import Spec
from pipeline.collect.cases.case import spec_from_row
from pipeline.collect.device import fix_threads, keep_memory_mapped, release, select_device, still_computes
from pipeline.collect.operator_runs import Replayer
from pipeline.collect.size_sampler import sizes_around
from pipeline.collect.workbench import (
    MAX_CASES_IN_MEMORY,
    REPETITIONS,
    GraphNode,
    Workbench,
    budget_bytes,
    measured_row,
    samples_frame,
    table_bytes,
)
from pipeline.errors import MeasurementError, SteptimeWarning, TraceError

if TYPE_CHECKING:
    import torch

EXACT_SHARE = 0.5
"""Share of the time for the exact calls; the rest is for sampled sizes."""
GROUP_SECONDS = 4.0
"""A group of calls is measured as soon as its expected time exceeds this many seconds."""
FIRST_ROUNDS = 3
"""Rounds over the exact calls that always run, regardless of the time limit."""


def measure_calls(
    calls: pd.DataFrame | Sequence[pd.DataFrame],
    device: str | None = "auto",
    seconds: float = 60.0,
    *,
    graph: pd.DataFrame | Sequence[pd.DataFrame] | None = None,
    sampled: bool = True,
) -> pd.DataFrame:
    """Measure the kernels of a calls table, and similar sizes, with the cache in the same state as in a step.

    Args:
        calls: table of the `calls` schema, or one table per workload.
        device: "cuda", "cpu", or "auto" (also None).
        seconds: time to use; the exact calls are measured even if it is too short.
        graph: table of the `graph` schema that `calls` refers to, or one table per table of calls. With it, operators
            on a CPU are replayed with their original strides and arguments, and operators without a builder can be
            measured.
        sampled: whether to measure similar sizes too.

    Returns:
        Rows of the `samples` schema. `kernel_us` is device time on CUDA (without launch floor; `latency_us` with it)
        and host time of the operator on a CPU. `attrs["unmeasured"]` counts calls without a benchmark, by reason.

    Raises:
        InputError: the device does not exist.
        MeasurementError: the device was lost.
    """
    place = select_device(device)
    fix_threads(place)
    keep_memory_mapped()
    begin = time.monotonic()
    tables = [calls] if isinstance(calls, pd.DataFrame) else list(calls)
    graphs = [graph] if isinstance(graph, pd.DataFrame) else list(graph or [])
    replayers = [Replayer(one) for one in graphs] if place.type == "cpu" and len(graphs) == len(tables) else []
    work = Workbench(Bench(place), place, begin + seconds, budget_bytes(place), seed=0)
    exact = _distinct(tables, replayers)
    variants = sizes_around([spec for spec, _ in exact], seed=0) if sampled else iter(())
    rows: list[dict[str, Any]] = []
    for timings, share in _chunks(work, exact):
        end = time.monotonic() + share * max(work.left(), 0.0)
        rows += _measure_exact(work, timings, variants, end)
    frame = samples_frame(rows, gpu="local", source="collect", campaign_id="local")
    frame.attrs["unmeasured"] = work.unmeasured.reasons
    for reason in dict.fromkeys(work.unmeasured.unsupported):
        warnings.warn(f"{reason}; skipped", SteptimeWarning, stacklevel=2)
    return frame


def measure_specs(
    specs: Sequence[Spec],
    device: torch.device,
    seconds: float,
    *,
    cache: Cache,
    seed: int,
    gpu: str,
    campaign_id: str,
    source: str,
) -> pd.DataFrame:
    """Measure each specification once, in order, until the time is used up; for campaigns.

    Returns:
        Rows of the `samples` schema; `attrs` hold `unmeasured` (reasons) and `cut` (whether time ran out).

    Raises:
        MeasurementError: the device was lost.
    """
    fix_threads(device)
    keep_memory_mapped()
    work = Workbench(Bench(device), device, time.monotonic() + seconds, budget_bytes(device), seed)
    waiting, rest, rows = 0, list(specs), []
    runs = EVENT_REPETITIONS + REPETITIONS[device.type]
    group: list[Timing] = []
    while (rest or group) and work.left() > 0:
        crowded = not rest or len(group) >= MAX_CASES_IN_MEMORY or waiting + table_bytes(rest[0]) > work.budget_bytes
        # slow calls form small groups, so that no group runs far past the deadline
        crowded |= runs * sum(timing.took_us for timing in group) > 1e6 * min(GROUP_SECONDS, work.left())
        if group and (crowded or work.left() < 1):
            rows += _measured_together(work, group)
            group, waiting = [], 0
            release(device)
            continue
        built = work.build(rest.pop(0), cache, None)
        if built is not None:
            group.append(built[0])
            waiting += built[1]
        del built  # otherwise the last case would keep its memory while the next group is built
    frame = samples_frame(rows, gpu, source, campaign_id)
    frame.attrs |= {"unmeasured": work.unmeasured.reasons, "cut": bool(rest or group)}
    return frame


def _measured_together(work: Workbench, group: list[Timing]) -> list[dict[str, Any]]:
    """Rows of a group; if the group fails (for example out of memory), its cases are measured one by one.

    Raises:
        MeasurementError: the device was lost.
    """
    try:
        work.bench.measure(group, REPETITIONS[work.device.type])
    except (RuntimeError, TraceError) as error:
        if len(group) == 1 or not still_computes(work.device):
            work.failed(group[0].case.spec, error)
            return []
        release(work.device)
        return [row for timing in group for row in _measured_together(work, [timing.again()])]
    rows = [measured_row(timing) for timing in group]
    for timing, row in zip(group, rows, strict=True):
        if not row:
            work.unmeasured.add(MeasurementError(f"{timing.case.spec.family}: the profiler saw no device work"))
    return [row for row in rows if row]


def _distinct(tables: Sequence[pd.DataFrame], replayers: Sequence[Replayer]) -> list[tuple[Spec, GraphNode | None]]:
    """Each call once, in order of first use, with the operator that makes it if a graph was given."""
    found: dict[Any, tuple[Spec, GraphNode | None]] = {}
    for number, table in enumerate(tables):
        for row in table.to_dict("records"):
            spec = spec_from_row(row)
            node = (replayers[number], int(row["node_id"])) if replayers else None
            found.setdefault(spec.key, (spec, node))
    return list(found.values())


def _chunks(work: Workbench, wanted: Sequence[tuple[Spec, GraphNode | None]]) -> Iterator[tuple[list[Timing], float]]:
    """Exact cases in groups that fit the memory, each with its share of the remaining time."""
    index = 0
    while index < len(wanted):
        timings: list[Timing] = []
        start, held = index, 0
        while index < len(wanted) and (held < work.budget_bytes or not timings):
            spec, node = wanted[index]
            built = work.build(spec, Cache.STEP, node)
            if built is not None:
                timings.append(built[0])
                held += built[1]
            index += 1
        yield timings, (index - start) / (len(wanted) - start)
        del timings
        release(work.device)


def _measure_exact(work: Workbench, exact: list[Timing], variants: Iterator[Spec], end: float) -> list[dict[str, Any]]:
    """Run rounds over the exact cases until `end`, with chunks of sampled cases between them."""
    cuda = work.device.type == "cuda"
    begin = time.monotonic()
    work.bench.measure(exact, REPETITIONS["cuda"] if cuda else FIRST_ROUNDS)
    spent_exact, rows = time.monotonic() - begin, []
    while time.monotonic() < end:
        group = list(_sampled(work, variants))
        work.bench.measure(group, REPETITIONS[work.device.type])
        rows += [measured_row(timing) for timing in group]
        if not group and cuda:
            break
        while not cuda and time.monotonic() < end:
            if group and spent_exact > EXACT_SHARE * (time.monotonic() - begin):
                break
            start = time.monotonic()
            work.bench.measure(exact, 1)
            spent_exact += time.monotonic() - start
            if not exact:
                break
        if not group and not exact:
            break
        del group
    return [row for row in [*(measured_row(timing) for timing in exact), *rows] if "kernel_us" in row]


def _sampled(work: Workbench, variants: Iterator[Spec]) -> Iterator[Timing]:
    """The next sampled cases; fewer if they are large."""
    held = 0
    for spec in islice(variants, MAX_CASES_IN_MEMORY):
        built = work.build(spec, Cache.STEP, None)
        if built is None:
            continue
        yield built[0]
        held += built[1]
        if held > work.budget_bytes // 2:
            return
