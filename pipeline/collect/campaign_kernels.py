"""Campaign part `kernels`: microbenchmarks in rounds, in turn of the workloads' calls and of sizes around them."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.collect.campaign_grid import StepPlan, plans
from pipeline.collect.campaign_reader import TraceMember, read_traces
from pipeline.collect.case_timing import Cache
from pipeline.collect.cases import Spec
from pipeline.collect.cases.case import spec_from_row
from pipeline.collect.microbenchmarks import measure_specs
from pipeline.collect.seed_calls import seeds
from pipeline.collect.size_sampler import distinct, interleaved, sizes_around
from pipeline.collect.unit_runner import Campaign, DeviceLostError, Outcome
from pipeline.errors import MeasurementError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.execution_trace import import_execution_trace

ROUND_CALLS = 48
"""Distinct calls per round; the families take turns."""
ROUND_SECONDS = 12.0
"""Time left (s) below which no further round starts."""
COLD_SHARE, WARM_SHARE = 1 / 6, 1 / 6
"""Shares of the rounds that run with a cold or a warm cache; in the other rounds the cache is as in a step."""
MAX_REASONS = 200
"""Largest number of reasons for unmeasured calls that the manifest lists."""
CAPTURE_SHARE, CAPTURE_SECONDS = 0.15, 40.0
"""Time limit for finding the workloads' calls: this share of the time left, and at most this many seconds."""
TINY_LIMIT, TINY_ROUNDS = 64, 2
"""Largest dimension in a trial on a CPU, and the number of rounds of a trial."""


def run_kernels(campaign: Campaign) -> None:
    """Measure rounds of calls until the time or the space is used up."""
    wanted = interleaved([*workload_calls(campaign), *distinct(list(seeds()))])
    if campaign.tiny:
        wanted = distinct([shrink_for_trial(spec) for spec in wanted])
    families = {spec.family for spec in wanted}
    chosen = {name for name in families if campaign.wants(f"kernels/{name}")}
    if not chosen:
        return
    wanted = [spec for spec in wanted if spec.family in chosen]
    suffix = "" if chosen == families else "~" + "+".join(sorted(chosen))
    with ignoring_old_objects():
        _rounds(campaign, wanted, suffix)


@contextmanager
def ignoring_old_objects() -> Iterator[None]:
    """While the body runs, the garbage collector ignores all objects that existed before it.

    PyTorch and captured graphs are about 400,000 objects. Every release of memory between groups of
    calls would search them again: 0.25 to 0.4 s each on a slow core, with three workloads captured.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _rounds(campaign: Campaign, wanted: Sequence[Spec], suffix: str) -> None:
    exact = [wanted[i : i + ROUND_CALLS] for i in range(0, len(wanted), ROUND_CALLS)]
    campaign = replace(campaign, only="")  # the families are filtered already
    number = 0
    while campaign.left() > (1 if campaign.tiny else ROUND_SECONDS) and not campaign.folder.samples_full():
        if campaign.tiny and number >= TINY_ROUNDS:
            return
        # rounds of exact calls and of sampled sizes alternate; after all exact calls they repeat with another cache
        specs = (
            exact[number // 2 % len(exact)] if number % 2 == 0 else list(islice(_sampled(wanted, number), ROUND_CALLS))
        )
        unit, cache = f"kernels/r{number:04d}{suffix}", cache_state(number)
        campaign.run(unit, 0.0, lambda s=specs, u=unit, n=number, c=cache: measure_round(campaign, u, s, n, c))  # type: ignore[misc]
        number += 1


def measure_round(campaign: Campaign, unit: str, specs: Sequence[Spec], seed: int, cache: Cache) -> Outcome:
    """Measure one round and add its rows.

    Raises:
        DeviceLostError: the device is gone.
    """
    try:
        frame = measure_specs(
            specs,
            campaign.device,
            campaign.left() - 2,
            cache=cache,
            seed=seed,
            gpu=campaign.gpu,
            campaign_id=f"{campaign.identity}:{unit}",
            source=campaign.identity,
        )
    except MeasurementError as error:
        raise DeviceLostError(str(error)) from error
    campaign.folder.add_samples(frame)
    reasons = frame.attrs["unmeasured"]
    # one list for the whole campaign: a list for each of hundreds of rounds would make the manifest megabytes large
    told: dict[str, int] = campaign.folder.manifest.setdefault("unmeasured", {})
    for reason, count in reasons.items():
        if reason in told or len(told) < MAX_REASONS:
            told[reason] = told.get(reason, 0) + count
    short = "partial" if frame.attrs["cut"] else "done"
    return {
        "status": "done",
        "extent": short,
        "rows": len(frame),
        "cache": cache.value,
        "unmeasured": sum(reasons.values()),
        "note": f"{len(frame)} rows, {sum(reasons.values())} without a benchmark",
    }


def workload_calls(campaign: Campaign) -> list[Spec]:
    """The distinct calls that the grid's workloads make, the most valuable first.

    Sources of the calls, in this order:

    1. the file of `--calls`;
    2. in a trial, the traces of the trial;
    3. otherwise a capture without running the model, as for predictions, within a small share of the time.

    Sources 2 and 3 need PyYAML, because the map from operators to calls is a YAML file. Without PyYAML and the file of
    `--calls`, only the seeds are measured, which hold the main shapes of the workloads. The manifest lists these
    workloads under `calls_not_known`.
    """
    found: list[Spec] = []
    notes: dict[str, str] = {}
    end = time.monotonic() + min(CAPTURE_SHARE * campaign.left(), CAPTURE_SECONDS)
    traced = {
        (member.model, member.variant, member.batch_size): member
        for member in (read_traces(campaign.folder.path) if campaign.tiny else ())
        if member.execution_trace
    }
    for plan in plans(campaign.tiny):
        member = traced.get((plan.model, plan.variant, plan.batch_size))
        if plan.overrides.get("dtype") is not None or (campaign.tiny and member is None):
            continue
        if plan.unit in campaign.calls:
            found += campaign.calls[plan.unit]
            continue
        if time.monotonic() > end:
            notes[plan.unit] = "no time"
            continue
        try:
            found += _traced(member, campaign) if member is not None else calls_of_plan(plan)
        except Exception as error:  # the calls of the other workloads and the seeds remain
            notes[plan.unit] = f"{type(error).__name__}: {error}"[:200]
    campaign.folder.manifest["calls_not_known"] = notes
    return distinct(found)


def cache_state(number: int) -> Cache:
    """The state of the cache in a round; reproducible, and equal for an exact round and the sampled one after it."""
    draw = random.Random(number // 2).random()
    return Cache.COLD if draw < COLD_SHARE else Cache.WARM if draw < COLD_SHARE + WARM_SHARE else Cache.STEP


def shrink_for_trial(spec: Spec) -> Spec:
    """The call at a size that is fast in a trial on a CPU."""
    large = {"bytes": 1 << 14, "inputs": 1 << 14, "outputs": 1 << 14, "E": 1000, "B": 32, "HW": 64, "input_size": 16}
    limits = {name: large.get(name, TINY_LIMIT) for name in spec.dims}
    dims = {name: min(value, limits[name]) for name, value in spec.dims.items()}
    kept = {key: value for key, value in spec.attributes.items() if key in ("distribution", "index_bytes")}
    return replace(spec, dims=dims, attributes=kept)


def calls_of_plan(plan: StepPlan) -> list[Spec]:
    """The calls of a planned step, from its graph.

    Raises:
        SteptimeError: the workload or the map of operators needs a package that is not installed.
    """
    return _specs(map_calls(capture(plan.config(), plan.batch_size)))


def _traced(member: TraceMember, campaign: Campaign) -> list[Spec]:
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        _, path = member.extract(Path(scratch))
        if path is None:
            return []
        return _specs(map_calls(import_execution_trace(path), None, campaign.device.type))


def _specs(calls: pd.DataFrame) -> list[Spec]:
    return [spec_from_row(row) for row in calls.to_dict("records") if not str(row["api"]).endswith("Synchronize")]


def _sampled(wanted: Sequence[Spec], seed: int) -> Iterator[Spec]:
    order: list[Any] = list(wanted)
    random.Random(seed).shuffle(order)
    return sizes_around(order, seed)
