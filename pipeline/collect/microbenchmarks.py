"""Microbenchmarks of the kernel calls of a workload, and of similar sizes.

    samples = measure_calls(calls, device="auto", seconds=60, graph=graph)

Each distinct call of the table is measured. The rest of the time is used for calls of the same families with sampled
sizes (`pipeline.collect.benchmark_calls`). The rounds over the exact calls are spread over the whole time, so that a
temporary load on the machine does not determine any median.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pandas as pd
import torch

from pipeline.collect.benchmark_calls import sizes_around
from pipeline.collect.case_timing import EVENT_REPETITIONS, Bench, Cache, Timing
from pipeline.collect.cases import Case, Maker, Spec, UnsupportedCallError, build_case
from pipeline.collect.cases.case import spec_from_row
from pipeline.collect.device import (
    FLOAT_BYTES,
    device_name,
    first_line,
    fix_threads,
    free_bytes,
    is_unsupported,
    keep_memory_mapped,
    out_of_memory,
    release,
    select_device,
    still_computes,
)
from pipeline.collect.operator_runs import Replayer
from pipeline.errors import MeasurementError, SteptimeWarning, TraceError
from pipeline.schemas import DIMS, SCHEMAS

EXACT_SHARE = 0.5
"""Share of the time for the exact calls; the rest is for sampled sizes."""
GROUP_SECONDS = 4.0
"""A group of calls is measured as soon as its expected time exceeds this many seconds."""
FIRST_ROUNDS = 3
"""Rounds over the exact calls that always run, regardless of the time limit."""
MAX_CASES_IN_MEMORY = 16
"""Largest number of sampled cases in memory at the same time."""
REPETITIONS = {"cpu": 7, "cuda": 4}
"""Repetitions of a sampled case, per device type; on CUDA also of an exact case per round."""
MAX_CASE_US = 400_000.0
"""Time limit in µs of a sampled case. Slower cases are dropped after the warm-up, because they would take the time of
many others."""

GraphNode = tuple[Replayer, int]
"""Location of a call's operator: its graph, and its `node_id` in it."""

Call = tuple[Spec, GraphNode | None]
"""A call to measure, and its operator where a graph was given."""


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
    begin = time.monotonic()
    measured_on = select_device(device)
    work = Workbench(measured_on, begin + seconds, seed=0)
    tables = [calls] if isinstance(calls, pd.DataFrame) else list(calls)
    graphs = [graph] if isinstance(graph, pd.DataFrame) else list(graph or [])
    replayed = measured_on.type == "cpu" and len(graphs) == len(tables)
    exact = _distinct(tables, [Replayer(table) for table in graphs] if replayed else [])
    variants = sizes_around([spec for spec, _ in exact], seed=0) if sampled else iter(())
    rows: list[dict[str, Any]] = []
    while exact:
        waiting = len(exact)
        timings = work.group(exact, Cache.STEP, work.budget_bytes)
        share = (waiting - len(exact)) / waiting
        rows += _measure_exact(
            work, timings, variants, time.monotonic() + share * max(work.left(), 0.0)
        )
        del timings
        release(work.device)
    frame = samples_frame(rows, gpu="local", source="collect", campaign_id="local")
    frame.attrs["unmeasured"] = work.unmeasured
    for reason in dict.fromkeys(work.unsupported):
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
    work = Workbench(device, time.monotonic() + seconds, seed)
    rest: list[Call] = [(spec, None) for spec in specs]
    rows: list[dict[str, Any]] = []
    while rest and work.left() > 1:
        rows += _measured_together(work, work.group(rest, cache, work.budget_bytes, GROUP_SECONDS))
        release(device)
    frame = samples_frame(rows, gpu, source, campaign_id)
    frame.attrs |= {"unmeasured": work.unmeasured, "cut": bool(rest)}
    return frame


class Workbench:
    """Builds and warms up cases within the limits of time and memory of one measurement run.

    Attributes:
        unmeasured: number of distinct calls without a benchmark, by reason.
        unsupported: calls that the device cannot run in their dtype.
    """

    def __init__(self, device: torch.device, deadline: float, seed: int) -> None:
        fix_threads(device)
        keep_memory_mapped()
        self.device = device
        self.deadline = deadline
        self.seed = seed
        self.bench = Bench(device)
        # bytes that all cases together may hold: a part of the free memory, so that a shared machine stays usable
        cuda = device.type == "cuda"
        self.budget_bytes = (
            int(0.5 * free_bytes(device)) if cuda else min(int(0.3 * free_bytes(device)), 4 << 30)
        )
        self.unmeasured: dict[str, int] = {}
        self.unsupported: list[str] = []

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def group(
        self, rest: list[Call], cache: Cache, most_bytes: int, seconds: float | None = None
    ) -> list[Timing]:
        """The next calls of `rest` as warmed-up cases that fit into memory together; they are taken out of `rest`.

        Args:
            rest: the calls, of which those without a benchmark are left out.
            cache: state of the cache when a call starts.
            most_bytes: bytes that the cases may hold.
            seconds: largest expected time to measure them, and no more than what is left; None for no limit. Slow calls then
                form small groups, so that none runs far past the deadline.
        """
        timings: list[Timing] = []
        used_bytes, runs = 0, EVENT_REPETITIONS + REPETITIONS[self.device.type]
        while rest and not (timings and used_bytes + table_bytes(rest[0][0]) > most_bytes):
            if seconds is not None:
                took_us = runs * sum(timing.took_us for timing in timings)
                full = len(timings) >= MAX_CASES_IN_MEMORY
                if full or self.left() < 1 or took_us > 1e6 * min(seconds, self.left()):
                    break
            built = self.build(*rest.pop(0), cache)
            if built is not None:
                timings.append(built[0])
                used_bytes += built[1]
        return timings

    def build(self, spec: Spec, node: GraphNode | None, cache: Cache) -> tuple[Timing, int] | None:
        """A warmed-up case and the bytes that it holds; None if the call has no benchmark."""
        self.seed += 1
        make = Maker(self.device, self.seed)
        try:
            timing = Timing(self._case(spec, node, make), cache)
            timing.took_us = self.bench.warm_up(timing, MAX_CASE_US)
            if node is None and timing.took_us > MAX_CASE_US:
                raise UnsupportedCallError(
                    f"{spec.family} {spec.op}: one call takes more than {MAX_CASE_US / 1e6:g} s"
                )
            return timing, make.bytes
        except UnsupportedCallError as error:
            self.count(str(error))
        except Exception as error:  # a failing call must not stop the other calls
            self.failed(spec, error)
        return None

    def _case(self, spec: Spec, node: GraphNode | None, make: Maker) -> Case:
        """The case of a call: on a CPU the operator of the graph if it can be replayed, else the case of a builder."""
        with torch.no_grad():
            if node is not None:
                try:
                    return node[0].build(spec, node[1], make)
                except UnsupportedCallError:
                    pass
            return build_case(spec, make)

    def failed(self, spec: Spec, error: Exception) -> None:
        """Count a call that failed.

        Raises:
            MeasurementError: the device was lost in the call.
        """
        if not still_computes(self.device):
            raise MeasurementError(
                f"the device was lost in {spec.family} {spec.op}: {error}"
            ) from error
        reason = "out of memory" if out_of_memory(error) else str(error)
        if is_unsupported(error):
            reason = (
                f"{device_name(self.device)} cannot run it in {spec.dtype} ({first_line(error)})"
            )
            self.unsupported.append(f"{spec.family} {spec.op}: {reason}")
        self.count(f"{spec.family} {spec.op}: {reason}")

    def count(self, reason: str) -> None:
        """Count one call without a benchmark, by the first line of the reason."""
        line = reason.partition("\n")[0][:200]
        self.unmeasured[line] = self.unmeasured.get(line, 0) + 1


def _measured_together(work: Workbench, group: list[Timing]) -> list[dict[str, Any]]:
    """Rows of a group; if the group fails (for example out of memory), its cases are measured one by one."""
    try:
        work.bench.measure(group, REPETITIONS[work.device.type])
    except (RuntimeError, TraceError) as error:
        if len(group) == 1 or not still_computes(work.device):
            work.failed(group[0].case.spec, error)
            return []
        release(work.device)
        return [row for timing in group for row in _measured_together(work, [timing.again()])]
    rows = [timing.row() for timing in group]
    for timing, row in zip(group, rows, strict=True):
        if not row:
            work.count(f"{timing.case.spec.family}: the profiler saw no device work")
    return [row for row in rows if row]


def _distinct(tables: Sequence[pd.DataFrame], replayers: Sequence[Replayer]) -> list[Call]:
    """Each call once, in order of first use, with the operator that makes it if a graph was given."""
    calls: dict[Any, Call] = {}
    for number, table in enumerate(tables):
        for row in table.to_dict("records"):
            spec = spec_from_row(row)
            node = (replayers[number], int(row["node_id"])) if replayers else None
            calls.setdefault(spec.key, (spec, node))
    return list(calls.values())


def _measure_exact(
    work: Workbench, exact: list[Timing], variants: Iterator[Spec], end: float
) -> list[dict[str, Any]]:
    """Run rounds over the exact cases until `end`, with chunks of sampled cases between them."""
    cuda = work.device.type == "cuda"
    begin = time.monotonic()
    work.bench.measure(exact, REPETITIONS["cuda"] if cuda else FIRST_ROUNDS)
    exact_seconds = time.monotonic() - begin
    rows = []
    while time.monotonic() < end:
        sampled: list[Call] = [(spec, None) for spec in islice(variants, MAX_CASES_IN_MEMORY)]
        group = work.group(sampled, Cache.STEP, work.budget_bytes // 2)
        work.bench.measure(group, REPETITIONS[work.device.type])
        rows += [timing.row() for timing in group]
        if not group and (cuda or not exact):
            break
        while not cuda and exact and time.monotonic() < end:
            start = time.monotonic()
            if group and exact_seconds > EXACT_SHARE * (start - begin):
                break
            work.bench.measure(exact, 1)
            exact_seconds += time.monotonic() - start
        del group
    return [row for row in [*(timing.row() for timing in exact), *rows] if row]


def samples_frame(
    rows: Sequence[dict[str, Any]], gpu: str, source: str, campaign_id: str
) -> pd.DataFrame:
    """Measured rows as a table of the `samples` schema."""
    frame = pd.DataFrame(rows).assign(gpu=gpu, source=source, campaign_id=campaign_id)
    return frame.reindex(columns=SCHEMAS["samples"].names).astype(dict.fromkeys(DIMS, "Int64"))


def table_bytes(spec: Spec) -> int:
    """Bytes of the embedding tables that a call needs, known before it is built; 0 without tables."""
    if not spec.family.startswith("embedding"):
        return 0
    rows = sum(int(n) for n in spec.attributes.get("rows", [])) or spec.get("E", 0) * spec.get(
        "T", 1
    )
    return rows * spec.get("D", 1) * FLOAT_BYTES.get(spec.dtype, 4)
