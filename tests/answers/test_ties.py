"""No star inside a tie: where another point often wins in paired draws, the answer says so, and what decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline import compare, plan
from pipeline.answers.ties import nearest_tie, tied_gpus
from pipeline.prediction import Prediction
from pipeline.show.comparison import PER_PRICE, THROUGHPUT
from tests.predictions import predicted


def test_gpus_that_wait_for_one_host_tie() -> None:
    grid = compare("A100,RTX4090", "dlrm_ddp", batch_size=32)
    tie = grid.ties["dlrm_ddp", THROUGHPUT]
    assert len(tie.predictions) == 2 and tie.why == "the host limits them"
    assert 0.2 <= tie.share <= 1.0
    assert repr(grid).endswith(f"dlrm_ddp: a tie: {tie}>") and "another wins in" in str(tie)
    html = grid._repr_html_()
    assert "a tie in samples/s" in html
    assert "★" not in html.partition("samples/s")[2].partition("mem GiB")[0]


def test_a_sure_winner_keeps_its_star() -> None:
    grid = compare("P4,H100", "dcgan", batch_size=256)
    assert ("dcgan", THROUGHPUT) not in grid.ties and "★" in grid._repr_html_()


def test_options_that_change_nothing_tie_in_price_too() -> None:
    grid = compare("T4", "dcgan", batch_size=256, model__dtype="default,fp32")
    assert {what for _, what in grid.ties} == {THROUGHPUT, PER_PRICE}
    assert (
        grid.ties["dcgan", THROUGHPUT].why == "they take the same time"
        and "★" not in grid._repr_html_()
    )


def test_a_plan_names_a_tie_and_a_sure_winner() -> None:
    tied = plan("samples_per_s", gpu="A100,H100,RTX4090", model="dlrm_ddp", batch_size=32)
    assert tied.tie is not None and tied.summary.startswith("a tie in samples_per_s: dlrm_ddp on ")
    assert tied.as_dict()["tie"]["runner_up_wins"] == pytest.approx(tied.tie.share)
    same = plan(
        "samples_per_s", gpu="V100", model="dcgan", batch_size=256, model__dtype="default,fp32"
    )
    assert [choice.wins for choice in same.contenders] == [0.5, 0.5]  # equal points share them
    sure = plan("samples_per_s", gpu="P4,H100", model="dcgan", batch_size=256)
    assert sure.tie is None and sure.summary.startswith("best samples_per_s: dcgan on H100")


@pytest.mark.parametrize("apart, tied", [(0.118, True), (0.120, False)])
def test_a_rival_that_wins_a_fifth_of_the_draws_ties(apart: float, tied: bool) -> None:
    """Errors of 0.1 each (log time): the difference has 0.141, and is below 0 in a fifth of the draws at 0.8416 of that, 0.119."""
    ends = np.exp([0, -0.128155, 0.128155])
    best, other = (tuple(us * ends) for us in (100.0, 100.0 * np.exp(apart)))
    assert tied_gpus([other, best]) == [tied, True]


def step(us: float, draws_us: Any, **more: Any) -> Prediction:
    """A step of `us`, with an interval of 10 µs on both sides."""
    return predicted(us, p10_us=us - 10.0, p90_us=us + 10.0, draws_us=draws_us, **more)


@pytest.mark.parametrize("wins, share", [((1,), None), ((2,), 0.2), ((4, 2, 1), 0.4)])
def test_two_wins_in_ten_draws_are_a_tie(wins: tuple[int, ...], share: float | None) -> None:
    rivals = [np.where(np.arange(10) < won, 99.0, 101.0) for won in wins]
    steps = [step(100.0 + at, us) for at, us in enumerate([np.full(10, 100.0), *rivals])]
    tie = nearest_tie(steps, [1.0] * len(steps))
    assert (None if tie is None else tie.share) == share
    assert tie is None or len(tie.predictions) == 1 + sum(won >= 2 for won in wins)


def test_a_lower_bound_wins_over_no_whole_step() -> None:
    short = step(100.0, np.full(10, 100.0), unmodelled_us={"aten::linalg_inv_ex": 1.0})
    tie = nearest_tie([short, step(900.0, np.full(10, 900.0))], [1.0, 1.0])
    assert tie is not None and len(tie.predictions) == 2
    assert tie.why == "the first is a lower bound, without aten::linalg_inv_ex"
