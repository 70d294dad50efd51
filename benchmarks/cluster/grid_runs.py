"""Runs of one grid by Snakemake, and whether two runs made the same tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pipeline.paths import project_dir

GRID = ("experiment=paper_dlrm",)
"""The three DLRM models of Lin et al. at four batch sizes, on three GPUs: 36 points."""


def command(folder: Path, *options: str, grid: tuple[str, ...] = GRID) -> list[str]:
    """The Snakemake command of a grid, whose results and state are in `folder`."""
    return [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(project_dir() / "Snakefile"),
        "--directory",
        str(folder),
        *options,
        "--config",
        *grid,
    ]


def run(
    command: list[str], environment: Mapping[str, str] | None = None, log: Path | None = None
) -> str:
    """Run a command to its end; returns its output, Snakemake's messages included. Shipped models predict.

    Raises:
        SystemExit: the command failed; its last lines are printed.
    """
    given = {**(environment or os.environ), "STEPTIME_DATASETS": "none", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if log is not None:
        log.write_text(done.stdout)
    if done.returncode:
        raise SystemExit(
            "\n".join([*done.stdout.splitlines()[-40:], f"failed: {' '.join(command)[:200]}"])
        )
    return done.stdout


def same_tables(one: Path, other: Path, index: bool = True) -> int:
    """Number of tables in two result folders, which must be the same to the last digit.

    Args:
        index: whether both folders have the list of all predictions, which a run into an object store does not write.

    Raises:
        SystemExit: a table is missing in one folder, or two tables differ.
    """
    names, others = (
        sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))
        for root in (one, other)
    )
    if not index:
        names.remove("summary.parquet")
    if not names or names != others:
        raise SystemExit(
            f"{one} and {other} hold other tables: {sorted(set(names) ^ set(others))[:5]}"
        )
    for name in names:
        pd.testing.assert_frame_equal(
            pd.read_parquet(one / name), pd.read_parquet(other / name), check_exact=True, obj=name
        )
    return len(names)
