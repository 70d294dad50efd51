"""Where cases run: copies of what ships, in the place of what ships, and nothing remembered from the case before."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import paths
from pipeline.answers.engine import STEPS
from pipeline.question import compose


def project_copy(folder: Path) -> Path:
    """A folder with links to what ships: `config/` and `packs/`."""
    folder.mkdir()
    for name in ("config", "packs"):
        (folder / name).symlink_to(paths.project_dir() / name)
    return folder


def own_copy(project: Path, part: str) -> Path:
    """Replace the link to a folder below a project copy (`packs`, `config/gpu`) by a copy that may be damaged."""
    place = project
    for name in Path(part).parts:
        place = place / name
        if place.is_symlink():
            source = place.resolve()
            place.unlink()
            if place == project / part:
                shutil.copytree(source, place)
            else:
                place.mkdir()
                for each in source.iterdir():
                    (place / each.name).symlink_to(each)
    return place


@contextmanager
def in_project(project: Path) -> Iterator[None]:
    """Context in which another folder ships, and in which nothing is remembered from before it or after it."""
    real = paths.project_dir
    forget_everything()
    paths.project_dir = lambda: project  # type: ignore[assignment]
    try:
        yield
    finally:
        paths.project_dir = real  # type: ignore[assignment]
        forget_everything()


def forget_everything() -> None:
    """Clear the memory of this process: every cached function of the project, and composed files."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pipeline.") and not name.startswith(KEPT):
            for each in list(vars(module).values()):
                clear: Any = getattr(each, "cache_clear", None)
                if clear is not None and getattr(each, "__module__", "").startswith("pipeline."):
                    clear()
    compose.forget()
    STEPS.forget()


KEPT = ("pipeline.user_cache", "pipeline.yaml_text", "pipeline.workloads.", "pipeline.as_on_cuda.")
"""Modules whose cached values do not depend on any file that a case changes.

Workloads, and what makes them run as on CUDA, cache operators registered with PyTorch, which refuses to register one twice.
"""
