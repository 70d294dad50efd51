"""Common style of all figures: colours for colour-blind readers, units on axes, and identical files on every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#000000")
"""Okabe and Ito's palette, which is distinguishable with every common kind of colour blindness."""

ACTIVE, IDLE, MEASURED = COLOURS[0], "#d0d0d0", COLOURS[5]
"""Colours of active device time, idle device time, and measured values; they are the same in all figures."""

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

MAX_PANEL_COLUMNS = 3
"""Largest number of panels side by side; with more, the text would be too small to read on a page."""

MAX_SCALE_RATIO = 12.0
"""Largest ratio between the bar lengths of two panels at which the panels still have a common scale."""

EQUALITY_BAND = 0.10
"""Half-width of the grey band around equality, as a fraction (10 %)."""

PNG_DPI = 160


def new_figure(width: float = 7.0, height: float = 4.0, grid: Literal["x", "y", "both"] = "y") -> tuple[Figure, Axes]:
    """A new figure without global pyplot state, so that many figures can be made without a display."""
    figure, panels = new_panels(1, width=width, height=height, grid=grid)
    return figure, panels[0]


def new_panels(
    columns: int,
    rows: int = 1,
    *,
    width: float = 7.0,
    height: float = 4.0,
    grid: Literal["x", "y", "both"] = "x",
    share_y: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with panels in reading order. By default, panels in one row share a y axis with the row names."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    shared: Literal["row", "none"] = "row" if share_y and columns > 1 and grid == "x" else "none"
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=shared).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def tiled_panels(
    count: int,
    panel: tuple[float, float],
    *,
    margin: tuple[float, float] = (0.0, 0.8),
    least: float = 5.0,
    grid: Literal["x", "y", "both"] = "x",
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in reading order, at most `MAX_PANEL_COLUMNS` side by side.

    Args:
        count: number of panels.
        panel: width and height of each panel, in inches.
        margin: extra width and height of the figure beside its panels, in inches.
        least: least width of the figure, in inches.
        grid: axis of the grid lines.
    """
    columns = min(MAX_PANEL_COLUMNS, count)
    rows = -(-count // columns)
    width, height = (
        around + size * number for around, size, number in zip(margin, panel, (columns, rows), strict=True)
    )
    figure, panels = new_panels(columns, rows, width=max(width, least), height=height, grid=grid)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def footnote(figure: Figure, text: str) -> None:
    """Add a line below the figure, after existing lines, that states the evidence of the figure."""
    figure.supxlabel(
        f"{figure.get_supxlabel()} {text}".strip(), x=0.01, ha="left", fontsize=7.5, color="#555555", wrap=True
    )


def legend_above(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """Add a legend of these axes' marks above all panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)


def equality(axes: Axes, times: npt.NDArray[np.float64], label: str | None = "within 10 %") -> None:
    """Make axes of predicted against measured logarithmic; draw the line of equality with the band of `EQUALITY_BAND`.

    Args:
        axes: where to draw.
        times: all values that will be drawn.
        label: label of the band in a legend.
    """
    ends = np.array([times.min() / 1.3, times.max() * 1.3])
    axes.fill_between(
        ends,
        (1 - EQUALITY_BAND) * ends,
        (1 + EQUALITY_BAND) * ends,
        color="black",
        alpha=0.08,
        linewidth=0,
        label=label,
    )
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    plain_ticks(axes.xaxis, axes.yaxis)


def same_scale(figure: Figure, panels: Sequence[Axes]) -> None:
    """Give panels that a reader compares one x axis from 0, unless the shortest bars would then be invisible."""
    ends = [axes.get_xlim()[1] for axes in panels]
    same = max(ends) <= MAX_SCALE_RATIO * min(ends)
    for axes, end in zip(panels, ends, strict=True):
        axes.set_xlim(0, max(ends) if same else end)
    if not same:
        footnote(figure, "Each panel has its own scale.")


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


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label horizontal bars; the first is at the top."""
    axes.set_yticks(range(len(labels)), list(labels))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def bar_height(rows: float) -> float:
    """Height, in inches, of a figure with this number of horizontal bars."""
    return 1.5 + 0.27 * max(rows, 2)


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("svg", "png")) -> None:
    """Write `<name>.svg` and `<name>.png`; the same figure gives the same bytes."""
    import matplotlib as mpl

    if "svg" in kinds:
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    if "png" in kinds:
        figure.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None})
