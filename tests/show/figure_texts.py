"""Texts of a figure that overlap or leave its canvas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

TOUCH = 1.0
"""Overlap, in pixels, that a reader does not see."""


def shown_texts(figure: Figure) -> Iterator[Text]:
    """All texts that are drawn; an axis keeps texts of ticks outside its ends, which are not."""
    hidden: set[int] = set()
    for axis in figure.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        hidden |= {
            id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high
        }
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


def problems(figure: Figure) -> list[str]:
    """Texts that leave the canvas, and pairs of texts that overlap."""
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    found = [
        f"leaves the canvas: {text!r}"
        for text, box in boxes
        if min(box.x0, box.y0) < -TOUCH or box.x1 > width + TOUCH or box.y1 > height + TOUCH
    ]
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > TOUCH and min(a.y1, b.y1) - max(a.y0, b.y0) > TOUCH:
            found.append(f"overlap: {one!r} and {two!r}")
    return found
