"""The `steptime` command as tests call it, in their own process."""

from __future__ import annotations

from collections.abc import Callable

Steptime = Callable[..., tuple[int, str, str]]
"""Takes the words of a command line; gives its exit code, its output and its errors (fixture `steptime`)."""
