"""Commands as tests call them, in their own process or in one of their own, and a disk that is full."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Steptime = Callable[..., tuple[int, str, str]]
"""Takes the words of a command line; gives its exit code, its output and its errors (fixture `steptime`)."""


def python(program: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own, with what `subprocess.run` takes; its output is text."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, **options)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Inside, no file of this process can grow beyond so many bytes. A test ends outside: pytest's own output may be a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
