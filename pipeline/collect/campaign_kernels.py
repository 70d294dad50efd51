"""Campaign part `kernels`: microbenchmarks in rounds, in turn of the workloads' calls and of sizes around them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice

from pipeline.collect.benchmark_calls import distinct, interleaved, seeds, sizes_around
from pipeline.collect.campaign_calls import workload_calls
from pipeline.collect.case_timing import Cache
from pipeline.collect.cases import Spec
from pipeline.collect.microbenchmarks import measure_specs
from pipeline.collect.unit_runner import Campaign, DeviceLostError, Outcome
from pipeline.errors import MeasurementError
from pipeline.measured.campaign_files import SAMPLES

ROUND_CALLS = 48
"""Distinct calls per round; the families take turns."""
ROUND_SECONDS = 12.0
"""Time left (s) below which no further round starts."""
COLD_SHARE, WARM_SHARE = 1 / 6, 1 / 6
"""Shares of the rounds that run with a cold or a warm cache; in the other rounds the cache is as in a step."""
MAX_REASONS = 200
"""Largest number of reasons for unmeasured calls that the manifest lists."""
TINY_LIMIT, TINY_ROUNDS = 64, 2
"""Largest dimension in a trial on a CPU, and the number of rounds of a trial."""


def run_kernels(campaign: Campaign) -> None:
    """Measure rounds of calls until the time is used up."""
    calls = interleaved([*workload_calls(campaign), *distinct(list(seeds()))])
    if campaign.tiny:
        calls = distinct([shrink_for_trial(spec) for spec in calls])
    families = {spec.family for spec in calls}
    chosen = {name for name in families if campaign.wants(f"kernels/{name}")}
    if not chosen:
        return
    calls = [spec for spec in calls if spec.family in chosen]
    suffix = "" if chosen == families else "~" + "+".join(sorted(chosen))
    campaign = replace(campaign, only="")  # the families are filtered already
    exact = [calls[i : i + ROUND_CALLS] for i in range(0, len(calls), ROUND_CALLS)]
    for number in range(TINY_ROUNDS) if campaign.tiny else count():
        if campaign.left() <= (1 if campaign.tiny else ROUND_SECONDS):
            return
        # rounds of exact calls and of sampled sizes alternate; after all exact calls they repeat with another cache
        specs = _sampled(calls, number) if number % 2 else exact[number // 2 % len(exact)]
        unit = f"kernels/r{number:04d}{suffix}"
        campaign.run(
            unit, 0.0, partial(measure_round, campaign, unit, specs, number, cache_state(number))
        )


def measure_round(
    campaign: Campaign, unit: str, specs: Sequence[Spec], seed: int, cache: Cache
) -> Outcome:
    """Measure one round and add its rows.

    Raises:
        DeviceLostError: the device is gone.
    """
    labels = {
        "gpu": campaign.gpu,
        "campaign_id": f"{campaign.identity}:{unit}",
        "source": campaign.identity,
    }
    try:
        frame = measure_specs(
            specs, campaign.device, campaign.left() - 2, cache=cache, seed=seed, **labels
        )
    except MeasurementError as error:
        raise DeviceLostError(str(error)) from error
    campaign.folder.add(SAMPLES, frame)
    reasons = frame.attrs["unmeasured"]
    # one list for the whole campaign: a list for each of hundreds of rounds would make the manifest megabytes large
    all_reasons: dict[str, int] = campaign.folder.manifest.setdefault("unmeasured", {})
    for reason, calls in reasons.items():
        if reason in all_reasons or len(all_reasons) < MAX_REASONS:
            all_reasons[reason] = all_reasons.get(reason, 0) + calls
    unmeasured = sum(reasons.values())
    return {
        "status": "done",
        "extent": "partial" if frame.attrs["cut"] else "done",
        "rows": len(frame),
        "cache": cache.value,
        "unmeasured": unmeasured,
        "note": f"{len(frame)} rows, {unmeasured} without a benchmark",
    }


def cache_state(number: int) -> Cache:
    """The state of the cache in a round; reproducible, and equal for an exact round and the sampled one after it."""
    draw = random.Random(number // 2).random()
    if draw < COLD_SHARE:
        return Cache.COLD
    return Cache.WARM if draw < COLD_SHARE + WARM_SHARE else Cache.STEP


def shrink_for_trial(spec: Spec) -> Spec:
    """The call at a size that is fast in a trial on a CPU."""
    large = {
        "bytes": 1 << 14,
        "inputs": 1 << 14,
        "outputs": 1 << 14,
        "E": 1000,
        "B": 32,
        "HW": 64,
        "input_size": 16,
    }
    dims = {name: min(value, large.get(name, TINY_LIMIT)) for name, value in spec.dims.items()}
    kept = {
        key: value
        for key, value in spec.attributes.items()
        if key in ("distribution", "index_bytes")
    }
    return replace(spec, dims=dims, attributes=kept)


def _sampled(calls: Sequence[Spec], seed: int) -> list[Spec]:
    """A round of sampled sizes around the calls, in a random order of the calls."""
    shuffled = list(calls)
    random.Random(seed).shuffle(shuffled)
    return list(islice(sizes_around(shuffled, seed), ROUND_CALLS))
