"""The error of another session: how it is fitted, whom it concerns, and that shipped intervals hold in both sessions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.checks.session_fit import fit_session, share_inside, step_ratio, whole_models
from evaluation.pages.step_tables import holds
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.step_errors import STEP_SIGMA_RATIO
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.estimate import FILE, NOTED_RATIO, Estimate, Session, clock_notes, session_of
from pipeline.model_files import list_packs, pack_models
from pipeline.paths import packs_dir
from tests.kernels.shipped import shipped


def rows(level: float, sigma: float = 0.1, own: float = 0.128) -> pd.DataFrame:
    """Log errors of a session around a level, and the model's own distance of p10 and p90."""
    errors = np.random.default_rng(0).normal(level, sigma, 20_000)
    return pd.DataFrame({"log_error": errors, "low": own, "high": own})


def test_a_tenth_of_both_sessions_together_lies_beyond_each_end() -> None:
    first, second = rows(0.0), rows(-0.3)
    session = fit_session(first, second)
    assert session.low > 0.3 and session.high == pytest.approx(0.0, abs=1e-3)
    beyond = np.mean(
        [
            np.mean(part["log_error"] < -np.hypot(part["low"], session.low))
            for part in (first, second)
        ]
    )
    assert beyond == pytest.approx(0.1, abs=0.002)


def test_a_session_like_the_first_adds_nothing() -> None:
    session = fit_session(rows(0.0), rows(0.0))
    assert max(vars(session).values()) < 0.01 and share_inside(rows(0.0), session) == pytest.approx(
        0.8, abs=0.01
    )


def test_sums_show_what_a_step_shares_beyond_its_session() -> None:
    """0.05 of which the session explains 0.03 leaves 0.04, a fifth of 0.2; an error within the session leaves nothing."""
    sums = pd.DataFrame({"error": [-0.05, 0.02], "session": [0.03, 0.03], "sigma": [0.2, 0.2]})
    assert step_ratio(sums[:1]) == pytest.approx(0.2) and step_ratio(sums) == pytest.approx(
        0.2 / np.sqrt(2)
    )


def test_what_steps_share_is_what_whole_models_of_the_public_data_show(datasets: Path) -> None:
    assert step_ratio(whole_models(datasets)) == pytest.approx(STEP_SIGMA_RATIO, abs=0.02)


def test_the_interval_grows_in_quadrature_on_its_side_alone() -> None:
    one = np.array([100.0])
    own = Estimate(
        one,
        one,
        one * np.exp(-0.3),
        one * np.exp(0.3),
        one > 0,
        one * np.exp(-0.3),
        one * np.exp(0.3),
    )
    wide = own.in_any_session(0.4, 0.0)
    assert np.log(wide.p10 / wide.kernel) == pytest.approx([-0.5]) and wide.p90 == pytest.approx(
        own.p90
    )
    assert np.log(wide.latency_p10 / wide.latency) == pytest.approx([-0.5]) and wide.kernel == one


def test_a_card_has_its_own_error_and_others_that_of_their_kind() -> None:
    own, other, low_power = (session_of(load_gpu(name), "gemm") for name in ("V100", "A100", "T4"))
    assert own.high == 0 and own.low > 0.05  # its second session was 6 % faster
    assert other.low == other.high == own.low  # the sign of another card's next session is unknown
    assert low_power.low > 0.3 > low_power.high
    assert session_of(load_gpu("L4"), "gemm") == Session(low_power.low, low_power.low)
    assert session_of(load_gpu("P4"), "gemm").low > 1.0  # three times as fast as throttled
    assert session_of(load_gpu("P4"), "conv2d_forward") == session_of(load_gpu("P4"), "gemm")
    assert (
        session_of(load_gpu("A100"), "memset")
        == session_of(load_gpu("A100"), "elementwise")
        != Session(0, 0)
    )


@pytest.mark.parametrize(
    "gpu, low, high", [("V100", 0.0639, 0.0), ("P4", 1.167, 0.0), ("A100", 0.0639, 0.0639)]
)
def test_the_interval_of_a_predicted_kernel_contains_the_error_of_a_session(
    gpu: str, low: float, high: float
) -> None:
    calls = pd.DataFrame(
        [
            {
                "family": "gemm",
                "op": "linear",
                "dtype": "fp32",
                "B": 1,
                "M": 1024,
                "N": 1024,
                "K": 1024,
            }
        ]
    )
    predictor = shipped(gpu)
    alone, found = (
        replace(predictor, any_session=any_session).predict(calls).iloc[0]
        for any_session in (False, True)
    )
    assert found["kernel_us"] == alone["kernel_us"]
    for end, session in (("p10_us", low), ("p90_us", high)):
        own, whole = (np.log(row[end] / row["kernel_us"]) for row in (alone, found))
        assert abs(whole) == pytest.approx(np.hypot(own, session), rel=1e-3)
    assert (found["session_low"], found["session_high"]) == pytest.approx((low, high), abs=1e-4)


def test_answers_of_cards_that_throttle_say_which_clock_they_mean() -> None:
    (cool,), (whole,), (like,) = (clock_notes(load_gpu(name)) for name in ("P4", "T4", "L4"))
    assert (
        "cool, its products ran up to 3.2 times" in cool
        and "in whole models, its products ran up to 1.6" in whole
    )
    assert "(not measured)" in like and "of a T4" in like and "differed by up to 1.6" in like
    assert clock_notes(load_gpu("V100")) == () and NOTED_RATIO > 1


def test_short_products_have_no_credit_in_a_step_of_a_small_card_without_samples() -> None:
    product = {
        "family": "gemm",
        "op": "linear",
        "dtype": "fp32",
        "B": 1,
        "M": 512,
        "N": 1024,
        "K": 1024,
    }
    calls = pd.DataFrame([product])

    def us(gpu: str, in_step: bool) -> float:
        predictor = (
            kernel_predictor(load_gpu(gpu), "auto")
            if in_step
            else load_predictor(load_gpu(gpu), [pack_models(gpu)] if gpu in list_packs() else [])
        )
        return float(predictor.predict(calls)["kernel_us"].iloc[0])

    assert us("L4", in_step=True) > 1.1 * us("L4", in_step=False)
    for gpu in ("T4", "V100", "RTX3090"):
        assert us(gpu, in_step=True) == us(gpu, in_step=False)


def test_shipped_intervals_hold_with_both_sessions_weighted_equally() -> None:
    cards = json.loads((packs_dir() / FILE).read_text())["gpus"]
    twice = [
        entry for families in cards.values() for entry in families.values() if "inside" in entry
    ]
    assert len(twice) == 10
    for entry in twice:
        few = min(entry["rows"])
        assert holds(round(np.mean(entry["inside"]) * few), few), entry
