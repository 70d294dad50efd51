"""Colours of everything that is drawn but kernel families: GPUs, active and idle time, measured values.

The base colours are those of Okabe and
Ito, which are distinguishable with every common kind of colour blindness. Blue is left to products of matrices: time in which
any kernel runs is slate, as the bar of a step is in timelines, and series begin with other hues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SERIES = (
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#000000",
    "#56B4E9",
    "#999999",
    "#D55E00",
    "#F0E442",
    "#0072B2",
)
"""Okabe and Ito's palette, for series without a colour of their own, such as GPUs in the order of the grid."""

PHASES = {
    "inputs": "#E9DFA3",
    "forward": "#A9C8EA",
    "loss": "#C9B4E8",
    "backward": "#F0BF93",
    "communication": "#E3A8C8",
    "optimizer": "#A5D3B9",
}
"""Colour of each phase of a step, in timelines and in figures."""

ACTIVE, IDLE, MEASURED, MONEY = "#3F4650", "#C9CED6", "#D55E00", "#7D5A4F"
"""Active device time, and throughput; idle device time; measured values; throughput per cost."""

IDLE_STYLE: dict[str, Any] = {
    "facecolor": "#FFFFFF",
    "edgecolor": "#4A4A4A",
    "hatch": "////",
    "linewidth": 0.7,
}
"""How idle time is drawn: hatched, so that it is seen in grey too and is taken for no kernel."""

OTHER = "#D4D4D4"
"""Families that are drawn together, and families without a colour of their own."""

LIGHT_TEXT_BELOW = 0.18
"""Relative luminance of a surface below which text on it is white. At this value white and black are equally readable."""


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """Colours of the distinct names in their order; they repeat where there are more names than colours."""
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(dict.fromkeys(names))}


def luminance(colour: str) -> float:
    """Relative luminance of a colour such as `#0072B2`, from 0 (black) to 1 (white), as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_on(colour: str) -> str:
    """Colour of text on a surface: `white` or `black`."""
    return "white" if luminance(colour) < LIGHT_TEXT_BELOW else "black"
