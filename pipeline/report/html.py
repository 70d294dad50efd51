"""Snakemake's own report as one file that opens offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SteptimeError


def write_report(snakefile: str, config: Mapping[str, Any], targets: Sequence[str], page: str | Path) -> None:
    """Run `snakemake --report` over finished targets, beside a Snakemake that waits for it.

    Args:
        snakefile: the workflow.
        config: its `--config` values.
        targets: files or rules that the report covers; they exist already.
        page: the HTML file to write.

    Raises:
        SteptimeError: Snakemake could not write it; the message says why.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--nolock", "--cores", "1", *targets,
               "--report", str(page)]  # fmt: skip
    if config:
        command += ["--config", *(f"{key}={_text(value)}" for key, value in config.items())]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0 or not Path(page).is_file():
        lines = [line for line in (run.stderr or run.stdout).splitlines() if line.strip()] or ["no output"]
        raise SteptimeError(f"{page}: Snakemake could not write its report: {lines[-1].strip()}")


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
