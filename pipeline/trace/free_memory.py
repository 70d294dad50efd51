"""When freed memory returns to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np

LARGE_BYTES = 4 << 20


def keep_freed_memory() -> None:
    """Let the C library reuse memory of large arrays instead of returning it and requesting it again page by page.

    glibc returns the free end of its memory when this is larger than twice the largest array freed so far. The array
    that is freed here is never written, so it takes no memory.
    """
    np.empty(LARGE_BYTES, np.uint8)


def release_memory() -> None:
    """Return freed memory to the system, which glibc keeps beside the columns after parsing. Nothing is done where the C
    library is not glibc.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
