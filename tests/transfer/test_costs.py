"""The price table: none shipped, each entry dated and sourced, cost from throughput."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.prediction import Prediction
from pipeline.transfer.costs import cost_per_million, load_prices

GOOD = "prices:\n  - {gpu: A100, per_hour: 1.5, date: 2026-01-15, source: my provider}\n"


def test_a_price_needs_date_and_source(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)
    assert load_prices(file) == {"A100-PCIE-40GB": 1.5}
    file.write_text("prices:\n  - {gpu: A100, per_hour: 1.5}\n")
    with pytest.raises(ConfigError, match="entry 1 misses date, source"):
        load_prices(file)
    file.write_text(GOOD.replace("1.5", "-2"))
    with pytest.raises(ConfigError, match="not a positive number"):
        load_prices(file)
    with pytest.raises(ConfigError, match="no such price table"):
        load_prices(tmp_path / "absent.yaml")


def test_cost_is_price_over_throughput() -> None:
    step = Prediction("T4", "m", "v", 100, 1e6, 1e6, 0.0, 1e6, 1e6, 0, True, {}, {}, 0.0)  # 100 samples a second
    assert cost_per_million(step, {"T4": 3.6}) == pytest.approx(10.0)
    assert cost_per_million(step, {}) is None


def test_a_gpu_that_does_not_exist_is_named_with_its_entry(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD.replace("A100", "A1000"))
    with pytest.raises(ConfigError, match=r"prices.yaml: entry 1: unknown GPU 'A1000'"):
        load_prices(file)
