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
from pipeline.kernels.estimate import FILE, Session, clock_notes, session_of
from pipeline.model_files import list_packs, pack_models
from pipeline.paths import packs_dir
from tests.kernels.shipped import shipped

PRODUCT = {"family": "gemm", "op": "linear", "dtype": "fp32", "B": 1, "N": 1024, "K": 1024}


def rows(level: float, sigma: float = 0.1, own: float = 0.128) -> pd.DataFrame:
    """Log errors of a session around a level, and the model's own distance of p10 and p90."""
    errors = np.random.default_rng(0).normal(level, sigma, 20_000)
    return pd.DataFrame({"log_error": errors, "low": own, "high": own})


def test_a_tenth_of_both_sessions_together_lies_beyond_each_end() -> None:
    both = rows(0.0), rows(-0.3)
    session = fit_session(*both)
    assert session.low > 0.3 and session.high == pytest.approx(0.0, abs=1e-3)
    beyond = [(part["log_error"] < -np.hypot(part["low"], session.low)).mean() for part in both]
    assert np.mean(beyond) == pytest.approx(0.1, abs=0.002)
    same = fit_session(rows(0.0), rows(0.0))
    assert max(vars(same).values()) < 0.01, "a session like the first adds nothing"
    assert share_inside(rows(0.0), same) == pytest.approx(0.8, abs=0.01)


def test_sums_show_what_a_step_shares_beyond_its_session() -> None:
    """0.05 of which the session explains 0.03 leaves 0.04, a fifth of 0.2; an error within the session leaves nothing."""
    sums = pd.DataFrame({"error": [-0.05, 0.02], "session": 0.03, "sigma": 0.2})
    assert step_ratio(sums[:1]) == pytest.approx(0.2)
    assert step_ratio(sums) == pytest.approx(0.2 / np.sqrt(2))


def test_what_steps_share_is_what_whole_models_of_the_public_data_show(datasets: Path) -> None:
    assert step_ratio(whole_models(datasets)) == pytest.approx(STEP_SIGMA_RATIO, abs=0.02)


def test_a_card_has_its_own_error_and_others_that_of_their_kind() -> None:
    own, other, low_power, like, hot = (
        session_of(load_gpu(name), "gemm") for name in ("V100", "A100", "T4", "L4", "P4")
    )
    assert own.high == 0 and own.low > 0.05  # its second session was 6 % faster
    assert other.low == other.high == own.low  # the sign of another card's next session is unknown
    assert low_power.low > 0.3 > low_power.high and like == Session(low_power.low, low_power.low)
    assert hot.low > 1.0  # three times as fast as throttled
    assert session_of(load_gpu("P4"), "conv2d_forward") == hot
    unknown, known = (session_of(load_gpu("A100"), name) for name in ("memset", "elementwise"))
    assert unknown == known != Session(0, 0)


@pytest.mark.parametrize("gpu, low, high", [("P4", 1.167, 0.0), ("A100", 0.0639, 0.0639)])
def test_the_interval_of_a_predicted_kernel_contains_the_error_of_a_session(
    gpu: str, low: float, high: float
) -> None:
    calls = pd.DataFrame([{**PRODUCT, "M": 1024}])
    alone, found = (
        replace(shipped(gpu), any_session=any_session).predict(calls).iloc[0]
        for any_session in (False, True)
    )
    assert found["kernel_us"] == alone["kernel_us"]
    for end, session in (("p10_us", low), ("p90_us", high)):
        own, whole = (np.log(row[end] / row["kernel_us"]) for row in (alone, found))
        assert abs(whole) == pytest.approx(np.hypot(own, session), rel=1e-3)
    assert (found["session_low"], found["session_high"]) == pytest.approx((low, high), abs=1e-4)


def test_answers_of_cards_that_throttle_say_which_clock_they_mean() -> None:
    (cool,), (like,) = (clock_notes(load_gpu(name)) for name in ("P4", "L4"))
    assert "cool, its products ran up to 3.2 times" in cool
    assert "(not measured)" in like and "of a T4" in like and "differed by up to 1.6" in like
    assert clock_notes(load_gpu("V100")) == ()


def test_short_products_have_no_credit_in_a_step_of_a_small_card_without_samples() -> None:
    calls = pd.DataFrame([{**PRODUCT, "M": 512}])

    def credit(gpu: str) -> float:
        folders = [pack_models(gpu)] if gpu in list_packs() else []
        alone = load_predictor(load_gpu(gpu), folders)
        in_step = kernel_predictor(load_gpu(gpu), "auto")
        times = [each.predict(calls)["kernel_us"].item() for each in (in_step, alone)]
        return times[0] / times[1]

    assert credit("L4") > 1.1 and credit("T4") == credit("RTX3090") == 1.0


def test_shipped_intervals_hold_with_both_sessions_weighted_equally() -> None:
    cards = json.loads((packs_dir() / FILE).read_text())["gpus"].values()
    entries = [entry for families in cards for entry in families.values() if "inside" in entry]
    assert len(entries) == 10
    for entry in entries:
        few = min(entry["rows"])
        assert holds(round(np.mean(entry["inside"]) * few), few), entry
