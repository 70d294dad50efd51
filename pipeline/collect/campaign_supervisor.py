"""The campaign in a process of its own, started again where that process is lost while there is time left.

An illegal access poisons a CUDA process for good, a fault in a library ends it, and a kernel that never returns stops it.
Whoever lends a GPU by the minute cannot look: the next process goes on with the units that are left.
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

from pipeline.collect.campaign_folder import read_manifest, write_manifest
from pipeline.paths import CAMPAIGN

EXIT_DONE, EXIT_DAMAGED, EXIT_NO_KERNELS, EXIT_DEVICE_LOST, EXIT_HUNG = 0, 1, 3, 4, 5
"""Exit codes of a campaign; 2 is for bad arguments."""

EXIT_UNFORESEEN = 70  # as in sysexits.h

STALL_SECONDS, STALL_SHARE = 120.0, 0.25
"""A process is ended when no unit began or ended in it for this long, or for this share of the time where that is more:
the longest unit seen took 73 s (a profile of ResNet-50 on a slow core), the import of torch on a cold disk a minute."""
LEAST_SECONDS = 45.0
"""Time left for which a further process is worth its imports."""
MOST_PROCESSES = 6
"""A device that is gone for good ends one process after another."""
LAST_WAIT_SECONDS = 35.0
"""After the limit, the process ends itself within this time (`runner.watchdog`); it is killed then."""
LOOK_SECONDS = 0.25

CHILD = (
    sys.executable,
    "-c",
    "import sys; from pipeline.collect.campaign import child; sys.exit(child(sys.argv[1:]))",
)
"""The campaign's own process; its first argument is the process that it must not outlive."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def supervise(arguments: Sequence[str], out: Path, minutes: float, begin: float, command: Sequence[str] = CHILD) -> int:
    """Run a campaign to its end, in as many processes as it takes; returns its exit code.

    Args:
        arguments: of the command line, valid ones.
        out: the campaign's folder.
        minutes: the time limit.
        begin: `time.monotonic()` from which it counts.
        command: what runs a campaign with arguments.
    """
    deadline = begin + 60 * minutes
    stall = max(STALL_SECONDS, STALL_SHARE * 60 * minutes)
    for number in range(1, MOST_PROCESSES + 1):
        left = (deadline - time.monotonic()) / 60
        again = ["--resume", str(out)] if number > 1 and (out / CAMPAIGN).exists() else []
        child = [*command, str(os.getpid()), *arguments, *again, "--minutes", f"{max(left, 0.05):.4f}"]
        code = _watched(subprocess.Popen(child), out / CAMPAIGN, deadline, stall)
        lost = code in (EXIT_DEVICE_LOST, EXIT_HUNG, EXIT_UNFORESEEN) or code < 0
        late = deadline - time.monotonic() < LEAST_SECONDS or number == MOST_PROCESSES
        if not lost or late or not (out / CAMPAIGN).exists():
            break
        print(f"warning: the process was lost ({_told(code)}); going on in another one", file=sys.stderr, flush=True)
    for part in out.glob(".*.part"):  # it would count among the files that come back from a lent machine
        part.unlink(missing_ok=True)
    if code < 0:
        print(f"error: the process was lost ({_told(code)}). Run again to go on", file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


def end_with(parent: int) -> None:
    """Let this process end when its parent does, also when that is killed: two would write into one folder.

    On systems other than Linux it runs on to its limit.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it was asked about
        os._exit(EXIT_HUNG)


def _watched(process: subprocess.Popen[bytes], manifest: Path, deadline: float, stall: float) -> int:
    """Wait for a process, ending it where it stalls or runs far past the limit; returns its exit code."""
    last, changed = _stamp(manifest), time.monotonic()
    try:
        while process.poll() is None:
            now = time.monotonic()
            if (stamp := _stamp(manifest)) != last:
                last, changed = stamp, now
            if now - changed > stall and now < deadline:
                return _ended(process, manifest, f"nothing for {now - changed:.0f} s")
            if now > deadline + LAST_WAIT_SECONDS:
                print(
                    "error: the process ran past the time limit; ended. Run again to go on", file=sys.stderr, flush=True
                )
                return _ended(process, manifest, "")
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:  # the terminal told the process too
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(10)
        process.kill()
        return -signal.SIGINT
    return int(process.returncode)


def _ended(process: subprocess.Popen[bytes], manifest: Path, reason: str) -> int:
    """Kill a process; with a reason, the unit that it was in is not tried again: it would hang once more."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it: its GPU is lost with it then
        process.wait(20)
    if reason and manifest.exists():
        found = read_manifest(manifest.parent)
        found["runs"][-1]["status"] = f"hung: {reason}"
        for name, unit in found["units"].items():
            if unit.get("status") == "started":
                unit.update(status="error", error=f"hung: {reason}")
                print(f"warning: {name}: hung ({reason}), left out", file=sys.stderr, flush=True)
        write_manifest(found, manifest.parent)
    return EXIT_HUNG


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _told(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return {EXIT_DEVICE_LOST: "device lost", EXIT_HUNG: "hung"}.get(code, f"exit code {code}")
