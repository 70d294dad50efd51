"""Unlocks this folder after a run that was killed, but never while another run is active.

python -m pipeline.report.unlock        (`make` does it before each run)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from pipeline.report.run_snakemake import run_snakemake

LOCKS = Path(".snakemake/locks")


def running_snakemake() -> int | None:
    """Id of a Snakemake process in the current folder, without this process and its parents."""
    here = Path.cwd()
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            if process.pid in mine or Path(process.cwd()) != here:
                continue
            if any("snakemake" in Path(word).name for word in process.cmdline()[:3]):
                return int(process.pid)
        except psutil.Error:  # the process has ended, or belongs to another user
            continue
    return None


def main() -> int:
    """Command line: removes locks that no process holds, else prints which process holds them."""
    if not LOCKS.is_dir() or not any(LOCKS.iterdir()):
        return 0
    holder = running_snakemake()
    if holder is None:
        return run_snakemake("all", {}, "--quiet", "all", "--unlock")
    print(f"steptime: process {holder} runs Snakemake in this folder; its outputs stay locked until it ends",
          file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
