"""What samples covered: sizes outside are moved inside, and a tensor of memory's size stays one."""

import numpy as np
import pandas as pd
import pytest

from pipeline.kernels.features import Scope

RANGES = {"B": (1.0, 1000.0), "H": (1.0, 500.0)}
CACHE = 200_000
"""Bytes: 25,000 elements of fp32 read, and as many written."""


def scope(name: str = "elementwise") -> Scope:
    return Scope(("add",), ("fp32",), ("forward",), RANGES, name=name)


def clamped(batch: float, width: float, name: str = "elementwise") -> tuple[float, float, float]:
    calls = pd.DataFrame({"family": name, "op": "add", "B": [batch], "H": [width]})
    moved, octaves = scope(name).clamp(calls, CACHE)
    return float(moved["B"].iloc[0]), float(moved["H"].iloc[0]), float(octaves[0])


@pytest.mark.parametrize(("batch", "width"), [(40_000, 10), (8, 40_000), (16_384, 14)])
def test_a_tall_or_wide_tensor_keeps_its_elements(batch: float, width: float) -> None:
    b, h, octaves = clamped(batch, width)
    assert b * h == pytest.approx(batch * width)
    assert 1 <= b <= 1000 and 1 <= h <= 500 and octaves == 0


def test_of_more_elements_than_any_sample_the_largest_sample_is_the_nearest() -> None:
    b, h, octaves = clamped(4_000_000, 10)
    assert (b, h) == (1000, 500) and octaves == pytest.approx(np.log2(80))


def test_what_is_no_cached_tensor_inside_the_range_is_cut_as_before() -> None:
    assert clamped(4000, 100)[:2] == (1000, 100)
    assert clamped(400, 300) == (400, 300, 0)


def test_rows_of_other_families_are_no_elements_in_a_row() -> None:
    assert clamped(40_000, 10, "softmax")[:2] == (1000, 10)
