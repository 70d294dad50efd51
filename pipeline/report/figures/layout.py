"""Layout of a figure: panels below a headline and a legend, above notes; no text overlaps another or leaves the canvas.

A figure function draws on `board`, marks its texts with `value_label` and `segment_label`, and returns `finish(figure)`. Sizes are
in inches, so that bars and text have the same size in every figure. `finish` measures the texts and gives them their space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pipeline.palette import text_on

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

HEADLINE, TITLE, TEXT, NOTE = 10.5, 9.5, 8.5, 7.5
"""Sizes of text in points: the figure's headline, titles of panels, labels, and notes."""

ROW = 0.27
"""Height of a row of bars whose label has one line."""

LINE = 0.145
"""Height of each further line of a row's label."""

EDGE = 0.08
"""Least distance of text from the edge of the canvas and from other text."""

AROUND = 1.3
"""Height around a row of panels before it is measured: more than a title and the numbers and name of an axis need."""

WIDER = 1.03
"""Factor from the width of outlines to that of drawn text, whose letters are placed on whole pixels."""

MAX_PASSES = 6
"""Most passes of `finish`. Each gives texts the space that the last pass found missing; two or three suffice as a rule."""

TITLE_GAP = 4.0
"""Distance of a panel's title from the panel, in points."""

GREY = "#555555"
"""Colour of notes."""

Grid = Literal["x", "y", "both"]


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


@dataclass
class _Segment:
    """A part of a stacked bar, with the texts that may stand in it, longest first."""

    text: Text
    left: float
    right: float
    choices: Sequence[str]


@dataclass
class _Layout:
    page: Page
    panels: list[Axes]
    heights: list[float]
    headline: Text | None = None
    headline_says: str = ""
    legend: tuple[list[Artist], list[str]] | None = None
    notes: list[str] = field(default_factory=list)
    note: Text | None = None
    titles: dict[Axes, str] = field(default_factory=dict)
    values: list[tuple[Axes, Text, float]] = field(default_factory=list)
    segments: list[_Segment] = field(default_factory=list)


_KEPT = "_steptime_layout"
"""Attribute of a figure that holds its layout. The figure owns it, so that both are freed together."""


def board(
    heights: Sequence[float], page: Page = WIDE, *, columns: int | None = None, grid: Grid = "x"
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per height, in reading order, without global pyplot state.

    Args:
        heights: height of each panel without its title and axis; panels side by side get the height of the tallest.
        page: what the figure is drawn for.
        columns: number of panels side by side, at most that of the page.
        grid: direction of the axis with grid lines.
    """
    from matplotlib.figure import Figure

    count = len(heights)
    across = min(columns or page.columns, page.columns, count)
    rows = [max(heights[place : place + across]) for place in range(0, count, across)]
    figure = Figure(figsize=(page.width, sum(rows) + AROUND * len(rows)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05, wspace=0.03, hspace=0.03)  # type: ignore[union-attr,call-arg]
    grid_of_panels = figure.add_gridspec(len(rows), across, height_ratios=rows)
    panels = [figure.add_subplot(grid_of_panels[place // across, place % across]) for place in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#888888")
        axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=TEXT, color="#888888")
        axes.xaxis.label.set_fontsize(TEXT)
        axes.yaxis.label.set_fontsize(TEXT)
    setattr(figure, _KEPT, _Layout(page, panels, rows))
    return figure, panels


def headline(figure: Figure, text: str) -> None:
    """Set the sentence above all panels that says what the figure shows."""
    layout = _layout(figure)
    layout.headline_says = text
    if layout.headline is None:
        layout.headline = figure.text(0, 1, "", fontsize=HEADLINE, fontweight="bold", va="top")
        layout.headline.set_in_layout(False)


def headline_of(figure: Figure) -> str:
    """The sentence above the panels, or those of its panels where it has none."""
    layout = _layout(figure)
    return layout.headline_says or ". ".join(layout.titles.values())


def panel_title(axes: Axes, text: str) -> None:
    """Set the title of a panel; it begins at the left end of the row labels and is wrapped."""
    _layout_of(axes).titles[axes] = text


def legend_of(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Set the legend above all panels; its number of columns follows from the width of the page."""
    _layout(figure).legend = (list(handles), list(names))


def footnote(figure: Figure, text: str) -> None:
    """Add a sentence to the notes below the figure, after existing ones."""
    layout = _layout(figure)
    layout.notes.append(text)
    if layout.note is None:
        layout.note = figure.text(0, 0, "", fontsize=NOTE, color=GREY, va="bottom", linespacing=1.25)
        layout.note.set_in_layout(False)


def notes_of(figure: Figure) -> str:
    """All notes below the figure."""
    return " ".join(_layout(figure).notes)


def rows_height(labels: Sequence[str], page: Page) -> float:
    """Height of a panel with a horizontal bar for each label."""
    lines = max((wrapped(label, page.label, TEXT).count("\n") for label in labels), default=0)
    return (ROW + LINE * lines) * max(len(labels), 1.6)


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the horizontal bars of a panel; the first is at the top."""
    page = _layout_of(axes).page
    axes.set_yticks(range(len(labels)), [wrapped(label, page.label, TEXT) for label in labels])
    spare = max(0.0, 1.6 - len(labels)) / 2
    axes.set_ylim(len(labels) - 0.5 + spare, -0.5 - spare)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def value_label(
    axes: Axes, x: float, y: float, text: str, *, left: bool = False, gap: float = 4.0, size: float = TEXT
) -> None:
    """Write a value beside the end of a bar; the axis gets longer where the text needs space.

    Args:
        axes: the panel.
        x: end of the bar, in data coordinates.
        y: row of the bar.
        text: the value.
        left: whether the text stands to the left of the end, as with a negative bar.
        gap: distance from the end of the bar in points.
        size: size of the text in points.
    """
    note = axes.annotate(text, (x, y), (-gap if left else gap, 0), "data", "offset points", va="center_baseline",
                         ha="right" if left else "left", fontsize=size, annotation_clip=False)  # fmt: skip
    note.set_in_layout(False)
    _layout_of(axes).values.append((axes, note, x))


def segment_label(axes: Axes, left: float, right: float, y: float, choices: Sequence[str], colour: str) -> None:
    """Write the first of several texts that fits into a part of a bar, or none.

    Args:
        axes: the panel.
        left, right: ends of the part, in data coordinates.
        y: row of the bar.
        choices: texts, longest first.
        colour: colour of the part.
    """
    text = axes.text(
        (left + right) / 2, y, "", ha="center", va="center_baseline", fontsize=TEXT - 0.5, color=text_on(colour)
    )
    text.set_in_layout(False)
    _layout_of(axes).segments.append(_Segment(text, left, right, choices))


def finish(figure: Figure) -> Figure:
    """Give every text of the figure its space; calling it again changes nothing but what was added since."""
    layout = _layout(figure)
    for _ in range(MAX_PASSES):
        _place_margins(figure, layout)
        figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
        changed = [
            _fit_height(figure, layout),
            _fit_titles(figure, layout),
            _fit_names(layout),
            _fit_values(layout),
            _thin_ticks(layout),
        ]
        if not any(changed):
            break
    _fill_segments(figure, layout)
    return figure


def page_of(axes: Axes) -> Page:
    """The page that a panel is drawn for."""
    return _layout_of(axes).page


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of one line of text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    path = TextPath(
        (0, 0), text.replace("$", r"\$"), size=size, prop=FontProperties(weight="bold" if bold else "normal")
    )
    return WIDER * float(path.get_extents().x1) / 72


def wrapped(text: str, width: float, size: float, bold: bool = False) -> str:
    """Text in lines of at most a width in inches; it breaks after spaces, else after `_`, `/`, `:` and `,`, else anywhere."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces(paragraph, width, size, bold):
            if line and text_width((line + piece).rstrip(), size, bold) > width:
                lines.append(line.rstrip())
                line = piece.lstrip()
            else:
                line += piece
        lines.append(line.rstrip())
    return "\n".join(lines)


def _pieces(text: str, width: float, size: float, bold: bool) -> list[str]:
    """Parts of text between which a line may break: words, and parts of words that are wider than a line."""
    pieces = []
    for word in text.split(" "):
        whole = word + " "
        if text_width(word, size, bold) <= width:
            pieces.append(whole)
            continue
        part = ""
        for character in whole:
            if part and text_width(part + character, size, bold) > width:
                cut = max(part.rfind(mark) for mark in "_/:,-.(") + 1 or len(part)
                pieces.append(part[:cut])
                part = part[cut:]
            part += character
        pieces.append(part)
    return pieces


def _layout(figure: Figure) -> _Layout:
    layout: _Layout = getattr(figure, _KEPT)
    return layout


def _layout_of(axes: Axes) -> _Layout:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return _layout(figure)


def _place_margins(figure: Figure, layout: _Layout) -> None:
    """Wrap and place the headline, the legend and the notes; leave the rest of the canvas to the panels."""
    width, height = figure.get_size_inches()
    usable, above, below = width - 2 * EDGE, EDGE, EDGE
    top: list[tuple[Text | Legend, float]] = []
    if layout.headline is not None:
        layout.headline.set_text(wrapped(layout.headline_says, usable, HEADLINE, bold=True))
        top.append((layout.headline, above))
        above += _height(layout.headline) + EDGE
    for old in list(figure.legends):
        old.remove()
    if layout.legend is not None:
        top.append((_legend(figure, *layout.legend, usable), above))
        above += _height(top[-1][0]) + EDGE
    if layout.note is not None:
        layout.note.set_text(wrapped(" ".join(layout.notes), usable, NOTE))
        below += _height(layout.note) + EDGE
    least = above + below + sum(layout.heights)
    if height < least + 0.3 * len(layout.heights):
        height = least + AROUND * len(layout.heights)
        figure.set_size_inches(width, height)
    for artist, inches in top:
        place = (EDGE / width, 1 - inches / height)
        artist.set_position(place) if artist is layout.headline else artist.set_bbox_to_anchor(place)  # type: ignore[union-attr]
    if layout.note is not None:
        layout.note.set_position((EDGE / width, EDGE / height))
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - (above + below) / height))  # type: ignore[union-attr,call-arg]


def _legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str], usable: float) -> Legend:
    """A legend with as many columns as the width allows."""
    shown = [wrapped(name, usable - 0.5, TEXT) for name in names]
    widths = [0.42 + max(text_width(line, TEXT) for line in name.split("\n")) for name in shown]
    columns = next((each for each in range(len(names), 1, -1) if _columns_width(widths, each) <= usable), 1)
    legend = figure.legend(handles, shown, loc="upper left", ncols=columns, frameon=False, fontsize=TEXT, borderaxespad=0.0,
                           borderpad=0.0, handlelength=1.3, columnspacing=1.2, handletextpad=0.5)  # fmt: skip
    legend.set_in_layout(False)
    return legend


def _columns_width(widths: Sequence[float], columns: int) -> float:
    """Width of entries that fill columns from top to bottom, as matplotlib fills them."""
    short, longer = divmod(len(widths), columns)
    ends = [0]
    for place in range(columns):
        ends.append(ends[-1] + short + (place < longer))
    return sum(max(widths[low:high], default=0.0) for low, high in zip(ends, ends[1:], strict=False))


def _height(artist: Artist) -> float:
    figure = artist.get_figure(root=True)
    assert figure is not None
    return float(artist.get_window_extent().height) / figure.dpi


def _fit_height(figure: Figure, layout: _Layout) -> bool:
    """Make the canvas as tall as the panels ask; returns whether it changed."""
    across = -(-len(layout.panels) // len(layout.heights))
    have = [layout.panels[row * across].bbox.height / figure.dpi for row in range(len(layout.heights))]
    missing = sum(layout.heights) - sum(have)
    if abs(missing) < 0.02:
        return False
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, round(max(height + missing, 0.5), 3))
    return True


def _fit_titles(figure: Figure, layout: _Layout) -> bool:
    """Begin each title at the left end of its panel's labels, and wrap it at the panel's right end."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    changed, one_column = False, len(layout.heights) == len(layout.panels)
    for axes, text in layout.titles.items():
        box = axes.bbox
        around = axes.yaxis.get_tightbbox()
        left = min(box.x0, around.x0) if around is not None else box.x0
        left = EDGE * figure.dpi if one_column else max(EDGE * figure.dpi, left)
        shown = wrapped(text, (box.x1 - left) / figure.dpi, TITLE, bold=True)
        place = left / figure.bbox.width
        old = axes.get_title(loc="left")
        title = axes.set_title(shown, loc="left", fontsize=TITLE, fontweight="bold", pad=TITLE_GAP)
        above = ScaledTranslation(0, TITLE_GAP / 72, figure.dpi_scale_trans)
        title.set_transform(blended_transform_factory(figure.transFigure, axes.transAxes) + above)
        changed = changed or old != shown or abs(title.get_position()[0] - place) > 1e-3
        title.set_x(place)
    return changed


def _fit_names(layout: _Layout) -> bool:
    """Wrap the names of axes at the length of the axes; returns whether one changed."""
    changed = False
    for axes in layout.panels:
        for label, pixels in ((axes.xaxis.label, axes.bbox.width), (axes.yaxis.label, axes.bbox.height)):
            old = label.get_text()
            shown = wrapped(" ".join(old.split()), pixels / axes.figure.dpi, TEXT) if old else old
            label.set_text(shown)
            changed = changed or shown != old
    return changed


def _fit_values(layout: _Layout) -> bool:
    """Make axes longer whose values do not fit; returns whether one changed."""
    changed = False
    for axes in dict.fromkeys(axes for axes, _, _ in layout.values):
        scale = axes.transScale.transform
        low, high = (scale((end, 1.0))[0] for end in axes.get_xlim())
        whole = axes.bbox.width
        new_low, new_high = low, high
        for _, text, x in (each for each in layout.values if each[0] is axes):
            need = min(
                abs(text.get_window_extent().x0 - axes.transData.transform((x, 0))[0])
                + text.get_window_extent().width
                + 4,
                0.7 * whole,
            )
            place = scale((x, 1.0))[0]
            if text.get_horizontalalignment() == "left":
                new_high = max(new_high, low + (place - low) * whole / (whole - need))
            else:
                new_low = min(new_low, high - (high - place) * whole / (whole - need))
        if new_high - high > 1e-3 * (high - low) or low - new_low > 1e-3 * (high - low):
            back = axes.transScale.inverted().transform
            axes.set_xlim(*(back((end, 1.0))[0] for end in (new_low, new_high)))
            changed = True
    return changed


def _thin_ticks(layout: _Layout) -> bool:
    """Show every second number of an axis where its numbers touch each other; returns whether one changed."""
    changed = False
    for axes in layout.panels:
        axis: Axis = axes.xaxis
        shown = [(tick.get_loc(), tick.label1.get_window_extent()) for tick in axis.get_major_ticks()
                 if tick.label1.get_text() and tick.label1.get_visible()]  # fmt: skip
        shown = [(place, box) for place, box in shown if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
        if any(after.x0 - before.x1 < 4 for (_, before), (_, after) in zip(shown, shown[1:], strict=False)):
            labels = [axis.get_major_formatter().format_ticks([place])[0] for place, _ in shown]
            if len(shown) > 2:
                axis.set_ticks([place for place, _ in shown][::2], labels[::2])
            else:
                axis.set_ticks([shown[0][0]], [labels[0]])
            changed = True
    return changed


def _fill_segments(figure: Figure, layout: _Layout) -> None:
    for part in layout.segments:
        axes = part.text.axes
        assert axes is not None
        ends = axes.transData.transform([(part.left, 0), (part.right, 0)])[:, 0] / figure.dpi
        fits = (c for c in part.choices if text_width(c, TEXT - 0.5) + EDGE <= abs(ends[1] - ends[0]))
        part.text.set_text(next(fits, ""))
