"""Pauses Python's garbage collector while many objects are made, or while steps are timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FROZEN_BY_PYTHON = 1000
"""Most objects that Python itself freezes at its start (375 in Python 3.12). A program that freezes its own has far more."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switch garbage collection off while the body runs, and back on if it was on.

    Reading a trace or recording a step creates millions of objects. Almost none of them is garbage, and the search for
    garbage takes a fifth of the time. They then count as old objects, because the next collection would otherwise search
    all of them at once (0.2 s after the capture of a language model).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _count_as_old()
            gc.enable()


def _count_as_old() -> None:
    """Move all objects to the oldest generation without a search; nothing is done if the program has frozen objects."""
    if gc.get_freeze_count() <= FROZEN_BY_PYTHON:
        gc.freeze()
        gc.unfreeze()
