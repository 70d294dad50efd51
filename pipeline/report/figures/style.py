"""One look for all figures: colour-blind safe, units on axes, no clutter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#000000")
"""Okabe and Ito's palette, distinguishable with every common colour blindness."""


def new_figure(width: float = 7.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """A figure of its own (no global pyplot state, so that many can be made without a display)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes
