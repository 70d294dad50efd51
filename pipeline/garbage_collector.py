"""Pauses Python's garbage collector while many objects are made, or while steps are timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switch garbage collection off while the body runs, and back on if it was on.

    Reading a trace or recording a step creates millions of objects. Almost none of them is garbage, and the search for
    garbage takes a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
