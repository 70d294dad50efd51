"""The kernel calls of a campaign's workloads; this command writes them to a file, on any machine.

    python -m pipeline.collect.campaign_calls calls.json
    python -m pipeline.collect.campaign --calls calls.json ...

Finding the calls needs no GPU, but some seconds of CPU time per workload. Doing it beforehand saves paid time on a
rented GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from pipeline.collect.benchmark_calls import distinct
from pipeline.collect.campaign_grid import StepPlan, plans
from pipeline.collect.cases import Spec
from pipeline.collect.cases.case import spec_from_row
from pipeline.collect.unit_runner import Campaign
from pipeline.errors import InputError, SteptimeError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.measured.campaign_reader import TraceMember, read_traces
from pipeline.schemas import atomic_path

REWRITE_ADVICE = "write it again with `python -m pipeline.collect.campaign_calls`"
CAPTURE_SHARE, CAPTURE_SECONDS = 0.15, 40.0
"""Time limit for finding the workloads' calls: this share of the time left, and at most this many seconds."""


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
    calls: list[Spec] = []
    notes: dict[str, str] = {}
    end = time.monotonic() + min(CAPTURE_SHARE * campaign.left(), CAPTURE_SECONDS)
    members = read_traces(campaign.folder.path) if campaign.tiny else ()
    traced = {member.workload: member for member in members if member.execution_trace}
    for plan in plans(campaign.tiny):
        member = traced.get(plan.unit.removeprefix("steps/"))
        if plan.overrides.get("dtype") is not None or (campaign.tiny and member is None):
            continue
        if plan.unit in campaign.calls:
            calls += campaign.calls[plan.unit]
        elif time.monotonic() > end:
            notes[plan.unit] = "no time"
        else:
            try:
                calls += (
                    _traced(member, campaign.device.type)
                    if member is not None
                    else calls_of_plan(plan)
                )
            except Exception as error:  # the calls of the other workloads and the seeds remain
                notes[plan.unit] = f"{type(error).__name__}: {error}"[:200]
    campaign.folder.manifest["calls_not_known"] = notes
    return distinct(calls)


def calls_of_plan(plan: StepPlan) -> list[Spec]:
    """The calls of a planned step, from its graph.

    Raises:
        SteptimeError: the workload or the map of operators needs a package that is not installed.
    """
    return _specs(map_calls(capture(plan.config(), plan.batch_size)))


def _traced(member: TraceMember, device: str) -> list[Spec]:
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        _, path = member.extract(Path(scratch))
        return [] if path is None else _specs(map_calls(import_execution_trace(path), None, device))


def _specs(calls: pd.DataFrame) -> list[Spec]:
    return [
        spec_from_row(row)
        for row in calls.to_dict("records")
        if not str(row["api"]).endswith("Synchronize")
    ]


def write_calls(calls: Mapping[str, Sequence[Spec]], path: Path) -> None:
    """Write the calls of workloads by unit, completely or not at all."""
    text = json.dumps(
        {unit: [asdict(spec) for spec in specs] for unit, specs in calls.items()}, sort_keys=True
    )
    with atomic_path(path) as part:
        part.write_text(text)


def read_calls(path: Path) -> dict[str, list[Spec]]:
    """The calls of workloads by unit.

    Raises:
        InputError: the file is missing or not a file of calls.
    """
    try:
        units = json.loads(path.read_text())
        return {unit: [Spec(**fields) for fields in specs] for unit, specs in units.items()}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; {REWRITE_ADVICE}") from None
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{path}: not a file of calls; {REWRITE_ADVICE}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Find the calls of every planned step in fp32 and write them; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m pipeline.collect.campaign_calls FILE", file=sys.stderr)
        return 2
    calls: dict[str, list[Spec]] = {}
    for plan in plans():
        if plan.overrides.get("dtype") is not None:
            continue
        try:
            calls[plan.unit] = distinct(calls_of_plan(plan))
        except SteptimeError as error:  # the campaign finds these calls itself, if it can
            print(f"{plan.unit}: skipped: {error}", file=sys.stderr)
            continue
        print(f"{plan.unit}: {len(calls[plan.unit])} calls", flush=True)
    write_calls(calls, Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
