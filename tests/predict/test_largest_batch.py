"""The largest batch that `steptime compare` names fits the GPU."""

from __future__ import annotations

import pytest

from pipeline import api
from pipeline.config import point


def test_the_largest_batch_fits_and_the_next_one_does_not() -> None:
    largest = api.largest_batch(point(["gpu=P4", "model=dlrm_small"]))
    assert largest is not None
    sizes = (largest, largest + 10 ** (len(str(largest)) - 2))
    found = [api.predict_point(point(["gpu=P4", "model=dlrm_small", f"batch_size={size}"])).fits for size in sizes]
    assert found == [True, False]


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (7, 7), (42, 42), (199, 190), (1996, 1900), (123456, 120000)])
def test_batches_are_rounded_down_to_two_digits(count: int, kept: int) -> None:
    assert api._two_digits(count) == kept
