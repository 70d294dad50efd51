"""Common style of all figures: marks, numbers on axes, and identical files on every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
"""Marks for the colours, so that series also differ in black-and-white print."""

TICKS = (
    (1.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
    (2.5, (1.0, 2.0, 5.0)),
    (3.5, (1.0, 3.0)),
    (math.inf, (1.0,)),
)
"""Ticks within a decade of a logarithmic axis. The first row is used whose number of decades is above the axis's span."""

FAMILY_ORDER = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Families with learned models, in the order of tables and figures; others follow in alphabetical order."""

EQUALITY_BAND = 0.10
"""Half-width of the grey band around equality, as a fraction (10 %)."""

PNG_DPI = 160


def equality(axes: Axes, times: npt.NDArray[np.float64]) -> None:
    """Make axes of predicted against measured logarithmic; draw the line of equality with the band of `EQUALITY_BAND`.

    Args:
        axes: where to draw.
        times: all values that will be drawn.
    """
    ends = np.array([times.min() / 1.3, times.max() * 1.3])
    axes.fill_between(
        ends,
        (1 - EQUALITY_BAND) * ends,
        (1 + EQUALITY_BAND) * ends,
        color="black",
        alpha=0.08,
        linewidth=0,
    )
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    plain_ticks(axes.xaxis, axes.yaxis)


def number_ticks(axis: Axis, inches: float) -> None:
    """Show numbers with thousands separators on a linear axis, as many as fit its length."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=max(2, int(inches / 0.6)), steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−")))


def plain_ticks(*scales: Axis) -> None:
    """Show plain numbers on logarithmic axes instead of powers of ten."""
    from matplotlib.ticker import LogLocator

    for scale in scales:
        low, high = scale.get_view_interval()
        decades = math.log10(high / low) if 0 < low < high else 1.0
        steps = next(subs for most, subs in TICKS if decades < most)
        scale.set_major_locator(LogLocator(subs=steps))
        scale.set_major_formatter(lambda value, _: f"{value:g}")
        scale.set_minor_locator(LogLocator(subs=()))


def in_order(families: Iterable[str]) -> list[str]:
    """Kernel families without duplicates, the learned ones first."""
    known = {name: place for place, name in enumerate(FAMILY_ORDER)}
    return sorted(set(families), key=lambda name: (known.get(name, len(known)), name))


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("svg", "png")) -> None:
    """Write `<name>.svg` and `<name>.png`; the same figure gives the same bytes. Its layout is final then."""
    import matplotlib as mpl

    _settle(figure)

    if "svg" in kinds:
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    if "png" in kinds:
        figure.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None})


def _settle(figure: Figure) -> None:
    """Place the panels for the last time, on rounded positions: those of the layout's solver differ in their last bits."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        x, y, width, height = (round(float(value), 6) for value in axes.get_position().bounds)
        axes.set_position((x, y, width, height))
