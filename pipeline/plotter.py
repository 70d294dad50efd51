"""What can be asked of a prediction and is in rooms above it: its figures, its modules and its difference from another.

The package's facade (`pipeline/__init__.py`) sets these functions when it is imported. They import what they need when they are
called, so that a prediction needs no matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

draw_step: Callable[..., Any]
draw_roofline: Callable[..., Any]
draw_stages: Callable[..., Any]
draw_advice: Callable[..., Any]
draw_difference: Callable[..., Any]
difference: Callable[..., Any]
module_table: Callable[..., Any]
