"""Measure a GPU for step-time prediction: training steps, traces, kernels, peaks.

    python -m pipeline.collect.campaign --out measurements/H100 --minutes 10

Run it again with the same folder to continue an interrupted campaign, also after a kill. It needs torch, numpy, pandas
and pyarrow.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.collect.campaign_folder import CampaignFolder, check
from pipeline.collect.campaign_supervisor import (
    EXIT_DAMAGED,
    EXIT_DEVICE_LOST,
    EXIT_DONE,
    EXIT_NO_KERNELS,
    EXIT_UNEXPECTED,
    end_with_parent,
    report,
    supervise,
)
from pipeline.collect.device import fix_threads, keep_memory_mapped, select_device
from pipeline.collect.device_facts import describe
from pipeline.collect.unit_runner import Campaign, DeviceLostError
from pipeline.errors import SteptimeError

START_TIME = time.monotonic()  # the time limit counts from here

PARTS = ("peaks", "steps", "kernels")
"""Parts of a campaign, in the order of a run."""
TIME_SHARES = {"times": 0.25, "peaks": 0.37, "steps": 0.65, "kernels": 1.0}
"""Share of the time limit by which each part must stop. The shares are cumulative: unused time goes to the later parts.
`times` is the unprofiled timing of the steps, which runs before anything is profiled."""


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; wrong arguments end the process with exit code 2 and one line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.collect.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "exit codes: 0 done or out of time, 1 a file of the folder is damaged, 2 bad arguments,"
            " 3 the profiler sees no kernels, 4 device lost, 5 a unit hung, 128 + n signal n ended"
            " the process; 4 and 5 if no further process could go on. After each of them the folder"
            " holds what was measured so far."
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of the results, new or of an interrupted campaign",
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=10.0, help="time limit, imports included (default 10)"
    )
    parser.add_argument(
        "--only",
        type=_pattern,
        default="",
        metavar="REGEX",
        help="units to measure, such as 'steps/dlrm_ddp', 'kernels/gemm', 'peaks'",
    )
    parser.add_argument(
        "--calls",
        type=Path,
        metavar="FILE",
        help=(
            "the workloads' calls, as `python -m pipeline.collect.campaign_calls FILE` writes them"
            " on any machine: the campaign then spends no time on finding them"
        ),
    )
    parser.add_argument(
        "--parts", type=_parts, default=PARTS, help="parts in order (default peaks,steps,kernels)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--tiny", action="store_true", help="very small sizes: a trial, not a measurement"
    )
    return parser.parse_args(argv)


def command_line() -> int:
    """Run the campaign in a separate process, and in a new one if that process is lost; returns the exit code."""
    args = parse_args()
    return supervise(sys.argv[1:], args.out, args.minutes, START_TIME)


def run_child(arguments: Sequence[str]) -> int:
    """Run the campaign in its own process; the process ends when its parent, whose id is the first argument, ends."""
    end_with_parent(int(arguments[0]))
    try:
        return main(arguments[1:])
    except Exception:  # after a CUDA error, any later call in the process may fail
        traceback.print_exc()
        return EXIT_UNEXPECTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign in this process; returns the exit code."""
    begin = time.monotonic()
    args = parse_args(argv)
    # the profiler would print several lines per unit; if it does not work, the preflight's error says how to show them
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # otherwise CUPTI's teardown after one profile would run during the next one: github.com/pytorch/kineto/pull/1554
    os.environ.setdefault("TEARDOWN_CUPTI", "0")

    try:
        return _run(args, begin)
    except SteptimeError as error:
        report(f"error: {error}")
        return error.exit_code


def _run(args: argparse.Namespace, begin: float) -> int:
    from pipeline.collect.campaign_calls import read_calls
    from pipeline.collect.profiling import SESSIONS, ProfilerError

    calls = read_calls(args.calls) if args.calls else {}
    device = select_device(args.device)
    fix_threads(device)
    if device.type == "cpu":
        keep_memory_mapped()
    about = describe(device)
    folder = CampaignFolder(args.out, about | {"tiny": args.tiny})
    identity = folder.manifest.setdefault("campaign_id", f"{about['gpu']}-{int(time.time())}")
    deadline = begin + 60 * args.minutes
    campaign = Campaign(
        folder, device, about["gpu"], deadline, args.only, args.tiny, identity, calls=calls
    )
    run: dict[str, Any] = {
        "command": _published_options(args),
        "started_unix": int(time.time()),
        "status": "running",
    }
    run["minutes"] = round(
        args.minutes, 2
    )  # a restarted process records the minutes that were left
    folder.manifest["runs"].append(run)
    folder.save()
    code = EXIT_DONE
    try:
        _measure(campaign, args, begin, run)
        run["status"] = "complete" if campaign.left() > 0 else "out of time"
    except ProfilerError as error:
        code = EXIT_NO_KERNELS
        run["status"] = f"preflight failed: {error}"
        report(f"error: {error}")
    except DeviceLostError as error:
        code = EXIT_DEVICE_LOST
        run["status"] = f"device lost: {error}"[:500]
        report(f"error: {run['status']}")
    run["profiler"] = asdict(SESSIONS)
    run["seconds"] = round(time.monotonic() - begin, 1)
    folder.save()
    problems = check(args.out)
    for problem in problems:
        report(f"error: {problem}")
    print(_summary(folder.manifest, args.out, run["seconds"]))
    return EXIT_DAMAGED if problems and code == EXIT_DONE else code


def _measure(
    campaign: Campaign, args: argparse.Namespace, begin: float, run: dict[str, Any]
) -> None:
    """Check whether measurements on the device can be trusted, then measure each part within its share of the time."""
    from pipeline.collect.campaign_kernels import run_kernels
    from pipeline.collect.campaign_steps import run_steps, run_times
    from pipeline.collect.measured_steps import steadiness
    from pipeline.collect.peaks import PLAIN_UNIT, run_peaks
    from pipeline.collect.profiling import preflight

    device, several = campaign.device, len(args.parts) > 1
    run["preflight"] = _check_result(lambda: steadiness(device))
    for warning in run["preflight"]["warnings"]:
        report(f"warning: {warning}")
    # what must run before the first profile
    share = TIME_SHARES["times"] if several else 0.5
    campaign.part_deadline = begin + 60 * args.minutes * share
    if "peaks" in args.parts:
        run_peaks(campaign, (PLAIN_UNIT,))
    if "steps" in args.parts:
        run_times(campaign)
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        run["preflight"] |= _check_result(lambda: preflight(device, Path(scratch)))
    for part in args.parts:
        campaign.part_deadline = begin + 60 * args.minutes * (TIME_SHARES[part] if several else 1.0)
        {"peaks": run_peaks, "steps": run_steps, "kernels": run_kernels}[part](campaign)


def _check_result(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a check."""
    try:
        return check()
    except RuntimeError as error:
        raise DeviceLostError(f"preflight: {error}") from error


def _published_options(args: argparse.Namespace) -> str:
    """The command-line options without folder names, because measurements are published without local paths."""
    only = f" --only {args.only}" if args.only else ""
    return f"--parts {','.join(args.parts)}{only}{' --tiny' if args.tiny else ''}"


def _summary(manifest: dict[str, Any], folder: Path, seconds: float) -> str:
    counts = Counter(unit["status"] for unit in manifest["units"].values())
    size = sum(file.stat().st_size for file in folder.iterdir())
    units = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"
    return (
        f"{folder}: units {units}; {size / 1e6:.1f} MB after {seconds:.0f} s. Run the same command"
        " again to continue."
    )


def _minutes(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 24 * 60:
        raise argparse.ArgumentTypeError("between 0.05 and 1440")
    return value


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from None
    return text


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(
            f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}"
        )
    return names


if __name__ == "__main__":
    sys.exit(command_line())
