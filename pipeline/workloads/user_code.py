"""Finds the line of the user's own code at which an exception was raised."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


def place_in_user_code(error: BaseException) -> str:
    """Text such as ` in my_module.py, line 7`: the innermost line of the user's own code.

    The line of the library that it calls is added, unless that library is PyTorch. Empty if there is no such line, or if
    the message itself names it (syntax errors).
    """
    if isinstance(error, SyntaxError):
        return ""
    ours = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(ours)]
    if not own:
        return ""
    below = frames[max(i for i, each in enumerate(frames) if each is own[-1]) + 1 :]
    library = [each for each in below if "site-packages" in each.filename and not _of_torch(each.filename)]
    deeper = f" ({Path(library[-1].filename).name}, line {library[-1].lineno})" if library else ""
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}{deeper}"


def _of_torch(filename: str) -> bool:
    return f"{Path('site-packages', 'torch')}{Path('/')}" in filename
