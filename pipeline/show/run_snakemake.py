"""Runs the project's Snakefile, as a user does from a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from pipeline.errors import InputError
from pipeline.paths import project_dir

OVERRIDES = ("gpu=", "model=", "batch_size=", "experiment=")
"""Beginnings of words that no option of Snakemake takes."""


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
        raise InputError(
            f"{late}: overrides come before options of Snakemake: steptime run {late} {options[0]}"
        )
    others = [f"overrides={' '.join(dotted)}"] if dotted else []
    last = ["--", *targets] if targets else []
    sys.stdout.flush()
    os.execv(sys.executable, [*snakemake_command([*plain, *others]), *options, *last])


def snakemake_command(config: Iterable[str]) -> list[str]:
    """Snakemake on the project's workflow. Files of the current folder cannot take the place of libraries (`-P`)."""
    values = list(config)
    given = ["--config", *values] if values else []
    command = [sys.executable, "-P", "-m", "snakemake", *given]
    return [*command, "--snakefile", str(project_dir() / "Snakefile")]
