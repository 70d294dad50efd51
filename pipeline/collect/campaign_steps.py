"""Campaign part `steps`: unprofiled step times and traces of the workload grid."""

from __future__ import annotations

import gzip
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.collect.campaign_folder import times_unit
from pipeline.collect.campaign_grid import StepPlan, plans
from pipeline.collect.device import free_bytes, reporting_unsupported, set_tf32, still_computes
from pipeline.collect.device_facts import gpu_state
from pipeline.collect.measured_steps import time_steps, warm_up
from pipeline.collect.profiling import Profile, Step, execution_trace, profile_steps
from pipeline.collect.unit_runner import Campaign, Outcome
from pipeline.errors import SteptimeError
from pipeline.measured.campaign_files import STEP_TIMES
from pipeline.paths import EXECUTION_TRACE, KINETO
from pipeline.workloads import make_step

STEP_SECONDS = 1.2
"""Half of the seconds of unprofiled steps."""
COMPRESSION = 6
"""Gzip level of the traces; the highest level takes four times as long and saves only a tenth of the size."""
MIN_ITERATIONS = 2
"""Smallest number of profiled iterations in a trace."""
ATTEMPTS = 3
"""Largest number of profiles of a step; a profile is repeated if kernels are missing in it."""
TIMES_SHARE = 0.5
"""Share of a unit's time that is used for its unprofiled steps."""
RESERVED_BYTES = 12 << 30
"""Bytes of device memory that embedding tables must leave free for everything else."""


def run_times(campaign: Campaign) -> None:
    """Time every planned step that fits the time, unprofiled, in a process that has not run a profiler yet.

    Kineto leaves CUPTI attached to the process when a profile ends. Steps that wait for the host then take up to 20 %
    longer (github.com/pytorch/pytorch/issues/144455), so their times would not be those of normal training.
    """
    units = campaign.folder.units
    for plan in plans(campaign.tiny):
        unit = times_unit(plan.unit)
        if not campaign.wants(plan.unit):
            continue
        ran = campaign.run(unit, TIMES_SHARE * plan.seconds, partial(time_step, campaign, plan))
        if ran and units[unit]["status"] != "done":  # profiling the step would fail too
            units[plan.unit] = units.pop(unit)
            campaign.folder.save()
    set_tf32("fp32")


def run_steps(campaign: Campaign) -> None:
    """Profile every planned step that fits the time and that `run_times` timed."""
    for plan in plans(campaign.tiny):
        if campaign.folder.step_facts(plan.unit) is None:
            continue  # the next run of the campaign times it, in a process that has not run a profiler
        seconds = (1 - TIMES_SHARE) * plan.seconds
        ran = campaign.run(plan.unit, seconds, partial(measure_step, campaign, plan))
        if ran and campaign.folder.units[plan.unit]["status"] == "done":
            campaign.folder.units.pop(times_unit(plan.unit), None)
            campaign.folder.save()
    set_tf32("fp32")


def time_step(campaign: Campaign, plan: StepPlan) -> Outcome:
    """Time one step and write its row to the folder.

    Raises:
        InputError: the workload needs a package that is not installed.
        UnsupportedByDeviceError: the device cannot run an operator of the step in its dtype.
        RuntimeError: the step fails, for example because memory runs out.
    """
    step, facts, step_seconds, seconds = _warmed_up(campaign, plan)
    times = time_steps(step.run, campaign.device, 2 * seconds, step_seconds)
    if campaign.device.type == "cuda":
        facts["state"] = gpu_state()  # now, to get the clocks during the steps
    identity = {
        "gpu": campaign.gpu,
        "model": plan.model,
        "variant": plan.variant,
        "batch_size": plan.batch_size,
        "source": campaign.identity,
    }
    row = {**times.row(facts, campaign.device), **identity}
    campaign.folder.add(STEP_TIMES, pd.DataFrame([row]))
    return {"note": f"{times.median_us:.0f} us"}


def measure_step(campaign: Campaign, plan: StepPlan) -> Outcome:
    """Profile one step that was timed before; add to its row, and write its traces to the folder.

    Raises:
        InputError: the workload needs a package that is not installed.
        UnsupportedByDeviceError: the device cannot run an operator of the step in its dtype.
        RuntimeError: the step fails, for example because memory runs out.
    """
    step, *_ = _warmed_up(campaign, plan)
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        members, facts = _traces(step.run, campaign.device, plan, Path(scratch))
    name = plan.unit.removeprefix("steps/")
    facts["trace"] = campaign.folder.archive(name, members) if members else None
    campaign.folder.add_step_facts(plan.unit, facts)
    note = facts["note"]
    if members:
        note = "{profiled_step_us:.0f} us, kernels {profiled_kernel_us:.0f} us".format(**facts)
    return {"trace": facts["trace"], "note": f"profiled {note}"}


def _warmed_up(campaign: Campaign, plan: StepPlan) -> tuple[Any, dict[str, Any], float, float]:
    """The warmed-up step of a plan in its precision, facts about it, the seconds of its last run, and
    half of the seconds to time it.
    """
    device, seconds = campaign.device, 0.02 if campaign.tiny else STEP_SECONDS
    torch.manual_seed(0)
    config, capped = cap_tables(plan.config(), device)
    set_tf32(str(config.get("dtype", "default")))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with reporting_unsupported(
        plan.unit.removeprefix("steps/"), str(config.get("dtype", "fp32")), device
    ):
        step = make_step(config, plan.batch_size, device.type)
        step_seconds = warm_up(step.run, device, 4 * seconds)
    facts = {"unit": plan.unit, "config": config, "rows_capped": capped}
    return step, facts, step_seconds, seconds


def _traces(
    run: Step, device: torch.device, plan: StepPlan, scratch: Path
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Compressed traces of a step by name, and facts about them.

    There are no traces if the step cannot be profiled; then only its times are kept.
    """
    try:
        profile, kineto, iterations = _profile(run, device, plan, scratch / "kineto.json")
    except (SteptimeError, RuntimeError, OSError) as error:
        if not still_computes(device):
            raise
        return {}, {"note": f"no trace: {type(error).__name__}: {error}"[:200]}
    members = {KINETO: kineto}
    note = ""
    if plan.first:
        try:
            trace = execution_trace(run, device, scratch)
            members[EXECUTION_TRACE] = gzip.compress(trace, COMPRESSION, mtime=0)
        except (SteptimeError, RuntimeError, OSError, TypeError) as error:
            note = f"no execution trace: {error}"[:200]
    return members, {
        "note": note,
        "profiled_step_us": profile.step_us,
        "profiled_kernel_us": profile.kernel_us,
        "iterations": iterations,
        "device_calls": profile.device_calls,
        "kernels_lost": profile.lost,
    }


def _profile(
    run: Step, device: torch.device, plan: StepPlan, path: Path
) -> tuple[Profile, bytes, int]:
    """A profile of the step, its compressed trace, and its iterations (fewer if the trace would be too large)."""
    iterations = plan.iterations
    attempts = 0
    while True:
        profile = profile_steps(run, device, iterations, path)
        attempts += 1
        if profile.lost and attempts < ATTEMPTS:
            continue
        data = gzip.compress(path.read_bytes(), COMPRESSION, mtime=0)
        fewer = max(MIN_ITERATIONS, int(0.95 * iterations * plan.trace_bytes / len(data)))
        if fewer >= iterations:
            return profile, data, iterations
        iterations = fewer


def cap_tables(config: dict[str, Any], device: torch.device) -> tuple[dict[str, Any], int | None]:
    """The configuration with embedding tables that fit the device, and the limit of rows (None if none was needed).

    `dlrm_mlperf` has 90 GiB of tables. On a smaller device the largest tables get fewer rows, and `rows_capped` in the
    step's row states the limit.
    """
    rows = config.get("rows")
    dim = config.get("dim")
    if rows is None or dim is None:
        return config, None
    sizes = (
        [int(r) for r in rows]
        if isinstance(rows, list)
        else [int(rows)] * int(config.get("tables") or 1)
    )
    copies = (
        2 if config.get("embedding") == "dense" else 1
    )  # a dense gradient is as large as its table
    free = free_bytes(device)
    free = free - min(RESERVED_BYTES, free // 2) if device.type == "cuda" else free // 4
    cap = largest = max(sizes)
    while 4 * int(dim) * copies * sum(min(size, cap) for size in sizes) > free and cap > 1000:
        cap = int(0.9 * cap)
    if cap == largest:
        return config, None
    return {
        **config,
        "rows": [min(size, cap) for size in sizes],
        "tables": None,
    }, cap
