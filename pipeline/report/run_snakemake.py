"""Runs the project's Snakefile from Python, as a user does from a shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from pipeline.paths import project_dir


def run_snakemake(target: str, config: Mapping[str, object], *options: str) -> int:
    """Run Snakemake up to a target on all cores and return its exit code; Snakemake itself prints errors."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(project_dir() / "Snakefile"), "--cores", "all",
               "--rerun-incomplete", *options, "--config", *(f"{key}={value}" for key, value in config.items()),
               "--", target]  # fmt: skip
    return subprocess.run(command, check=False).returncode
