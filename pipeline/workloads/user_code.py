"""Finds the line of the user's own code at which an exception was raised."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

LIBRARY_FOLDERS = ("site-packages", "dist-packages")
"""Folders in which libraries are installed: in an environment, in the user's home, or by Debian."""


def place_in_user_code(error: BaseException) -> str:
    """Text such as ` in my_module.py, line 7`: the innermost line of the user's own code.

    The line of the library that it calls is added, unless that library is PyTorch. Without a line of the user's own code
    (a step from an installed package), only the library's line is given. Empty if there is neither, or if the message
    itself names the line (syntax errors).
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, each in enumerate(frames) if _is_own(each.filename)]
    below = frames[own[-1] + 1 :] if own else frames
    library = [each for each in below if _in_library(each.filename) not in ("", "torch")]
    deeper = f"{_below_library_folder(library[-1].filename)}, line {library[-1].lineno}" if library else ""
    if not own:
        return f" in {deeper}" if deeper else ""
    place = f" in {Path(frames[own[-1]].filename).name}, line {frames[own[-1]].lineno}"
    return f"{place} ({deeper})" if deeper else place


def _is_own(filename: str) -> bool:
    """Whether a file is the user's own code: it is neither installed, nor Python's, nor this project's."""
    others = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<")
    return not _in_library(filename) and not filename.startswith(others)


def _in_library(filename: str) -> str:
    """The installed package that a file belongs to; empty for other files."""
    return Path(_below_library_folder(filename)).parts[0] if set(LIBRARY_FOLDERS) & {*Path(filename).parts} else ""


def _below_library_folder(filename: str) -> str:
    """The path of a library's file below the folder of all libraries, such as `timm/models/_factory.py`."""
    parts = Path(filename).parts
    below = max((i for i, part in enumerate(parts) if part in LIBRARY_FOLDERS), default=-1) + 1
    return "/".join(parts[below:])
