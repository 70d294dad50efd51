"""Returns freed memory to the system. Without this, glibc keeps what parsing has freed, beside the columns."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def release_memory() -> None:
    """Return memory that was freed to the system; nothing is done where the C library is not glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
