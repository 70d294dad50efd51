"""Unlocks this folder after a run that was killed, but never while another run is active.

python -m pipeline.report.unlock        (`make` does it before each run)
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import psutil

from pipeline.report.run_snakemake import run_snakemake

LOCKS = Path(".snakemake/locks")


def running_snakemake(folder: Path) -> int | None:
    """Id of a Snakemake process in a folder, without this process and its parents."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            if process.pid in mine or Path(process.cwd()) != folder:
                continue
            if any("snakemake" in Path(word).name for word in process.cmdline()[:3]):
                return int(process.pid)
        except psutil.Error:  # the process has ended, or belongs to another user
            continue
    return None


def explain_lock(workdir: str | Path | None) -> None:
    """If this run finds its folder locked and leaves it locked, print at its end a line that says what to do.

    Snakemake reads the Snakefile before it looks at locks. It removes all locks at the end of a run that was not stopped
    by one.

    Args:
        workdir: the folder that `--directory` names; None for the current folder.
    """
    folder = Path(workdir or ".").absolute()
    if _locked(folder):
        atexit.register(
            _advise, folder, running_snakemake(folder), "" if workdir is None else f" --directory {workdir}"
        )


def _advise(folder: Path, holder: int | None, option: str) -> None:
    if not _locked(folder):
        return
    if holder is not None:
        text = f"process {holder} runs Snakemake in this folder; wait until it ends"
    else:
        text = (
            "a run in this folder was stopped and left its lock; if no other machine runs Snakemake here, "
            f"`snakemake --unlock{option}` removes it; then run this command again"
        )
    print(f"steptime: {text}", file=sys.stderr)


def _locked(folder: Path) -> bool:
    locks = folder / LOCKS
    return locks.is_dir() and any(locks.iterdir())


def main() -> int:
    """Command line: removes locks that no process holds, else prints which process holds them."""
    if not _locked(Path.cwd()):
        return 0
    holder = running_snakemake(Path.cwd())
    if holder is None:
        return run_snakemake("all", {}, "--quiet", "all", "--unlock")
    print(f"steptime: process {holder} runs Snakemake in this folder; its outputs stay locked until it ends",
          file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
