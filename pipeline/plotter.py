"""What predictions hand to functions above them: how they are drawn and subtracted.

The package's facade sets `load`, which imports a function at its first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

load: Callable[[str], Callable[..., Any]] | None = None
"""The function of a name, such as `draw_step`."""


def call(name: str, *arguments: Any) -> Any:
    """Call the function of a name."""
    assert load is not None  # importing the package sets it
    return load(name)(*arguments)
