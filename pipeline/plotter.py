"""How `Prediction.plot` draws. Figures are above predictions: the package's facade names the function when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_drawing: list[Callable[[Any], Figure]] = []


def draw_with(function: Callable[[Any], Figure]) -> None:
    """Set the function that draws one prediction."""
    _drawing[:] = [function]


def draw(prediction: Any) -> Figure:
    """One prediction as a figure."""
    (function,) = _drawing
    return function(prediction)
