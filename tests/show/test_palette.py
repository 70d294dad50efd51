"""Colours: one per kernel family, and told apart without colour where they meet."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.families import COLOURS, FAMILIES, family_colour
from pipeline.palette import (
    ACTIVE,
    IDLE,
    MEASURED,
    MONEY,
    OTHER,
    SERIES,
    luminance,
    text_on,
)

NEIGHBOURS = (
    ("gemm", "bmm"), ("conv2d_forward", "conv2d_backward_data"),
    ("conv2d_backward_data", "conv2d_backward_weight"), ("embedding_forward", "embedding_backward"),
    ("tril_index_forward", "tril_index_backward"), ("batch_norm", "layer_norm"),
    ("elementwise", "dropout"), ("memcpy_h2d", "memcpy_d2d"),
)  # fmt: skip
"""Families of one hue that are often drawn beside each other."""


def lightness(colour: str) -> float:
    """CIE L*, from 0 (black) to 100 (white): what remains of a colour in a grey print."""
    return 116 * luminance(colour) ** (1 / 3) - 16


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_every_kernel_family_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(FAMILIES) - {"other"}
    given = Counter([*COLOURS.values(), *SERIES, OTHER, MONEY])
    assert [name for name, colour in COLOURS.items() if given[colour] > 1] == []
    assert family_colour("other") == family_colour("no family") == OTHER


def test_pairs_are_told_apart_in_grey() -> None:
    pairs = [(COLOURS[one], COLOURS[two]) for one, two in NEIGHBOURS] + [
        (ACTIVE, IDLE),
        (MEASURED, IDLE),
    ]
    assert min(abs(lightness(one) - lightness(two)) for one, two in pairs) > 15


@pytest.mark.parametrize("colour", [*COLOURS.values(), OTHER, ACTIVE, IDLE, MONEY])
def test_text_on_a_colour_is_readable(colour: str) -> None:
    text = {"white": "#FFFFFF", "black": "#000000"}[text_on(colour)]
    assert contrast(text, colour) >= 4.5, "the level AA of WCAG 2"
