"""Probes the CPU of this machine, without a GPU, for a host file: `steptime host`.

A small training step runs on the CPU under the profiler. What does not depend on the device is compared with the public V100
traces: the time between operators (T1: Python and autograd), and that of operators that only make views. Their ratio is
taken as the factor of all host times. On nine public traces of six hosts it was right within a standard deviation of 0.22
of the logarithm, for factors from 0.7 to 3 (docs/workloads.md).

What the profiler adds to an operator is measured here and subtracted. It differs more between machines than the operators do:
on the host of the measured H100 it is 6.3 us, more than the operators themselves take.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from math import hypot, log
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import pandas as pd
import torch

from pipeline.collect.case_timing import Bench
from pipeline.collect.device import fix_threads
from pipeline.collect.device_facts import describe
from pipeline.collect.measured_steps import warm_up
from pipeline.collect.peaks import profiler_costs
from pipeline.collect.profiling import profile_steps
from pipeline.errors import MeasurementError, SteptimeWarning
from pipeline.hardware.hosts import Host
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import MIN_COMMON, ProfilerCost, calibrate, corrected, merged
from pipeline.overheads.trace_overheads import extract_traces
from pipeline.question.question import ask
from pipeline.schemas import atomic_path
from pipeline.workloads import make_step

DONOR = "V100"
"""The GPU whose host's observations the probe is compared with."""

WORKLOADS = {"dlrm_small": 16, "dlrm_ddp": 16}
"""The steps of the probe with their batch sizes: like the traced ones, small enough to be launches alone."""

ROUNDS, ITERATIONS = 5, 12
"""Profiles of each step, of which the median counts, and steps in each."""

PROBE_LOG_SD = 0.22
"""Standard deviation of the log of the factor that the probe gives (docs/workloads.md)."""

BUSY_SHARE = 0.9
"""Share of a core below which other programs slow the probe. On two cores it had 0.99 beside one, 0.5 to 0.7 beside two or more."""

VIEWS = tuple(
    f"aten::{name}"
    for name in (
        "as_strided",
        "detach",
        "empty",
        "expand",
        "lift_fresh",
        "permute",
        "reshape",
        "select",
        "slice",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
    )
)
"""Operators that compute nothing, and take the same time on tensors of any device."""


def probe_samples(observations: pd.DataFrame) -> pd.DataFrame:
    """The observations (`overhead_samples`) that do not depend on the device."""
    kind = observations["type"]
    op = observations["op"]
    return observations[(kind == "T1") | ((kind == "T5") & op.isin(VIEWS))]


def probe_factor(observations: pd.DataFrame, donor: OverheadModel) -> float:
    """Host time over that of the donor, from the observations that do not depend on the device.

    Raises:
        MeasurementError: too few of them occur in the donor's traces.
    """
    result = calibrate(donor, probe_samples(observations))
    if result.common < MIN_COMMON:
        raise MeasurementError(
            f"{result.common} operators in common with the known host: the probe needs {MIN_COMMON}"
        )
    return result.scale


def known_host(donor: pd.DataFrame) -> OverheadModel:
    """The host of the donor's observations (`overhead_samples`), less what the profiler cost there."""
    usual = ask([f"gpu={DONOR}"]).overheads
    return OverheadModel(
        merged(corrected(donor, ProfilerCost(usual.profiler_event_us, usual.profiler_launch_us)))
    )


def profiler_cost(device: torch.device) -> ProfilerCost:
    """What the profiler adds to each operator on this machine."""
    peaks = {peak.name: peak.value for peak in profiler_costs(Bench(device), tiny=False)}
    return ProfilerCost(peaks["profiler_event_us"], launch_us=0.0)  # a CPU launches nothing


def probe_host(
    name: str, donor: pd.DataFrame, say: Callable[[str], object] = lambda _: None
) -> Host:
    """Measure this machine's CPU.

    Args:
        name: name of the host.
        donor: observations of `DONOR`'s host (`overhead_samples`).
        say: called with the progress.

    Raises:
        MeasurementError: the profiler records no step, or a step fails on this machine.
    """
    device = torch.device("cpu")
    known = known_host(donor)
    fix_threads(device)
    say("probing the host: cost of the profiler")
    cost = profiler_cost(device)
    factors = []
    shares = []
    for model, batch_size in WORKLOADS.items():
        step = make_step(
            ask([f"gpu={DONOR}", f"model={model}"]).section("model"), batch_size, "cpu"
        )
        warm_up(step.run, device)
        for number in range(1, ROUNDS + 1):
            say(f"probing the host: {model}, {number} of {ROUNDS}")
            with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
                used = thread_time()
                begin = perf_counter()
                profile = profile_steps(step.run, device, ITERATIONS, Path(scratch) / "kineto.json")
                shares.append((thread_time() - used) / (perf_counter() - begin))
                factors.append(
                    probe_factor(corrected(extract_traces([(model, profile.path)]), cost), known)
                )
    what = "this machine, probed without a GPU"
    log_sd = PROBE_LOG_SD
    if (share := median(shares)) < BUSY_SHARE:  # times are longer by up to 1 / share
        what = f"{what} while other programs ran"
        log_sd = round(hypot(log_sd, log(share)), 3)
        text = (
            f"other programs left the probe {share:.0%} of a core: its interval is wider; stop them"
            " and probe again"
        )
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return Host(name, what, DONOR, round(median(factors), 3), log_sd)


def write_host(host: Host, file: Path) -> None:
    """Write the file of a probed host, with the CPU and the software that it was probed on."""
    facts = describe(torch.device("cpu"))
    machine = (
        f"{facts['cpu'] or 'an unknown CPU'}, torch {facts['torch']}, Python {facts['python']}"
    )
    with atomic_path(file) as part:
        part.write_text(
            f"# Made by `steptime host` on {machine}.\n"
            f"name: {host.name}\nwhat: {host.what}\nobservations: {host.observations}\n"
            f"scale: {host.scale:g}\nlog_sd: {host.log_sd:g}\n"
            'sources:\n  scale: "probe of the CPU (pipeline/collect/host_probe.py)"\n',
            encoding="utf-8",
        )
