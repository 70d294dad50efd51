"""A grid as Slurm jobs: as on one machine, and with a node that fails in the middle of the run."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.cluster.grid_runs import GRID, command, run, same_tables
from benchmarks.cluster.services import slurm, told
from evaluation.pages.markdown import markdown
from pipeline.paths import project_dir

FAST_STATUS = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "5")
"""This cluster has no accounting database, and its jobs are short."""


def section() -> str:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        at = folder / "one-machine"
        at.mkdir()
        began = time.monotonic()
        output = run(command(at, "--cores", "2"))
        rows.append(
            ["one machine, `--cores 2`", _jobs(output), 0, 0, round(time.monotonic() - began)]
        )
        with slurm(folder / "slurm") as environment:
            for title, fails in (("Slurm", False), ("Slurm, the node fails once", True)):
                place = folder / ("failing" if fails else "slurm-results")
                place.mkdir()
                asked = command(
                    place, "--profile", str(project_dir() / "profiles/slurm"), *FAST_STATUS
                )
                failure = NodeFailure(environment) if fails else None
                first = _last_id(environment)
                began = time.monotonic()
                if failure:
                    failure.start()
                output = run(asked, environment, folder / "log")
                duration = round(time.monotonic() - began)
                if failure:
                    failure.join()
                rows.append(
                    [
                        title,
                        _jobs(output),
                        _last_id(environment) - first,
                        failure.lost if failure else 0,
                        duration,
                    ]
                )
                tables = same_tables(at / "results", place / "results")
    cells = [[str(cell) for cell in row] for row in rows]
    table = markdown(
        ("run", "jobs of rules", "Slurm jobs", "lost with the node", "duration (s)"), cells
    )
    return (
        f"`{' '.join(GRID)}`, 36 points, from the shipped models. All {tables} tables of the three"
        f" runs are equal to the last digit.\n\n{table}"
    )


class NodeFailure(threading.Thread):
    """Takes the node away as soon as it predicts points, and gives it back three seconds later.

    Attributes:
        lost: number of jobs that ran on the node when it went.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.environment, self.lost = environment, 0

    def run(self) -> None:
        node = told(["sinfo", "-h", "-o", "%n"], self.environment).strip()
        while "predict" not in (
            running := told(["squeue", "-h", "-t", "R", "-o", "%i %k"], self.environment)
        ):
            time.sleep(0.5)
        self.lost = len(running.splitlines())
        change = ["scontrol", "update", f"nodename={node}", "reason=check"]
        subprocess.run([*change, "state=down"], env=self.environment, check=True)
        time.sleep(3)
        if "down" in told(
            ["sinfo", "-h", "-o", "%T"], self.environment
        ):  # else it has registered again by itself
            subprocess.run([*change, "state=resume"], env=self.environment, check=True)


def _jobs(output: str) -> int:
    """Number of jobs of rules that a run of Snakemake counted."""
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("total "))


def _last_id(environment: dict[str, str]) -> int:
    """The number of the newest Slurm job; they count from 1."""
    return max(
        (
            int(line)
            for line in told(["squeue", "-h", "-t", "all", "-o", "%A"], environment).split()
        ),
        default=0,
    )
