"""Draws of kernel times: which errors are shared, how wide a sum is, and what a draw depends on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.drawn_step import DrawnStep
from pipeline.answers.step_errors import (
    CODE_SD,
    NORMAL_P90,
    STEP_SIGMA_RATIO,
    ErrorSources,
    StepErrors,
    host_factors,
    interval,
    keyed_normals,
)
from pipeline.question.question import expand
from tests.simulate.programs import HOST, program, row

SPREAD = 1.6
SIGMA = np.log(SPREAD) / NORMAL_P90
STEP_SIGMA = STEP_SIGMA_RATIO * SIGMA

Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def drawn_of(
    calls: pd.DataFrame, centre: np.ndarray, spread: float = SPREAD, draws: int = 20_000
) -> Table:
    """Draws of calls with given predictions."""
    errors = errors_of(calls, centre, spread)
    return errors.times(keyed_normals(errors.sources.names, draws, 0)).T


def errors_of(calls: pd.DataFrame, centre: np.ndarray, spread: float = SPREAD) -> StepErrors:
    predicted = pd.DataFrame(
        {"kernel_us": centre, "p10_us": centre / spread, "p90_us": centre * spread}
    )
    return StepErrors.of(ErrorSources.of(calls), predicted, {"transferred": 1.0})


def different(families: list[str]) -> pd.DataFrame:
    """A call per family, each of another size."""
    return pd.DataFrame({"family": families, "B": range(len(families))}).astype({"B": "Int64"})


def drawn(families: list[str], spread: float = SPREAD, draws: int = 20_000) -> Table:
    """Draws of a call per family, each of another size and another predicted time."""
    return drawn_of(different(families), 100.0 + np.arange(len(families)), spread, draws)


@pytest.mark.parametrize(
    ("families", "width"),
    [
        (["gemm"], 0.356),  # 0.9 of 0.367 ** 2 is shared by products, beside 0.073 ** 2 of the step
        (["bmm"], 0.356),
        (["conv2d_forward", "conv2d_backward_data"], 0.180),  # directions err together
        (["softmax"], 0.243),  # 0.2 and 0.4 of it
    ],
)
def test_sums_over_a_family_are_as_wide_as_on_gpus_that_were_held_out(
    families: list[str], width: float
) -> None:
    whole = families * (400 // len(families))
    total = np.log(drawn(whole, draws=2_000).sum(axis=1) / (100.0 + np.arange(400)).sum())
    assert np.std(total) == pytest.approx(width, rel=0.06)
    assert np.median(total) == pytest.approx(0.0, abs=0.02)


def test_another_session_moves_all_kernels_and_does_not_average_out() -> None:
    calls, centre = different(["gemm", "softmax"] * 200), np.full(400, 10.0)
    predicted = pd.DataFrame(
        {
            "kernel_us": centre,
            "p10_us": centre * np.exp(-0.5),
            "p90_us": centre * np.exp(0.1),
            "session_low": 0.5,
            "session_high": 0.1,
        }
    )
    errors = StepErrors.of(ErrorSources.of(calls), predicted, {"transferred": 1.0})
    low, middle, high = np.percentile(steps(errors, centre), [10, 50, 90])
    assert (low, high) == pytest.approx((4000 * np.exp(-0.5), 4000 * np.exp(0.1)), rel=2e-3)
    assert middle == pytest.approx(4000, rel=5e-3)


@pytest.mark.parametrize("spread", [1.02, 3.0])
def test_what_a_step_shares_is_a_fifth_of_the_width_of_its_kernels(spread: float) -> None:
    """Sums of whole models that were measured on another day err by that, beside the session's error."""
    total = np.log(
        drawn([f"family{i}" for i in range(400)], spread=spread, draws=2_000).sum(axis=1)
    )
    assert np.std(total) == pytest.approx(0.2 * np.log(spread) / NORMAL_P90, rel=0.12)


def test_a_prediction_without_width_is_drawn_as_it_is_and_calls_that_take_no_time_stay_so() -> None:
    calls = pd.DataFrame({"family": ["gemm", "other"]})
    assert drawn_of(calls, np.array([5.0, 0.0]), spread=1.0, draws=3).tolist() == [[5.0, 0.0]] * 3


def test_other_calls_and_their_order_do_not_change_what_a_call_draws() -> None:
    calls = different(["gemm", "softmax", "gemm", "conv2d_forward"])
    centre = np.array([100.0, 20.0, 30.0, 40.0])
    all_of_them = drawn_of(calls, centre, draws=100)
    order = [2, 0, 3]
    assert np.array_equal(
        drawn_of(calls.iloc[order], centre[order], draws=100), all_of_them[:, order]
    )


def test_calls_that_launch_the_same_share_their_error_and_those_of_other_sizes_do_not() -> None:
    calls = pd.DataFrame(
        {"family": "gemm", "op": "linear", "dtype": "fp32", "M": [64, 64, 128]}
    ).astype({"M": "Int64"})
    times = drawn_of(calls, np.array([100.0, 100.0, 100.0]), draws=100)
    assert np.array_equal(times[:, 0], times[:, 1]) and not np.allclose(times[:, 0], times[:, 2])


def test_the_last_digits_of_a_prediction_change_draws_in_their_last_digits_alone() -> None:
    calls, centre = (
        different(["gemm", "gemm", "softmax"]).assign(B=8),
        np.array([100.0, 100.0, 3.0]),
    )
    nudged = centre * (1 + np.array([1e-6, -1e-6, 1e-6]))
    assert drawn_of(calls, nudged, draws=100) == pytest.approx(
        drawn_of(calls, centre, draws=100), rel=1e-5
    )


def steps(errors: StepErrors, kernels: np.ndarray, host_us: float = 0.0, seed: int = 0) -> Table:
    """Drawn steps of kernels one after another, beside a host that takes `host_us`."""
    rows = [row(latency=0.0, kernel_gap=0.0) for _ in kernels]
    step = program(*rows, row(HOST, gap=host_us))
    which = np.arange(len(kernels))
    return DrawnStep(errors, step, which, pd.DataFrame(), "V100", 1024, seed).step_us()


def plain_ends(errors: StepErrors, host_us: float, draws: int, seed: int) -> np.ndarray:
    """p10 and p90 of plain draws of all errors."""
    normals = keyed_normals(errors.sources.names, draws, seed)
    host = host_us * np.exp(errors.host * keyed_normals(["host"], draws, seed)[0])
    return np.percentile(np.maximum(errors.times(normals).sum(axis=0), host), [10, 90])


@pytest.mark.parametrize(("host_share", "most"), [(0.0, 2e-3), (0.9, 6e-3)])
def test_intervals_agree_with_plain_draws_and_hardly_depend_on_the_seed(
    host_share: float, most: float
) -> None:
    """Also where the host takes nearly as long as the device, so that either may end last."""
    centre = np.random.default_rng(0).lognormal(3.0, 1.0, 40)
    errors = errors_of(different([f"family{i % 4}" for i in range(40)]), centre, 1.4)
    whole = centre.sum()
    host_us, seeds = host_share * whole, range(12)
    ours = [interval(steps(errors, centre, host_us, seed), whole) for seed in seeds]
    plain = [plain_ends(errors, host_us, 1024, seed) for seed in seeds]
    wanted = plain_ends(errors, host_us, 60_000, 7)
    assert np.mean(ours, axis=0) == pytest.approx(wanted, rel=max(most, 3e-3))
    found, plainly = (np.std(each, axis=0, ddof=1) / whole for each in (ours, plain))
    assert (found < most).all() and (found < plainly).all()
    assert host_share == 0.9 or (found < plainly / 2).all()
    assert interval(steps(errors, centre), 1e6)[1] == 1e6, "the prediction is within its interval"


def test_draws_of_one_gpu_are_pairs_and_those_of_two_are_independent() -> None:
    errors = errors_of(different(["gemm"]), np.array([100.0]))
    step, calls = program(row(latency=0.0, kernel_gap=0.0)), pd.DataFrame()
    here, again, there = (
        DrawnStep(errors, step, np.array([0]), calls, gpu, 1024).step_us()
        for gpu in ("V100", "V100", "T4")
    )
    assert np.array_equal(here, again) and np.array_equal(np.sort(here), np.sort(there))
    assert abs(np.corrcoef(here, there)[0, 1]) < 0.1


def test_the_hosts_error_of_two_steps_cancels_as_far_as_they_have_the_same_operators() -> None:
    """Host errors of 0.5: 0.15 of it belongs to operators. Steps of 30 + 40 µs in two operators, and of 30 µs in the first alone:
    the second step has 30 / 50 of the first one's own error in common.
    """
    steps = program(row(HOST, gap=30.0), row(HOST, gap=40.0)), program(row(HOST, gap=30.0))
    first, second = (np.log(host_factors(0.5, step, 20_000, 0)) for step in steps)
    assert first.std() == pytest.approx(0.5, rel=0.02) and second.std() == pytest.approx(
        0.5, rel=0.02
    )
    assert (first - second).std() == pytest.approx(0.15 * np.sqrt(2 - 2 * 0.6), rel=0.02)
    longer = program(row(HOST, gap=300.0), row(HOST, gap=400.0))
    np.testing.assert_allclose(first, np.log(host_factors(0.5, longer, 20_000, 0)))


def test_no_error_goes_below_the_least_time_and_the_far_end_stays_as_far() -> None:
    """fp64 at the datasheet's peak takes 90 us, so p10 is there; p90 is 200 us, not closer because p10 is."""
    ends = {"kernel_us": [100.0], "p10_us": [90.0], "p90_us": [200.0], "least_us": [90.0]}
    sources = ErrorSources.of(different(["gemm"]))
    drawn = steps(StepErrors.of(sources, pd.DataFrame(ends), {}), np.array([100.0]))
    assert drawn.min() == 90.0 and np.percentile(drawn, 90) == pytest.approx(200.0, rel=0.03)


@pytest.mark.parametrize(
    ("asked", "shared"),
    [("model=dcgan parallel=fsdp", True), ("model=dcgan", False)],
)
def test_what_nobody_says_of_a_framework_does_not_average_out_over_kernels(
    asked: str, shared: bool
) -> None:
    """Sharded weights and split models: an error to the slow side that all kernels and exchanges of all ranks share."""
    (question,) = expand(["gpu=A100", "devices=8", *asked.split()])
    calls, centre = different(["collective"] + 50 * ["elementwise"]), np.full(51, 100.0)
    certain = pd.DataFrame(dict.fromkeys(("kernel_us", "p10_us", "p90_us"), centre))
    errors = StepErrors.of(ErrorSources.of(calls), certain, {}, question)
    total = errors.times(errors.normals(np.ones(51), 20_000, 0)).sum(axis=0)
    ends = np.log(np.percentile(total, [10, 90]) / 5100.0)
    assert ends == pytest.approx([0.0, CODE_SD * NORMAL_P90 * shared], rel=0.02, abs=1e-9)
