"""Shared code of all workflow scripts: a log file, and errors as one line instead of a traceback."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import SteptimeError, SteptimeWarning, show_warning
from pipeline.kernels.family_model import DESCRIPTION
from pipeline.model_files import file_digest
from pipeline.paths import datasets_dir, measurements_dir, packs_dir


@contextmanager
def job(snakemake: Any) -> Iterator[None]:
    """Run a script's body with the rule's log; a `SteptimeError` ends the process with its exit code.

    The traceback is written to the log, and the run shows the log's last line when it ends. Without a log, the error is
    printed here.
    """
    log = Path(str(snakemake.log[0])) if snakemake.log else None
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("always", category=SteptimeWarning)
    warnings.showwarning = show_warning
    os.environ.update({"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"})
    if snakemake.threads == 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("done\n")
    except BaseException as error:
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(
                traceback.format_exc() if not isinstance(error, SteptimeError) else _told(error)
            )
        if isinstance(error, SteptimeError):
            if not log:  # with a log, the run prints it at its end (`Flow.explain`), below Snakemake's output
                print(f"steptime: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(
                130
            )  # the traceback is in the log; on the terminal it would hide Snakemake's output
        raise


def _told(error: SteptimeError) -> str:
    """The traceback, with the message on one line as its last line."""
    calls = "".join(traceback.format_tb(error.__traceback__))
    kind = f"{type(error).__module__}.{type(error).__name__}"
    return f"Traceback (most recent call last):\n{calls}{kind}: {' '.join(str(error).split())}\n"


def provenance(snakemake: Any) -> dict[str, Any]:
    """Origin of an artifact: rule, params, digests of inputs (a model folder's description), versions, git commit."""
    inputs = [Path(str(path)) for path in snakemake.input]
    files = [file for path in inputs for file in (path, path / DESCRIPTION) if file.is_file()]
    params = {
        key: value
        for key, value in snakemake.params.items()
        if isinstance(value, (str, int, float, dict, list))
    }
    return {
        "rule": snakemake.rule,
        "params": _portable(params, snakemake.config),
        "inputs": {_named(path, snakemake.config): file_digest(path)[:16] for path in files},
        **_software(),
    }


def _portable(value: Any, config: Mapping[str, Any]) -> Any:
    """A param whose file names are the same on all machines."""
    if isinstance(value, dict):
        return {_portable(key, config): _portable(item, config) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item, config) for item in value]
    return (
        _named(Path(value), config) if isinstance(value, str) and value.startswith("/") else value
    )


def _named(path: Path, config: Mapping[str, Any]) -> str:
    """A file's name that is the same on all machines: its path from the folder of results, packs or data."""
    folders = {
        "results": Path(str(config.get("results") or "results")),
        "packs": packs_dir(),
        "measurements": measurements_dir(),
        "datasets": datasets_dir(),
    }
    for name, folder in folders.items():
        if folder is not None and path.absolute().is_relative_to(folder.absolute()):
            return f"{name}/{path.absolute().relative_to(folder.absolute()).as_posix()}"
    return path.name if path.is_absolute() else path.as_posix()


@cache
def _software() -> dict[str, Any]:
    """Versions of Steptime, Python and the main libraries."""
    import platform
    from importlib.metadata import version

    return {
        "steptime": version("steptime"),
        "commit": _git_commit(),
        "versions": {
            name: version(name) for name in ("torch", "pandas", "pyarrow", "numpy", "snakemake")
        },
        "python": platform.python_version(),
    }


@cache
def _git_commit() -> str:
    """The checkout's commit, or `unknown` outside a checkout."""
    import subprocess

    run = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parent,
    )
    return run.stdout.strip() or "unknown"
