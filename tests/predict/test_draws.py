"""Draws of kernel times: what errs together, and how much a sum does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.predict_step import (
    FAMILY_SHARE,
    NORMAL_P90,
    OTHER_SHARE,
    STEP_GROWTH,
    STEP_MOST,
    draw_kernel_times,
)

SPREAD = 1.6
SIGMA = np.log(SPREAD) / NORMAL_P90
ALL = STEP_MOST**2 / (SIGMA**2 + STEP_MOST**2)
"""Correlation of kernels that have nothing in common but their step."""


def drawn(
    families: list[str], spread: float = SPREAD, draws: int = 20_000
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Draws of a call per family, each predicted differently."""
    centre = 100.0 + np.arange(len(families))
    predicted = pd.DataFrame({"kernel_us": centre, "p10_us": centre / spread, "p90_us": centre * spread})
    return draw_kernel_times(pd.DataFrame({"family": families}), predicted, draws, np.random.default_rng(0))


def correlations(*families: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Of the logarithms of drawn times."""
    return np.corrcoef(np.log(drawn(list(families))), rowvar=False)


def within(share: float) -> float:
    """Correlation of two calls of one family that shares this much of its variance."""
    return (share * SIGMA**2 + STEP_MOST**2) / (SIGMA**2 + STEP_MOST**2)


def test_the_directions_of_a_convolution_err_together_and_families_apart_but_for_what_the_step_shares() -> None:
    found = correlations("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight", "gemm", "softmax")
    assert found[:3, :3][np.triu_indices(3, 1)] == pytest.approx([within(FAMILY_SHARE["conv2d"])] * 3, abs=0.03)
    assert found[3:, :3].ravel() == pytest.approx([ALL] * 6, abs=0.03) and found[3, 4] == pytest.approx(ALL, abs=0.03)


def test_products_share_most_of_their_error_and_families_that_nobody_judged_the_usual_part() -> None:
    assert correlations("gemm", "gemm")[0, 1] == pytest.approx(within(FAMILY_SHARE["gemm"]), abs=0.03)
    assert correlations("reduction", "reduction")[0, 1] == pytest.approx(within(OTHER_SHARE), abs=0.03)


def test_a_step_of_many_kernels_is_no_surer_than_what_they_share_and_lies_around_its_prediction() -> None:
    total = np.log(drawn(["conv2d_forward"] * 400, draws=2_000).sum(axis=1) / (100.0 + np.arange(400)).sum())
    assert np.std(total) == pytest.approx(np.sqrt(FAMILY_SHARE["conv2d"] * SIGMA**2 + STEP_MOST**2), rel=0.06)
    assert np.median(total) == pytest.approx(0.0, abs=0.02)


def test_what_a_step_shares_is_in_proportion_to_kernels_that_are_well_known() -> None:
    total = np.log(drawn(["softmax"] * 400, spread=1.02, draws=2_000).sum(axis=1))
    sigma = np.log(1.02) / NORMAL_P90
    assert np.std(total) == pytest.approx(sigma * np.sqrt(STEP_GROWTH**2 + OTHER_SHARE), rel=0.06)
    assert STEP_GROWTH * sigma < STEP_MOST / 2


def test_a_prediction_without_width_is_drawn_as_it_is_and_calls_that_take_no_time_stay_so() -> None:
    predicted = pd.DataFrame({"kernel_us": [5.0, 0.0], "p10_us": [5.0, 0.0], "p90_us": [5.0, 0.0]})
    calls = pd.DataFrame({"family": ["gemm", "other"]})
    assert draw_kernel_times(calls, predicted, 3, np.random.default_rng(0)).tolist() == [[5.0, 0.0]] * 3
