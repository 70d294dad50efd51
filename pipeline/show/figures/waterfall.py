"""Waterfalls: from step A to step B with the calls that changed most, and from a step to that with all advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.answers.advice import Advice
from pipeline.answers.call_changes import GRADIENT, GRADIENTS
from pipeline.answers.difference import Change, Difference, percent_of, signed
from pipeline.answers.drawn_step import COMMUNICATION, IDLE, OVERLAP
from pipeline.families import family_colour
from pipeline.palette import ACTIVE, IDLE_STYLE, OTHER
from pipeline.prediction import Prediction
from pipeline.readable import milliseconds
from pipeline.show.figures.board import (
    TEXT,
    WIDE,
    Board,
    Page,
    rows_height,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PARTS = 8
"""Number of parts with a bar of their own."""

ROOM = 1.32
"""Length of the axis, relative to the longest bar: texts stand to the right of the bars."""


def draw_difference(difference: Difference, page: Page = WIDE) -> Figure:
    """A bar per part, from where the one before it ends, between the bars of both steps; below it a bar per call."""
    d = difference
    parts = _shown(d.parts)
    labels = [d.names[0], *(part.label for part in parts), d.names[1]]
    names = [call.label for call in d.calls]
    board = Board(
        [rows_height(labels, page), *([rows_height(names, page)] if names else [])], page, columns=1
    )
    board.headline(d.sentence)
    _waterfall(board, d.a, d.b, parts, labels)
    board.title(board.panels[0], d.shared)
    if names:
        axes = board.panels[1]
        board.label_rows(axes, names)
        changes = [call.us / 1000 for call in d.calls]
        axes.barh(
            range(len(names)), changes, color=[_colour(call.family) for call in d.calls], height=0.6
        )
        axes.axvline(0, color="#555555", linewidth=0.8)
        reach = max(map(abs, changes))
        axes.set_xlim(1.05 * min(*changes, 0.0), max(*changes, 0.0) + (ROOM - 1) * reach)
        for row, call in enumerate(d.calls):
            _text(axes, max(call.us / 1000, 0.0), row, signed(call.us))
        board.names(axes, "change of these calls (ms)")
        board.number_ticks(axes)
        board.title(axes, "The calls that changed most")
    board.note("Whiskers: p10 to p90." + " Dotted: longer." * any(part.us > 0 for part in parts))
    for note in d.notes[:2]:
        board.note(f"{note[0].upper()}{note[1:]}.")
    return board.figure


def draw_advice(advice: Advice) -> Figure:
    """A waterfall from a step to that with all lines of its advice, in the order in which the gains add up."""
    parts, before, after = advice.changes(), advice.before, advice.after
    labels = ["now", *(part.name for part in parts), "with all lines"]
    board = Board([rows_height(labels, WIDE)])
    board.title(board.panels[0], advice.summary)
    _waterfall(board, before, after, parts, labels)
    board.note("Whiskers: p10 to p90; those of the gains are from paired draws.")
    return board.figure


def _shown(parts: tuple[Change, ...]) -> list[Change]:
    """The parts with the largest changes, and the sum of the others; without those that are nothing."""
    changed = [part for part in parts if abs(part.us) >= 0.5]
    if len(changed) <= MOST_PARTS + 1:
        return changed
    rest = changed[MOST_PARTS:]
    a_us, b_us = sum(part.a_us for part in rest), sum(part.b_us for part in rest)
    return [*changed[:MOST_PARTS], Change(f"{len(rest)} other parts", a_us, b_us)]


def _waterfall(
    board: Board, a: Prediction, b: Prediction, parts: Sequence[Change], labels: Sequence[str]
) -> None:
    """A bar per part, from where the one above it ends, between the bars of both steps."""
    axes = board.panels[0]
    board.label_rows(axes, labels)
    last = len(parts) + 1
    reached, longest = a.predicted_us / 1000, max(a.p90_us, b.p90_us) / 1000
    for row, p in ((0, a), (last, b)):
        low, step, high = np.array([p.p10_us, p.predicted_us, p.p90_us]) / 1000
        axes.barh(
            row,
            step,
            color=ACTIVE,
            height=0.6,
            xerr=spread(step, low, high),
            error_kw={"elinewidth": 1, "capsize": 2},
        )
        _text(axes, p.p90_us / 1000, row, milliseconds(p.predicted_us))
    for row, part in enumerate(parts, 1):
        start, end = reached, reached + part.us / 1000
        axes.barh(row, end - start, left=start, height=0.6, **_style(part))
        right = max(start, end)
        if part.p10_us is not None and part.p90_us is not None:
            low, middle, high = np.array([part.p10_us, part.us, part.p90_us]) / 1000
            reach = spread(middle, low, high)
            axes.errorbar(end, row, xerr=reach, fmt="none", ecolor="black", elinewidth=1, capsize=2)
            right = max(right, start + high)
        axes.plot([start, start], [row - 0.7, row - 0.3], color="#555555", linewidth=0.8)
        _text(axes, right, row, f"{signed(part.us)} ms ({percent_of(part.us, a)})")
        reached, longest = end, max(longest, right)
    axes.plot([reached, reached], [last - 0.7, last - 0.3], color="#555555", linewidth=0.8)
    axes.set_xlim(0, ROOM * longest)
    board.names(axes, "time of one step (ms)")
    board.number_ticks(axes)


def _text(axes: Axes, right: float, row: int, text: str) -> None:
    axes.annotate(
        text, (right, row), (5, 0), textcoords="offset points", va="center", fontsize=TEXT
    )


def _style(part: Change) -> dict[str, Any]:
    """How the bar of a part is drawn: idle time is hatched, and what takes longer in B is dotted."""
    if part.name == IDLE:
        return dict(IDLE_STYLE)
    hatch = "" if part.us < 0 else "..."
    return {"color": _colour(part.name), "edgecolor": "#333333", "linewidth": 0.6, "hatch": hatch}


def _colour(name: str) -> str:
    """Colour of a part of a step or of a kernel family."""
    family = {COMMUNICATION: "collective", GRADIENT: GRADIENTS[0]}.get(name, name)
    return OTHER if name == OVERLAP else family_colour(family)
