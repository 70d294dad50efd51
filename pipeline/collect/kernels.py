"""Microbenchmarks of the kernel calls that a workload makes, and of sizes around them.

    samples = measure_calls(calls, device="auto", seconds=60, graph=graph)

Each distinct call of the table is measured itself; the rest of the time goes to calls of the same families in sampled
sizes (`pipeline.collect.sampler`). Rounds over the exact calls are spread over the whole time, so that a machine that is
busy for a while does not decide any median.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.bench import Bench, Cache, Timing
from pipeline.collect.cases import Case, Maker, Spec, UnsupportedCallError, build_case
from pipeline.collect.cases.base import spec_from_row
from pipeline.collect.device import fix_threads, keep_memory_mapped, release, select_device
from pipeline.collect.replay import Replayer
from pipeline.collect.sampler import around
from pipeline.errors import MeasurementError
from pipeline.schemas import DIMS, SCHEMAS

if TYPE_CHECKING:
    import torch

EXACT_SHARE = 0.5
"""Share of the time that goes to the calls themselves."""
CHUNK = 16
"""Sampled cases that are alive together."""
REPETITIONS = {"cpu": 7, "cuda": 4}
"""Repetitions of a sampled case, and of an exact one per round on CUDA."""
FIRST_ROUNDS = 3
"""Rounds over the exact calls that are made whatever the time limit."""
SLOWEST_US = 400_000.0
"""A sampled case above this is dropped after its warm-up: it would eat the time of many others."""


@dataclass
class Unmeasured:
    """Calls without a benchmark: how many distinct ones, by reason."""

    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, error: Exception) -> None:
        """Count one."""
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@dataclass
class _Work:
    """One measurement run: what is needed at every step of it."""

    bench: Bench
    device: torch.device
    deadline: float
    budget_bytes: int
    seed: int
    replayer: Replayer | None
    unmeasured: Unmeasured = field(default_factory=Unmeasured)
    made: int = 0

    def build(self, spec: Spec, cache: Cache, node: int | None) -> tuple[Timing, int] | None:
        """A warmed-up case and the bytes that it holds; None where it has no benchmark."""
        self.made += 1
        make = Maker(self.device, self.seed + self.made)
        try:
            timing = Timing(self._case(spec, node, make), cache)
            took = self.bench.warm_up(timing, SLOWEST_US)
            if node is None and took > SLOWEST_US:
                return None
            return timing, make.bytes
        except UnsupportedCallError as error:
            self.unmeasured.add(error)
        except (RuntimeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise MeasurementError(f"the device was lost in {spec.family} {spec.op}: {error}") from error
            self.unmeasured.add(MeasurementError(f"{spec.family} {spec.op}: {error}"))
        return None

    def _case(self, spec: Spec, node: int | None, make: Maker) -> Case:
        """On a CPU the graph's own operator comes first: it is what the step runs. A builder stands in."""
        import torch

        with torch.no_grad():
            if self.replayer is not None and node is not None:
                try:
                    return self.replayer.build(spec, node, make)
                except UnsupportedCallError:
                    pass
            return build_case(spec, make)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


def measure_calls(
    calls: pd.DataFrame,
    device: str = "auto",
    seconds: float = 60.0,
    *,
    graph: pd.DataFrame | None = None,
    gpu: str = "local",
    caches: Sequence[str] = (Cache.STEP,),
    sampled: bool = True,
    seed: int = 0,
    campaign_id: str = "local",
    source: str = "collect",
) -> pd.DataFrame:
    """Measure the kernels that a calls table names, and sizes around them.

    Args:
        calls: table of the `calls` schema.
        device: "cuda", "cpu", or "auto".
        seconds: time to use; the exact calls are measured whatever it is.
        graph: table of the `graph` schema that `calls` refers to. With it, operators on a CPU are replayed with their
            very strides and arguments, and those that no builder knows can be measured at all.
        gpu: value of the `gpu` column.
        caches: states of the cache to measure exact calls in; sampled sizes use the first.
        sampled: whether to measure sizes around the calls too.
        seed: of sizes and values.
        campaign_id: value of the `campaign_id` column.
        source: value of the `source` column.

    Returns:
        Rows of the `samples` schema. `kernel_us` is device time on CUDA (without launch floor; `latency_us` with it)
        and the operator's own host time on a CPU. `attrs["unmeasured"]` counts calls without a benchmark, by reason.

    Raises:
        InputError: there is no such device.
        MeasurementError: the device was lost.
    """
    place = select_device(device)
    fix_threads(place)
    keep_memory_mapped()
    begin = time.monotonic()
    replayer = Replayer(graph) if graph is not None and place.type == "cpu" else None
    work = _Work(Bench(place), place, begin + seconds, _budget_bytes(place), seed, replayer)
    first_node: dict[Any, tuple[Spec, int]] = {}
    for row in calls.to_dict("records"):
        spec = spec_from_row(row)
        first_node.setdefault(spec.key, (spec, int(row["node_id"])))
    exact = list(first_node.values())
    variants = around([spec for spec, _ in exact], seed) if sampled else iter(())
    rows: list[dict[str, Any]] = []
    states = [Cache(cache) for cache in caches]
    chunks = [(spec, node, cache) for cache in states for spec, node in exact]
    for timings, share in _chunks(work, chunks):
        end = time.monotonic() + share * max(work.left(), 0.0)
        rows += _measure_exact(work, timings, variants, states[0], end)
    frame = pd.DataFrame([{**_identity(row.pop("spec")), **row} for row in rows])
    frame = frame.assign(gpu=gpu, source=source, campaign_id=campaign_id)
    frame = frame.reindex(columns=SCHEMAS["samples"].names).astype({name: "Int64" for name in DIMS})
    frame.attrs["unmeasured"] = work.unmeasured.reasons
    return frame


def _chunks(work: _Work, wanted: Sequence[tuple[Spec, int, Cache]]) -> Iterator[tuple[list[Timing], float]]:
    """Exact cases in groups that fit the memory, each with its share of the time that is then left."""
    index = 0
    while index < len(wanted):
        timings: list[Timing] = []
        start, held = index, 0
        while index < len(wanted) and (held < work.budget_bytes or not timings):
            spec, node, cache = wanted[index]
            built = work.build(spec, cache, node)
            if built is not None:
                timings.append(built[0])
                held += built[1]
            index += 1
        yield timings, (index - start) / (len(wanted) - start)
        del timings
        release(work.device)


def _measure_exact(
    work: _Work, exact: list[Timing], variants: Iterator[Spec], cache: Cache, end: float
) -> list[dict[str, Any]]:
    """Rounds over the exact cases, with chunks of sampled cases between them, until `end`."""
    cuda = work.device.type == "cuda"
    begin = time.monotonic()
    work.bench.measure(exact, REPETITIONS["cuda"] if cuda else FIRST_ROUNDS)
    spent_exact, rows = time.monotonic() - begin, []
    while time.monotonic() < end:
        group = [timing for timing in _sampled(work, variants, cache) if timing is not None]
        work.bench.measure(group, REPETITIONS[work.device.type])
        rows += [_row(timing) for timing in group]
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
    return [row for row in [*(_row(timing) for timing in exact), *rows] if "kernel_us" in row]


def _sampled(work: _Work, variants: Iterator[Spec], cache: Cache) -> Iterator[Timing]:
    """The next sampled cases, fewer where they are large."""
    held = 0
    for spec in islice(variants, CHUNK):
        built = work.build(spec, cache, None)
        if built is None:
            continue
        yield built[0]
        held += built[1]
        if held > work.budget_bytes // 2:
            return


def _row(timing: Timing) -> dict[str, Any]:
    measured = timing.row()
    return {"spec": timing.case.spec, **measured} if measured else {}


def _identity(spec: Spec) -> dict[str, Any]:
    return {"family": spec.family, "op": spec.op, "phase": spec.phase, "dtype": spec.dtype, **spec.dims}


def _budget_bytes(device: torch.device) -> int:
    """Memory that cases may hold together: a part of what is free, so that a shared machine stays usable."""
    if device.type == "cuda":
        import torch

        return int(0.5 * torch.cuda.mem_get_info(device)[0])
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        free = 4 << 30
    return min(int(0.3 * free), 4 << 30)


def write_samples(frame: pd.DataFrame, path: Path, provenance: dict[str, Any] | None = None) -> None:
    """Write samples as a checked parquet table, with the unmeasured calls in its provenance."""
    from pipeline.schemas import write_table

    write_table(frame, path, "samples", {**(provenance or {}), "unmeasured": frame.attrs.get("unmeasured", {})})
