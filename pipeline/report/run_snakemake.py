"""Runs the project's Snakefile from Python, as a user does from a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from pipeline.errors import InputError
from pipeline.paths import project_dir

OVERRIDES = ("gpu=", "model=", "batch_size=", "experiment=")
"""Beginnings of words that no option of Snakemake takes."""


def run_snakemake(target: str, config: Mapping[str, object], *options: str) -> int:
    """Run Snakemake up to a target on all cores and return its exit code; Snakemake itself prints errors."""
    command = [*_snakemake(f"{key}={value}" for key, value in config.items()),
               "--cores", "all", "--rerun-incomplete", *options, "--", target]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def become_snakemake(words: Sequence[str]) -> None:
    """Replace this process by Snakemake, with overrides and targets first, then options of Snakemake.

    Snakemake takes keys without dots only, so the other overrides become one value (`overrides="a.b=1 c.d=2"`). The
    settings of `profiles/default` apply, unless the current folder has a profile of that name.

    Raises:
        InputError: an override stands behind an option.
    """
    start = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    given, options = words[:start], words[start:]
    config = [word for word in given if "=" in word]
    plain = [word for word in config if word.partition("=")[0].isidentifier()]
    dotted = [word for word in config if word not in plain]
    targets = [word for word in given if word not in config]
    late = next((word for word in options if word.startswith(OVERRIDES)), None)
    if late is not None:
        raise InputError(f"{late}: overrides come before options of Snakemake: steptime run {late} {options[0]}")
    command = [*_snakemake([*plain, *([f"overrides={' '.join(dotted)}"] if dotted else [])]), *options]
    sys.stdout.flush()
    os.execv(command[0], [*command, *(["--", *targets] if targets else [])])


def _snakemake(config: Iterable[str]) -> list[str]:
    """Snakemake on the project's rules. Files of the current folder cannot take the place of libraries (`-P`)."""
    values = list(config)
    return [sys.executable, "-P", "-m", "snakemake", *(["--config", *values] if values else []),
            "--snakefile", str(project_dir() / "Snakefile")]  # fmt: skip
