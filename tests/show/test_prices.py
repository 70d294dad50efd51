"""The price list: every entry dated and sourced, one provider per comparison where possible, cost from throughput."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pipeline.errors import ConfigError, InputError
from pipeline.paths import config_dir
from pipeline.prediction_parts import SeveralGpus
from pipeline.prices import (
    COLUMNS,
    Order,
    in_order,
    offers_in,
    price_file,
    price_notes,
    prices_of,
    with_prices,
)
from tests.predictions import predicted

GOOD = (
    "currency: EUR\nprices:\n  - {gpu: A100, per_hour: 1.5, date: 2026-01-15, source: my"
    " provider}\n"
)


def listed(folder: Path, *entries: str) -> Path:
    """A price list of these entries, each with its date and source."""
    lines = [f"  - {{{entry}, date: 2026-01-15, source: offer}}" for entry in entries]
    file = folder / "prices.yaml"
    file.write_text("\n".join(["currency: EUR", "prices:", *lines]) + "\n")
    return file


def test_a_price_has_its_date_and_the_name_of_its_gpu(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)
    prices = prices_of(["A100"], file)
    assert tuple(prices.columns) == COLUMNS and prices["gpu"].tolist() == ["A100-PCIE-40GB"]
    assert prices[["price_per_hour", "currency", "date"]].values.tolist() == [
        [1.5, "EUR", "2026-01-15"]
    ]
    with pytest.raises(ConfigError, match="no such price list"):
        offers_in(tmp_path / "absent.yaml")


def test_samples_per_money_are_throughput_over_price(tmp_path: Path) -> None:
    file = listed(tmp_path, "gpu: T4, per_hour: 3.6")
    table = with_prices(
        pd.DataFrame({"gpu": ["T4", "V100"], "samples_per_s": [100.0, 100.0]}), file
    )
    assert table["cost_per_million"].iloc[0] == pytest.approx(10.0)
    assert table["samples_per_dollar"].iloc[0] == pytest.approx(1e5)
    assert (
        table.iloc[1][["price_per_hour", "currency", "samples_per_dollar", "cost_per_million"]]
        .isna()
        .all()
    )


def test_every_shipped_price_says_where_it_is_from() -> None:
    offers = offers_in(config_dir() / "prices.yaml")
    assert {"V100", "P100", "P4", "T4", "L4", "A100-SXM4-40GB", "H100"} <= set(offers["gpu"])
    assert offers["source"].str.contains("https://").all() and set(offers["currency"]) == {"USD"}
    assert (offers[["provider", "region"]] != "").all(axis=None)


def test_the_users_own_list_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPTIME_PRICES", raising=False)
    assert price_file() == config_dir() / "prices.yaml"
    listed(tmp_path, "gpu: T4, per_hour: 9")
    assert prices_of(["T4", "V100"])[["gpu", "price_per_hour"]].values.tolist() == [["T4", 9.0]]
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("STEPTIME_PRICES", str(listed(other, "gpu: T4, per_hour: 7")))
    assert prices_of(["T4"])["price_per_hour"].tolist() == [7.0]
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert prices_of(["T4"]).empty and tuple(prices_of(["T4"]).columns) == COLUMNS
    monkeypatch.setenv("STEPTIME_PRICES", "absent.yaml")
    with pytest.raises(ConfigError, match=r"absent.yaml: no such price list"):
        prices_of(["T4"])


def test_a_comparison_takes_one_offer_where_one_covers_all(tmp_path: Path) -> None:
    """A has T4 and P4, B has T4 and V100: the wanted GPUs decide."""
    file = listed(
        tmp_path,
        "gpu: T4, per_hour: 1, provider: A",
        "gpu: P4, per_hour: 2, provider: A",
        "gpu: T4, per_hour: 3, provider: B",
        "gpu: V100, per_hour: 4, provider: B",
    )

    def chosen(*gpus: str) -> dict[str, str]:
        prices = prices_of(gpus, file)
        return dict(zip(prices["gpu"], prices["provider"], strict=True))

    assert chosen("T4", "P4") == {"T4": "A", "P4": "A"}
    assert chosen("V100", "T4") == {"V100": "B", "T4": "B"}
    assert chosen("P4", "V100") == {"P4": "A", "V100": "B"}
    notes = price_notes(prices_of(["P4", "V100", "T4"], file), ["P4", "V100", "T4", "L4"])
    assert (
        len(notes) == 3
        and "no single offer covers all" in notes[1]
        and notes[2].startswith("no price of L4")
    )


@pytest.mark.parametrize("providers", ["AB", "BA"])
def test_of_two_offers_the_more_recent_is_taken_whatever_their_order(
    tmp_path: Path, providers: str
) -> None:
    days = {"A": "2025-12-15", "B": "2026-01-15"}
    entries = [
        f"  - {{gpu: T4, per_hour: 1, provider: {name}, date: {days[name]}, source: offer}}"
        for name in providers
    ]
    file = tmp_path / "prices.yaml"
    file.write_text("\n".join(["currency: EUR", "prices:", *entries]))
    assert prices_of(["T4"], file)[["provider", "date"]].values.tolist() == [["B", "2026-01-15"]]


def test_an_offer_stands_for_a_similar_board_only_if_the_list_says_so(tmp_path: Path) -> None:
    entry = "gpu: V100-SXM2-16GB, per_hour: 3"
    assert prices_of(["V100"], listed(tmp_path, entry)).empty
    file = listed(tmp_path, f"{entry}, stands_for: [V100]")
    prices = prices_of(["V100"], file)
    assert prices[["gpu", "priced_as"]].values.tolist() == [["V100", "V100-SXM2-16GB"]]
    assert "V100 3 (price of V100-SXM2-16GB)" in price_notes(prices, ["V100"])[0]
    own = listed(tmp_path, f"{entry}, stands_for: [V100]", "gpu: V100, per_hour: 5")
    assert prices_of(["V100"], own)["price_per_hour"].tolist() == [5.0]


def test_the_order_by_cost_pays_for_each_gpu_of_a_step(tmp_path: Path) -> None:
    """Four GPUs with three times the throughput of one cost a third more for each sample; a GPU without a price is last."""
    four = SeveralGpus(4, 1, "dgx", 0.0, 0.0, dp=4)
    one, several, unpriced = (
        predicted(us, gpu=gpu, p10_us=us, p90_us=us, several=ranks)
        for gpu, us, ranks in (("T4", 100.0, None), ("T4", 400.0 / 3.0, four), ("V100", 10.0, None))
    )
    prices = prices_of(["T4", "V100"], listed(tmp_path, "gpu: T4, per_hour: 1"))
    assert in_order([unpriced, several, one], prices, Order.cost) == [one, several, unpriced]
    assert in_order([one, several, unpriced], prices, Order.throughput) == [unpriced, several, one]


def test_prices_of_one_comparison_have_one_currency(tmp_path: Path) -> None:
    file = listed(tmp_path, "gpu: T4, per_hour: 1, currency: USD", "gpu: V100, per_hour: 1")
    assert prices_of(["T4"], file)["currency"].tolist() == ["USD"]
    with pytest.raises(
        InputError, match="T4 in USD and V100 in EUR: prices of one comparison need one currency"
    ):
        prices_of(["T4", "V100"], file)


ENTRY = "{gpu: A100, per_hour: 1.5, date: 2026-01-15, source: my provider}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("1.5", ".nan"), "Expected `float` > 0"),
        (GOOD.replace("1.5", ".inf"), "Expected `float` <= 1000000"),
        (GOOD.replace("1.5", "true"), "got `bool` - at `$.per_hour`"),
        (GOOD.replace("1.5", "0"), "Expected `float` > 0"),
        (GOOD.replace("1.5", "-2"), "entry 1: Expected `float` > 0"),
        (
            "prices:\n  - {gpu: A100, per_hour: 1.5}\n",
            "entry 1: Object missing required field `date`",
        ),
        (GOOD.replace("A100", "A1000"), "entry 1: unknown GPU 'A1000'"),
        (GOOD.replace("1.5", "1,50"), "Expected `str` - at `key`"),
        (
            GOOD + f"  - {ENTRY.replace('A100', 'A100-PCIE-40GB')}\n",
            "entry 2: A100-PCIE-40GB has a price already",
        ),
        (GOOD.replace("per_hour: 1.5", "per_hour: 1.5, per_hour: 2"), "'per_hour' is given twice"),
        (GOOD.replace("2026-01-15", "yesterday"), "date - at `$.date`"),
        (GOOD.replace("2026-01-15", "20260115"), "Expected `date`, got `int`"),
        (GOOD.replace("2026-01-15", "2999-01-01"), "2999-01-01 is in the future"),
        (GOOD.replace("currency", "curency"), "unknown field `curency`"),
        (GOOD.replace("EUR", "[EUR]"), "got `array` - at `$.currency`"),
        (GOOD.replace("currency: EUR\n", ""), "entry 1: no currency"),
        (
            GOOD.replace("per_hour", "scope: node, per_hour"),
            "Invalid enum value 'node' - at `$.scope`",
        ),
        (GOOD.replace("per_hour", "stands_for: V100, per_hour"), "got `str` - at `$.stands_for`"),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused_by_its_entry(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.yaml") as refused:
        offers_in(file)
    assert said in str(refused.value) and "\n" not in str(refused.value)
