"""What predictions hand to functions above them: how they are drawn and subtracted.

The package's facade names the functions when it is imported, and loads them at their first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_functions: dict[str, Callable[..., Any]] = {}


def provide(name: str, function: Callable[..., Any]) -> None:
    """Set the function of a name, such as `draw_step`."""
    _functions[name] = function


def call(name: str, *arguments: Any) -> Any:
    """Call the function of a name."""
    return _functions[name](*arguments)
