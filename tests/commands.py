"""Commands as tests call them: `steptime` in their own process, and programs in one of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

Steptime = Callable[..., tuple[int, str, str]]
"""Takes the words of a command line; gives its exit code, its output and its errors (fixture `steptime`)."""


def python(program: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own, with what `subprocess.run` takes; its output is text."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, **options)
