"""Colours of everything that is drawn: kernel families, GPUs, active and idle time, measured values.

Every picture takes its colours from here, so that a family has one colour in all of them. The base colours are those of Okabe and
Ito, which are distinguishable with every common kind of colour blindness. Related families share a hue and differ in lightness.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SERIES = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#000000",
    "#999999",
    "#F0E442",
)
"""Okabe and Ito's palette, for series without a colour of their own, such as GPUs in the order of the grid."""

ACTIVE, IDLE, MEASURED = "#0072B2", "#BCDCF0", "#D55E00"
"""Active device time, idle device time, and measured values."""

IDLE_STYLE: dict[str, Any] = {
    "facecolor": "#FFFFFF",
    "edgecolor": "#4A4A4A",
    "hatch": "////",
    "linewidth": 0.7,
}
"""How idle time is drawn: hatched, so that it is seen in grey too and is taken for no kernel."""

OTHER = "#D4D4D4"
"""Families that are drawn together, and families without a colour of their own."""

FAMILIES = {
    # matrix products: blue
    "gemm": "#0B5FA5",
    "bmm": "#63B3E4",
    "attention": "#073763",
    "rnn": "#A5CFEE",
    # convolutions: orange to brown
    "conv2d_forward": "#F2A93B",
    "conv2d_backward_data": "#C8500A",
    "conv2d_backward_weight": "#7A2F04",
    # embedding tables and their interaction: green
    "embedding_forward": "#7BCFB0",
    "embedding_backward": "#00835F",
    "interaction": "#B9E6CF",
    "tril_index_forward": "#4F9D3A",
    "tril_index_backward": "#2A5D1C",
    # one result per element: yellow
    "elementwise": "#F3E65A",
    "dropout": "#B9A91C",
    "loss": "#8A7D0B",
    # statistics over elements: pink to purple
    "batch_norm": "#D98AB6",
    "layer_norm": "#EDBFD8",
    "softmax": "#A8578A",
    "pooling": "#F6DCEA",
    "reduction": "#7B3565",
    # updates of parameters: violet
    "optimizer": "#4A3590",
    # movement of bytes: grey
    "memcpy_h2d": "#9A9A9A",
    "memcpy_d2h": "#7C7C7C",
    "memcpy_d2d": "#5F5F5F",
    "memset": "#C9C9C9",
    "copy": "#B3B3B3",
    "concat": "#6D7B87",
    "index": "#A9B7C2",
    "sort": "#27313A",
    # traffic between GPUs: black
    "collective": "#1C1C1C",
}
"""Colour of every kernel family."""

LIGHT_TEXT_BELOW = 0.18
"""Relative luminance of a surface below which text on it is white. At this value white and black are equally readable."""


def family_colour(family: str) -> str:
    """Colour of a kernel family; `OTHER` for a name that is no family."""
    return FAMILIES.get(family, OTHER)


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
