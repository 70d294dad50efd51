"""Packs that are one JSON file for all GPUs: a format number, provenance, and plain numbers by GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import PackError
from pipeline.schemas import atomic_path

FORMAT = 1

T = TypeVar("T")


def write_plain(path: Path, gpus: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Write what was fitted on several GPUs, atomically."""
    text = json.dumps({"format": FORMAT, "provenance": dict(provenance), "gpus": dict(gpus)}, indent=1, sort_keys=True)
    with atomic_path(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def read_plain(path: Path, build: Callable[[Any], T]) -> dict[str, T]:
    """What was fitted, by GPU; `build` makes it from its plain numbers.

    Raises:
        PackError: the file is damaged or of another format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise PackError(
                f"{path}: format {values['format']}, this Steptime reads {FORMAT}; restore it with git checkout packs"
            )
        return {str(gpu): build(found) for gpu, found in values["gpus"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PackError(f"{path}: not readable ({error}); restore it with `git checkout packs`") from None
