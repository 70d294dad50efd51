"""Runs the project's Snakefile from Python, as a user does from a shell; draws its rules; unlocks a folder.

python -m evaluation.pages.snakemake_runs        (`make` unlocks so before each run)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from pipeline.errors import SteptimeError
from pipeline.show.run_snakemake import snakemake_command


def run_snakemake(target: str, config: Mapping[str, object], *options: str) -> int:
    """Run Snakemake up to a target on all cores and return its exit code; Snakemake itself prints errors."""
    command = snakemake_command(f"{key}={value}" for key, value in config.items())
    further = ["--cores", "all", "--rerun-incomplete", *options, "--", target]
    return subprocess.run([*command, *further], check=False).returncode


def rule_arrows(config: Mapping[str, str], target: str) -> list[tuple[str, str]]:
    """(from, to) of every arrow of Snakemake's graph of the rules up to a target, without public data. No rule runs.

    Raises:
        SteptimeError: Snakemake could not draw it; the message says why.
    """
    command = snakemake_command(f"{key}={value}" for key, value in config.items())
    run = subprocess.run(
        [*command, "--nolock", "--rulegraph", "mermaid-js", "--", target],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "STEPTIME_DATASETS": "none"},
    )
    if run.returncode != 0 or "flowchart" not in run.stdout:
        last = ["no output", *(run.stderr or run.stdout).split("\n")]
        reason = [line.strip() for line in last if line.strip()][-1]
        raise SteptimeError(f"rule graph: Snakemake could not draw it: {reason}")
    names = dict(re.findall(r"(id\d+)\[(\w+)\]", run.stdout))
    return [(names[a], names[b]) for a, b in re.findall(r"(id\d+) --> (id\d+)", run.stdout)]


def running_snakemake(folder: Path) -> int | None:
    """Id of a Snakemake process in a folder, without this process and its parents."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            if process.pid in ours or Path(process.cwd()) != folder:
                continue
            if any("snakemake" in Path(word).name for word in process.cmdline()[:3]):
                return int(process.pid)
        except psutil.Error:  # the process has ended, or belongs to another user
            continue
    return None


def unlock() -> int:
    """Remove the locks of a run that was killed in this folder, unless a run is active; return the exit code."""
    locks = Path(".snakemake/locks")
    if not locks.is_dir() or not any(locks.iterdir()):
        return 0
    holder = running_snakemake(Path.cwd())
    if holder is None:
        return run_snakemake("all", {}, "--quiet", "all", "--unlock")
    print(
        f"steptime: process {holder} runs Snakemake in this folder; its outputs stay locked until"
        " it ends",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(unlock())
