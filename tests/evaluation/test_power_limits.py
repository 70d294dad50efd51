"""Epochs under power limits: which runs count, and what their errors are."""

from __future__ import annotations

import pandas as pd
import pytest

from evaluation.pages.power_limits import errors, least_joules
from evaluation.published.published_limits import RUN, left_out, read_limits
from pipeline.errors import TableError


def runs(network: str, sizes: tuple[int, ...], epochs: tuple[float, ...], watts: tuple[float, ...]):
    of_run = {"gpu": "V100", "network": network, "dataset": "d", "optimizer": "adam"}
    own = {"batch_size": sizes, "epoch_s": epochs, "watts": watts}
    return pd.DataFrame(own).assign(**of_run)


@pytest.mark.parametrize(
    "top, reasons",
    [
        (runs("ncf", (8, 16), (10.0, 5.0), (40.0, 40.0)), ["host", "host"]),
        # twice the batch takes as long, then twice as long
        (
            runs("shufflenetv2", (8, 16, 32), (10.0, 5.0, 5.0), (60.0, 90.0, 200.0)),
            ["host"] * 2 + [""],
        ),
        # beyond the fastest, longer at less power
        (
            runs("resnet50", (8, 16, 32), (10.0, 8.0, 9.0), (200.0, 220.0, 150.0)),
            ["", "", "loader"],
        ),
        (runs("resnet50", (8, 16, 32), (10.0, 8.0, 9.0), (200.0, 220.0, 230.0)), ["", "", ""]),
    ],
    ids=["ncf", "small steps", "loader", "slower at full power"],
)
def test_runs_that_wait_for_others_are_left_out(top: pd.DataFrame, reasons: list[str]) -> None:
    assert left_out(top)["reason"].tolist() == reasons


def test_errors_are_those_below_the_highest_limit() -> None:
    key = dict(zip(RUN, ("V100", "m", "d", 8, "adam"), strict=True))
    rows = pd.DataFrame(
        {
            "power_limit_w": [125.0, 250.0],
            "slow": [1.6, 1.0],
            "watts": [120.0, 200.0],
            "p_slow": [1.2, 1.0],
            "p_watts": [126.0, 180.0],
            "is_top": [False, True],
        }
    ).assign(**key)
    (row,) = errors(rows).to_dict("records")
    assert row["slow_down"] == pytest.approx(-0.25) and row["mean_w"] == pytest.approx(0.05)
    assert row["joules"] == pytest.approx(0.75 * 1.05 - 1)
    assert row["square_root"] == pytest.approx(2**0.5 / 1.6 - 1)
    # 192 and 200 J measured; 151 and 180 predicted: the lower limit is chosen, which is the best
    assert least_joules(rows) == ["1 runs", "0.0", "4.2"]


def test_a_missing_table_is_named(tmp_path) -> None:
    with pytest.raises(TableError, match=r"zeus_limits.parquet: no such file"):
        read_limits(tmp_path)
