"""Layout of a figure: panels below a headline and a legend, above notes. Matplotlib's constrained layout gives texts their space.

A figure function draws on the panels of a `Board` and returns its figure. Sizes are in inches, so that bars and text have the same
size in every figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.arrays import Array
from pipeline.paths import FIGURES
from pipeline.readable import compact

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


HEADLINE, TITLE, TEXT, NOTE = 10.5, 9.5, 8.5, 7.5
"""Sizes of text in points: the figure's headline, titles of panels, labels, and notes."""

ROW = 0.27
"""Height of a row of bars whose label has one line."""

LETTER, LINE = 0.0079, 0.0185
"""Width of an average letter and height of a line, in inches per point of the text's size."""

EDGE = 0.08
"""Distance of texts from the edge of the canvas and from each other."""

AXIS = 0.52
"""Height of the numbers and the name of an axis."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
"""Marks for the colours, so that series also differ in black-and-white print."""

FAMILY_ORDER = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Families with learned models, in the order of tables and figures; others follow in alphabetical order."""

EQUALITY_BAND = 0.10
"""Half-width of the grey band around equality, as a fraction (10 %)."""

PNG_DPI = 160


@dataclass(frozen=True)
class Page:
    """What a figure is drawn for.

    Attributes:
        width: width of the figure.
        columns: greatest number of panels side by side.
        label: greatest width of the labels of rows; longer ones are wrapped.
    """

    width: float
    columns: int
    label: float


WIDE = Page(7.6, 3, 2.4)
"""A screen or a printed page."""

NARROW = Page(4.0, 1, 1.45)
"""A phone: at its 390 pixels, labels have the size of the text around the figure."""


class Board:
    """A figure with a panel per height, in reading order, without global pyplot state.

    Args:
        heights: height of each panel without its title and axis; panels side by side get the height of the tallest.
        page: what the figure is drawn for.
        columns: number of panels side by side, at most that of the page.
        grid: direction of the axis with grid lines.
    """

    def __init__(
        self,
        heights: Sequence[float],
        page: Page = WIDE,
        *,
        columns: int | None = None,
        grid: Literal["x", "y", "both"] = "x",
    ) -> None:
        from matplotlib.figure import Figure

        across = min(columns or page.columns, page.columns, len(heights))
        rows = [max(heights[first : first + across]) for first in range(0, len(heights), across)]
        self.page, self.columns = page, across
        self.figure = Figure(
            figsize=(page.width, sum(rows) + AXIS * len(rows) + EDGE), layout="constrained"
        )
        self.figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05, wspace=0.03, hspace=0.03)  # type: ignore[union-attr,call-arg]
        # the headline and the notes belong to the figure, the legend and the panels to its part between them
        self._middle = self.figure.add_subfigure(self.figure.add_gridspec()[0])
        cells = self._middle.add_gridspec(len(rows), across, height_ratios=rows)
        self.panels = [
            self._middle.add_subplot(cells[divmod(number, across)])
            for number in range(len(heights))
        ]
        self._title_lines, self._labels = [0] * len(rows), [0.0] * across
        for axes in self.panels:
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color("#888888")
            axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.tick_params(labelsize=TEXT, color="#888888")

    def headline(self, text: str) -> None:
        """Set the sentence above all panels that says what the figure shows."""
        shown = wrapped(text, self.page.width - 2 * EDGE, HEADLINE, bold=True)
        self.figure.suptitle(
            shown, x=EDGE / self.page.width, ha="left", fontsize=HEADLINE, fontweight="bold"
        )
        grow(self.figure, _height(shown, HEADLINE) + EDGE)

    def legend(self, handles: Sequence[Artist], names: Sequence[str]) -> None:
        """Set the legend above all panels, with as many columns as the page has room for."""
        shown = [wrapped(name, self.page.width - 0.6, TEXT) for name in names]
        widest = 0.42 + max(
            LETTER * TEXT * len(line) for name in shown for line in name.split("\n")
        )
        columns = min(len(names), max(1, int((self.page.width - EDGE) / widest)))
        self._middle.legend(
            handles,
            shown,
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            fontsize=TEXT,
            borderpad=0.0,
            borderaxespad=0.6,
            handlelength=1.3,
            columnspacing=1.2,
            handletextpad=0.5,
        )
        rows = math.ceil(len(names) / columns)
        grow(self.figure, 0.03 * rows + max(_height(name, TEXT) for name in shown) * rows + EDGE)

    def label_rows(self, axes: Axes, labels: Sequence[str], once: bool = False) -> None:
        """Label the horizontal bars of a panel; the first is at the top. A row alone gets a wider panel than its bar.

        Args:
            axes: the panel.
            labels: names of its rows.
            once: whether panels side by side have the same rows, so that the first alone is labelled.
        """
        column = self.panels.index(axes) % self.columns
        written = [""] * len(labels) if once and column else labels
        shown = [wrapped(label, self.page.label, TEXT) for label in written]
        letters = max((len(line) for label in shown for line in label.split("\n")), default=0)
        self._labels[column] = max(self._labels[column], LETTER * TEXT * letters)
        axes.set_yticks(range(len(labels)), shown)
        spare = max(0.0, 1.6 - len(labels)) / 2
        axes.set_ylim(len(labels) - 0.5 + spare, -0.5 - spare)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")

    def title(self, axes: Axes, text: str) -> None:
        """Set the title of a panel, after the labels of its rows; the first line has its height already."""
        shown = wrapped(text, self._across(), TITLE, bold=True)
        axes.set_title(shown, loc="left", fontsize=TITLE, fontweight="bold")
        row, lines = self.panels.index(axes) // self.columns, shown.count("\n") + 1
        grow(self.figure, LINE * TITLE * max(0, lines - self._title_lines[row]))
        self._title_lines[row] = max(lines, self._title_lines[row])

    def names(self, axes: Axes, x: str = "", y: str = "") -> None:
        """Name the axes of a panel."""
        axes.set_xlabel(wrapped(x, self._across(), TEXT), fontsize=TEXT)
        axes.set_ylabel(y, fontsize=TEXT)
        if y:
            column = self.panels.index(axes) % self.columns
            self._labels[column] = max(self._labels[column], 0.5)

    def number_ticks(self, axes: Axes) -> None:
        """Show as many numbers below a panel as it has room for."""
        letters = len(f"{max(map(abs, axes.get_xlim())):,.0f}") + 5
        number_ticks(axes.xaxis, min(6, max(1, int(self._across() / (LETTER * TEXT * letters)))))

    def _across(self) -> float:
        """Width of a panel, without labels that are not set yet."""
        return (self.page.width - sum(self._labels)) / self.columns - 0.4

    def note(self, text: str) -> None:
        """Add a sentence below the panels."""
        add_note(self.figure, text)


def add_note(figure: Figure, text: str) -> None:
    """Add a sentence to the notes below a figure."""
    width = float(figure.get_figwidth())
    old = figure.get_supxlabel()
    shown = wrapped(f"{' '.join(old.split())} {text}".strip(), width - 2 * EDGE, NOTE)
    figure.supxlabel(shown, x=EDGE / width, ha="left", fontsize=NOTE, color="#555555")
    grow(figure, _height(shown, NOTE) - (_height(old, NOTE) if old else -EDGE))


def headline_of(figure: Figure) -> str:
    """The sentence above the panels, or those of its panels where it has none."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    return " ".join((figure.get_suptitle() or ". ".join(filter(None, titles))).split())


def grow(figure: Figure, inches: float) -> None:
    """Make the canvas taller."""
    figure.set_figheight(figure.get_figheight() + inches)


def wrapped(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Text in lines of about a width in inches."""
    letters = max(8, int(width / (LETTER * size * (1.18 if bold else 1.0))))
    unbroken = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return "\n".join(fill(line, letters) for line in unbroken.split("\n"))


def _height(text: str, size: float) -> float:
    return LINE * size * (text.count("\n") + 1)


def spread(middle: Array, low: Array, high: Array) -> Array:
    """Lengths of whiskers, as matplotlib's error bars take them; also of a single value."""
    return np.maximum([np.atleast_1d(middle - low), np.atleast_1d(high - middle)], 0.0)


def rows_height(labels: Sequence[str], page: Page) -> float:
    """Height of a panel with a horizontal bar for each label."""
    lines = max((wrapped(label, page.label, TEXT).count("\n") for label in labels), default=0)
    return (ROW + LINE * TEXT * lines) * max(len(labels), 1.6)


def value_labels(
    axes: Axes, ends: Iterable[float], texts: Iterable[str], va: str = "center_baseline"
) -> None:
    """Write a value beside the end of each row's bar, to the left of a negative one."""
    for row, (end, text) in enumerate(zip(ends, texts, strict=True)):
        right = end >= 0
        axes.annotate(
            text,
            (end, row),
            (5 if right else -5, 0),
            textcoords="offset points",
            va=va,
            ha="left" if right else "right",
            fontsize=TEXT,
            annotation_clip=False,
        )


def equality(axes: Axes, times: Array) -> None:
    """Make axes of predicted against measured logarithmic; draw the line of equality with the band of `EQUALITY_BAND`.

    Args:
        axes: where to draw.
        times: all values that will be drawn.
    """
    ends = np.array([times.min() / 1.3, times.max() * 1.3])
    low, high = (1 - EQUALITY_BAND) * ends, (1 + EQUALITY_BAND) * ends
    axes.fill_between(ends, low, high, color="black", alpha=0.08, linewidth=0)
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    plain_ticks(axes.xaxis, axes.yaxis)


def number_ticks(axis: Axis, most: int = 6) -> None:
    """Show at most a number of values with thousands separators on a linear axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))


def plain_ticks(*scales: Axis) -> None:
    """Show plain numbers on logarithmic axes instead of powers of ten, more of them on a short axis."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    for scale in scales:
        low, high = scale.get_view_interval()
        decades = math.log10(high / low) if 0 < low < high else 1.0
        steps = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
        scale.set_major_locator(MaxNLocator(nbins=4) if decades < 0.8 else LogLocator(subs=steps))
        scale.set_major_formatter(
            lambda value, _: compact(value) if value >= 1e6 else f"{value:,g}"
        )
        scale.set_minor_locator(NullLocator())


def in_order(families: Iterable[str]) -> list[str]:
    """Kernel families without duplicates, the learned ones first."""
    places = {name: number for number, name in enumerate(FAMILY_ORDER)}
    return sorted(set(families), key=lambda name: (places.get(name, len(places)), name))


def marks(colours: Iterable[str], **style: Any) -> list[Artist]:
    """Legend handles of series without lines: a mark per colour, in the order of `MARKERS`."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=colour, marker=mark, linestyle="none", markersize=5, **style)
        for colour, mark in zip(colours, MARKERS * 4, strict=False)
    ]


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = FIGURES) -> None:
    """Write `<name>.svg` and `<name>.png`; the same figure gives the same bytes. Its layout is final then."""
    import matplotlib as mpl

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for (
        axes
    ) in figure.axes:  # rounded: the layout's solver gives positions that differ in their last bits
        x, y, width, height = (round(float(value), 6) for value in axes.get_position().bounds)
        axes.set_position((x, y, width, height))
    if "svg" in kinds:
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    if "png" in kinds:
        figure.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None})


def save_as(figure: Figure, path: Path) -> None:
    """Write a figure to the SVG or PNG file that a user names."""
    save(figure, path.parent, path.stem, (path.suffix.removeprefix("."),))
