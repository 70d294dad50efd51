"""Run the campaign in a separate process, and start a new process if that one is lost and time is left.

A process can be lost in three ways:

- An illegal memory access makes every later CUDA call in the process fail.
- A fault in a library ends the process.
- A kernel that never returns blocks the process.

On a rented GPU nobody watches the run, so a new process continues with the remaining units.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.collect.campaign_folder import remove_parts, write_manifest
from pipeline.measured.campaign_files import read_manifest
from pipeline.paths import CAMPAIGN

EXIT_DONE, EXIT_DAMAGED, EXIT_NO_KERNELS, EXIT_DEVICE_LOST, EXIT_HUNG = 0, 1, 3, 4, 5
"""Exit codes of a campaign; 2 is for bad arguments."""

EXIT_UNEXPECTED = 70  # as in sysexits.h

STALL_SECONDS, STALL_SHARE = 120.0, 0.25
"""Longest time without a unit that starts or ends, in seconds and as a share of the time limit. The longer one applies;
after it the process is ended. The longest unit seen took 73 s (a profile of ResNet-50 on a slow core). The import of
torch from a cold disk took a minute."""
MIN_RESTART_SECONDS = 45.0
"""Seconds that must be left to start another process; with less, the imports take most of the time."""
MAX_PROCESSES = 6
"""Largest number of processes of a campaign. A device that is lost permanently would end each new process too."""
LAST_WAIT_SECONDS = 25.0
"""Seconds after the time limit at which the process is killed; units are planned to end before the limit."""
POLL_SECONDS = 0.25
"""Seconds between two checks of the process."""

CHILD_COMMAND = (
    sys.executable,
    "-c",
    (
        "import sys; from pipeline.collect.campaign import run_child;"
        " sys.exit(run_child(sys.argv[1:]))"
    ),
)
"""Command of the campaign's process. The first argument is the id of the parent; the process ends with the parent."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def supervise(
    arguments: Sequence[str],
    out: Path,
    minutes: float,
    begin: float,
    command: Sequence[str] = CHILD_COMMAND,
) -> int:
    """Run a campaign to its end, in one or more processes; returns its exit code.

    Args:
        arguments: valid arguments of the command line.
        out: the campaign's folder.
        minutes: the time limit.
        begin: `time.monotonic()` at the start of the time limit.
        command: the command that runs a campaign; the arguments are appended.
    """
    deadline = begin + 60 * minutes
    stall = max(STALL_SECONDS, STALL_SHARE * 60 * minutes)
    for number in range(1, MAX_PROCESSES + 1):
        left = (deadline - time.monotonic()) / 60
        limit = "--minutes", f"{max(left, 0.05):.4f}"
        child = [*command, str(os.getpid()), *arguments, *limit]
        code = _wait(subprocess.Popen(child), out / CAMPAIGN, deadline, stall)
        lost = code in (EXIT_DEVICE_LOST, EXIT_HUNG, EXIT_UNEXPECTED) or code < 0
        late = deadline - time.monotonic() < MIN_RESTART_SECONDS or number == MAX_PROCESSES
        if not lost or late or not (out / CAMPAIGN).exists():
            break
        report(f"warning: the process was lost ({_exit_reason(code)}); continuing in a new process")
    remove_parts(out)  # incomplete files must not count among the results of a rented machine
    if code >= 0:
        return code
    report(
        f"error: the process was lost ({_exit_reason(code)}). Run the same command again to"
        " continue"
    )
    return 128 - code


def end_with_parent(parent: int) -> None:
    """Make this process end when its parent ends or is killed. Otherwise two processes could write to one folder.

    On systems other than Linux the process runs on to its time limit.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(EXIT_HUNG)


def _wait(process: subprocess.Popen[bytes], manifest: Path, deadline: float, stall: float) -> int:
    """Wait for a process; end it if it stalls or runs far past the limit. Returns its exit code."""
    last = _stamp(manifest)
    changed = time.monotonic()
    try:
        while process.poll() is None:
            now = time.monotonic()
            if (stamp := _stamp(manifest)) != last:
                last = stamp
                changed = now
            if now - changed > stall and now < deadline:
                return _kill(process, manifest, f"no progress for {now - changed:.0f} s")
            if now > deadline + LAST_WAIT_SECONDS:
                report(
                    "error: the process exceeded the time limit and was ended. Run the same command"
                    " again to continue"
                )
                return _kill(process, manifest, "")
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:  # the terminal sent the signal to the process too
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(10)
        process.kill()
        return -signal.SIGINT
    return int(process.returncode)


def _kill(process: subprocess.Popen[bytes], manifest: Path, reason: str) -> int:
    """Kill a process. If a reason is given, its current unit is not tried again, because it would hang again."""
    process.kill()
    with contextlib.suppress(
        subprocess.TimeoutExpired
    ):  # a driver may block the kill; then the GPU is lost too
        process.wait(20)
    if reason and manifest.exists():
        values = read_manifest(manifest.parent)
        values["runs"][-1]["status"] = f"hung: {reason}"
        for name, unit in values["units"].items():
            if unit.get("status") == "started":
                unit.update(status="error", error=f"hung: {reason}")
                report(f"warning: {name}: skipped, because it hung ({reason})")
        write_manifest(values, manifest.parent)
    return EXIT_HUNG


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _exit_reason(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return {EXIT_DEVICE_LOST: "device lost", EXIT_HUNG: "hung"}.get(code, f"exit code {code}")


def report(line: str) -> None:
    """Write a line to the terminal at once."""
    print(line, file=sys.stderr, flush=True)
