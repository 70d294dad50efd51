"""Draws of kernel times: what errs together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.evaluate import FAMILY_SHARE, draw_kernel_times


def correlations(*families: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Of the logarithms of drawn times of one call per family, each predicted differently."""
    calls = pd.DataFrame({"family": families})
    centre = 100.0 * np.arange(1, len(families) + 1)
    predicted = pd.DataFrame({"kernel_us": centre, "p10_us": centre / 1.6, "p90_us": centre * 1.6})
    drawn = draw_kernel_times(calls, predicted, 20_000, np.random.default_rng(0))
    return np.corrcoef(np.log(drawn), rowvar=False)


def test_the_directions_of_a_convolution_err_together_and_other_families_apart() -> None:
    found = correlations("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight", "gemm", "bmm")
    assert found[:3, :3][np.triu_indices(3, 1)] == pytest.approx([FAMILY_SHARE] * 3, abs=0.03)
    assert np.abs(found[3:, :3]).max() < 0.03 and abs(found[3, 4]) < 0.03


def test_calls_of_one_family_share_half_of_their_error() -> None:
    assert correlations("gemm", "gemm")[0, 1] == pytest.approx(FAMILY_SHARE, abs=0.03)
