"""The price table: none shipped, each entry dated and sourced, cost from throughput."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.prediction import Prediction
from pipeline.transfer.rental_prices import cost_per_million, currency, load_prices

GOOD = "prices:\n  - {gpu: A100, per_hour: 1.5, date: 2026-01-15, source: my provider}\n"


def test_a_price_needs_date_and_source(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)
    assert load_prices(file) == {"A100-PCIE-40GB": 1.5}
    file.write_text("prices:\n  - {gpu: A100, per_hour: 1.5}\n")
    with pytest.raises(ConfigError, match="entry 1: date, source is missing"):
        load_prices(file)
    file.write_text(GOOD.replace("1.5", "-2"))
    with pytest.raises(ConfigError, match="not a positive number"):
        load_prices(file)
    with pytest.raises(ConfigError, match="the price table does not exist"):
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


ENTRY = "{gpu: A100, per_hour: 1.5, date: 2026-01-15, source: my provider}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("1.5", ".nan"), "not a positive number"),
        (GOOD.replace("1.5", ".inf"), "not a positive number"),
        (GOOD.replace("1.5", "true"), "not a positive number"),
        (GOOD.replace("1.5", "0"), "not a positive number"),
        (GOOD.replace("1.5", "1,50"), "unknown key 50"),
        (GOOD + f"  - {ENTRY.replace('A100', 'A100-PCIE-40GB')}\n", "entry 2: A100-PCIE-40GB has a price already"),
        (GOOD.replace("per_hour: 1.5", "per_hour: 1.5, per_hour: 2"), "'per_hour' is given twice"),
        (GOOD.replace("2026-01-15", "yesterday"), "'yesterday' is not a date"),
        (GOOD.replace("2026-01-15", "20260115"), "20260115 is not a date"),
        (GOOD.replace("2026-01-15", "2999-01-01"), "2999-01-01 is in the future"),
        ("curency: EUR\n" + GOOD, "did you mean 'currency'"),
        ("currency: [EUR]\n" + GOOD, "is not a name"),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused_by_its_entry(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.yaml") as refused:
        load_prices(file)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_table_names_its_currency(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\n" + GOOD)
    assert (currency(file), load_prices(file)) == ("EUR", {"A100-PCIE-40GB": 1.5})
    file.write_text(GOOD)
    assert currency(file) == "price table's currency"
