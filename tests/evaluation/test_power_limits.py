"""Epochs under power limits: which runs count, and what their errors are."""

from __future__ import annotations

import pandas as pd
import pytest

from evaluation.pages.power_limits import errors, least_joules
from evaluation.published.published_limits import RUN, left_out, read_limits
from pipeline.errors import TableError


@pytest.mark.parametrize(
    "network, epochs, watts, reasons",
    [
        ("ncf", (10.0, 5.0), (40.0, 40.0), ["host", "host"]),
        # twice the batch takes as long, then twice as long
        ("shufflenetv2", (10.0, 5.0, 5.0), (60.0, 90.0, 200.0), ["host", "host", ""]),
        # beyond the fastest, longer at less power
        ("resnet50", (10.0, 8.0, 9.0), (200.0, 220.0, 150.0), ["", "", "loader"]),
        ("resnet50", (10.0, 8.0, 9.0), (200.0, 220.0, 230.0), ["", "", ""]),
    ],
    ids=["ncf", "small steps", "loader", "slower at full power"],
)
def test_runs_that_wait_for_others_are_left_out(
    network: str, epochs: tuple[float, ...], watts: tuple[float, ...], reasons: list[str]
) -> None:
    own = {"batch_size": [8, 16, 32][: len(epochs)], "epoch_s": epochs, "watts": watts}
    runs = pd.DataFrame(own).assign(gpu="V100", network=network, dataset="d", optimizer="adam")
    assert left_out(runs)["reason"].tolist() == reasons


def test_errors_are_those_below_the_highest_limit() -> None:
    columns = ["power_limit_w", "slow", "watts", "p_slow", "p_watts", "is_top"]
    limits = [(125.0, 1.6, 120.0, 1.2, 126.0, False), (250.0, 1.0, 200.0, 1.0, 180.0, True)]
    run = dict(zip(RUN, ("V100", "m", "d", 8, "adam"), strict=True))
    rows = pd.DataFrame(limits, columns=columns).assign(**run)
    (row,) = errors(rows).to_dict("records")
    assert row["slow_down"] == pytest.approx(-0.25) and row["mean_w"] == pytest.approx(0.05)
    assert row["joules"] == pytest.approx(0.75 * 1.05 - 1)
    assert row["square_root"] == pytest.approx(2**0.5 / 1.6 - 1)
    # 192 and 200 J measured; 151 and 180 predicted: the lower limit is chosen, which is the best
    assert least_joules(rows) == ["1 runs", "0.0", "4.2"]


def test_a_missing_table_is_named(tmp_path) -> None:
    with pytest.raises(TableError, match=r"zeus_limits.parquet: no such file"):
        read_limits(tmp_path)
