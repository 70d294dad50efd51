"""Names of the models of other libraries, and the import of these libraries; loads no torch by itself."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import InputError, shown
from pipeline.user_cache import kept

SUGGESTED = 3
"""Names that a message suggests in place of an unknown one."""


def imported(package: str) -> Any:
    """Import a library of models, or a package beside it.

    Raises:
        InputError: it is not installed.
    """
    declare_torchvision_operators()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != (top := package.partition(".")[0]):
            raise
        raise InputError(f"{top} is not installed: pip install {top}") from None


@lru_cache(maxsize=8)
def names_in(library: str) -> tuple[str, ...]:
    """Names of all models of an installed library, for transformers its configurations; kept between runs.

    Raises:
        InputError: the library is not installed.
    """

    def names() -> Iterable[str]:
        module = imported(f"{library}.models" if library == "torchvision" else library)
        if library == "transformers":
            return sorted(
                name for name in dir(module) if name.endswith("Config") and name[0].isupper()
            )
        listed: list[str] = module.list_models()
        return listed

    try:
        installed = version(library)
    except PackageNotFoundError:
        raise InputError(f"{library} is not installed: pip install {library}") from None
    parts = {"library": library, "version": installed}
    return tuple(kept("names.json", parts, names, _read_names, _write_names))


def _read_names(path: Path) -> Iterable[str]:
    return [str(name) for name in json.loads(path.read_text(encoding="utf-8"))]


def _write_names(names: Iterable[str], path: Path) -> None:
    path.write_text(json.dumps(list(names)), encoding="utf-8")


def unknown_name(option: str, name: object, library: str) -> InputError:
    """The error for a name that a library does not have, with names that begin with it, else those closest to it."""
    choices = {choice.lower(): choice for choice in names_in(library)}
    asked = str(name).lower().rpartition("/")[2].partition(".")[0]
    starts = (asked, asked.partition("-")[0])
    begun, begun_alike = (
        sorted((one for one in choices if one.startswith(start)), key=len) for start in starts
    )
    near = (begun or get_close_matches(asked, choices, SUGGESTED, 0.6) or begun_alike)[:SUGGESTED]
    suggested = f"did you mean {' or '.join(repr(choices[one]) for one in near)}? " if near else ""
    hub = (
        f"files of Hugging Face's hub are not read, give the name within {library}; "
        if "/" in str(name)
        else ""
    )
    if library == "transformers" and re.fullmatch(r"(?![A-Z]\w*$)[\w.-]+(/[\w.-]+)?", str(name)):
        hub = (
            f"no network is used: a model of Hugging Face's hub needs its file, `hf download {name}"
            " config.json`; "
        )
    return InputError(
        f"{option}={shown(name)}: {library} {version(library)} has no such name: {suggested}{hub}"
        f"`steptime models {library}` lists them"
    )
