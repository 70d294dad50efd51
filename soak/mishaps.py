"""What else happens to a run: a full disk, a folder that cannot be written, a clock that jumps, two runs, an older version.

    python -m soak mishaps --old COMMIT

Mounts need the rights of root; without them, the full disk and the folder that cannot be written are left out by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.paths import project_dir
from soak.kills import GRID, artifacts, command, differing, environment, half_written, run, unlocked

SMALL_DISK = "400k"
"""A disk on which the first artifacts of the grid fit, and all of them (1.4 MB) do not."""

HOUR, YEAR = 3600, 365 * 86_400


def our_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines that Steptime has printed, beside those of Snakemake."""
    return [
        line
        for line in done.stderr.splitlines()
        if line.startswith("steptime: ") and "warning" not in line
    ]


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """Context with a file system in memory at a folder."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", *options, "none", str(place)], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True, capture_output=True)


def full_disk(folder: Path, truth: dict[str, bytes]) -> list[str]:
    """The disk is full in the middle of a run; with more room the same command ends the work."""
    faults = []
    with mounted(folder / "results", "-o", f"size={SMALL_DISK}"):
        done = run(folder)
        said = our_lines(done)
        faults += [] if done.returncode and said else [f"exit {done.returncode}, and says {said}"]
        faults += ["it shows a traceback"] if "Traceback" in done.stderr else []
        faults += half_written(folder)
        print(f"  full disk: exit {done.returncode}, {len(said)} line(s): {said[:1]}", flush=True)
        subprocess.run(["mount", "-o", "remount,size=50m", str(folder / "results")], check=True)
        unlocked(folder)
        again = run(folder)
        faults += (
            []
            if again.returncode == 0
            else [f"with more room: exit {again.returncode}: {again.stderr[-300:]}"]
        )
        faults += differing(folder, truth, {*truth})
    return faults


def read_only(folder: Path, truth: dict[str, bytes]) -> list[str]:
    """The results folder cannot be written."""
    with mounted(folder / "results", "-o", "ro,size=1m"):
        done = run(folder)
    said = our_lines(done)
    print(f"  read-only: exit {done.returncode}, {said}", flush=True)
    return (
        []
        if done.returncode == 2 and len(said) == 1 and "results" in said[0]
        else [f"exit {done.returncode}: {said}"]
    )


def clock(folder: Path, truth: dict[str, bytes]) -> list[str]:
    """Files of the future and of the past: what is made anew is what was there, and a third run does nothing."""
    faults = []
    shutil.copytree(folder.parent / "truth", folder, dirs_exist_ok=True)
    for name, shift in (
        ("graph.parquet", YEAR),
        ("calls.parquet", -10 * YEAR),
        ("overheads.parquet", HOUR),
    ):
        for path in (folder / "results").rglob(name):
            os.utime(path, (time.time() + shift,) * 2)
        done = run(folder)
        faults += (
            []
            if done.returncode == 0
            else [f"{name} {shift:+} s: exit {done.returncode}: {done.stderr[-300:]}"]
        )
        faults += [f"{name} {shift:+} s: {each}" for each in differing(folder, truth, {*truth})]
    return faults


def two_runs(folder: Path, truth: dict[str, bytes]) -> list[str]:
    """A second run in the same folder ends with Snakemake's message, and the first is not disturbed."""
    faults = []
    with subprocess.Popen(
        command(folder),
        cwd=project_dir(),
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as first:
        while first.poll() is None and not any((folder / ".snakemake" / "locks").glob("*")):
            time.sleep(0.2)
        second = run(folder)
        print(f"  two runs: exit {second.returncode}", flush=True)
        if not (second.returncode and "Directory cannot be locked" in second.stderr):
            faults.append(f"the second run: exit {second.returncode}: {second.stderr[-300:]}")
        if first.wait():
            faults.append(f"the first run: exit {first.returncode}")
    return faults + differing(folder, truth, {*truth})


def older_version(folder: Path, truth: dict[str, bytes], old: str) -> list[str]:
    """Results of an earlier commit: everything that differs is made anew."""
    checkout = folder.parent / "checkout"
    subprocess.run(
        ["git", "worktree", "add", "-q", "--detach", str(checkout), old],
        cwd=project_dir(),
        check=True,
    )
    try:
        made = subprocess.run(
            [
                *command(folder)[:3],
                "--snakefile",
                str(checkout / "Snakefile"),
                "--directory",
                str(folder),
                "--cores",
                "2",
                "--config",
                *GRID,
            ],
            cwd=checkout,
            env={**environment(folder), "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        count = len(artifacts(folder))
        print(f"  older version {old}: exit {made.returncode}, {count} artifacts", flush=True)
    finally:
        subprocess.run(
            ["git", "worktree", "remove", "--force", str(checkout)], cwd=project_dir(), check=True
        )
    faults = (
        [] if made.returncode == 0 and count else [f"{old} does not run here: {made.stderr[-300:]}"]
    )
    done = run(folder)
    faults += (
        []
        if done.returncode == 0
        else [f"exit {done.returncode}: {our_lines(done) or done.stderr[-300:]}"]
    )
    differs = differing(folder, truth, {*truth})
    return faults + [
        each for each in differs if each.partition(" ")[0] in truth
    ]  # what it alone has may stay


def main(old: str | None) -> int:
    """Run every mishap; returns the exit code."""
    mishaps: dict[str, Callable[[Path, dict[str, bytes]], list[str]]] = {
        "two runs": two_runs,
        "clock": clock,
    }
    if os.geteuid() == 0:
        mishaps = {"read-only folder": read_only, "full disk": full_disk, **mishaps}
    else:
        print("left out without the rights of root: full disk, read-only folder")
    if old:
        mishaps["older version"] = lambda folder, truth: older_version(folder, truth, old)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="steptime-mishaps-") as place:
        (first := Path(place) / "truth").mkdir()
        done = run(first)
        assert done.returncode == 0, done.stderr[-2000:]
        truth = artifacts(first)
        for name, mishap in mishaps.items():
            (folder := Path(place) / name.replace(" ", "-")).mkdir()
            faults = mishap(folder, truth)
            failed += len(faults)
            print(f"{name}: {'; '.join(faults) or 'as it should be'}", flush=True)
    return 1 if failed else 0
