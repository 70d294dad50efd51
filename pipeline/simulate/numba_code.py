"""Compiles functions of this room with numba, where a process has loaded it.

Loading numba takes 0.5 s, so a process loads it only where that pays (`compiled_walk.load_if_it_pays`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any


def is_loaded() -> bool:
    """Whether this process has loaded the compiler."""
    return "numba" in sys.modules


def is_installed() -> bool:
    """Whether the compiler can be loaded."""
    return find_spec("numba") is not None


@cache
def compiled(function: Callable[..., Any]) -> Any:
    """A compiled function; numba stores the machine code beside its module, or in the user's cache folder."""
    from numba import njit

    return njit(cache=True, nogil=True)(function)
