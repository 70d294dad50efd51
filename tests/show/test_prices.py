"""The price list: every entry dated and sourced, one provider per comparison where possible, cost from throughput."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError, InputError
from pipeline.paths import config_dir
from pipeline.prediction_parts import SeveralGpus
from pipeline.prices import (
    one_currency,
    price_file,
    price_list,
    price_notes,
    prices_of,
)
from pipeline.question.question import ask
from pipeline.show.comparison_columns import Order, best_first
from pipeline.work import Work
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
    price = prices_of(["A100"], file)["A100-PCIE-40GB"]
    assert (price.per_hour, price.currency, str(price.date)) == (1.5, "EUR", "2026-01-15")
    with pytest.raises(ConfigError, match="no such price list"):
        price_list(tmp_path / "absent.yaml")


def test_every_shipped_price_says_where_it_is_from() -> None:
    prices = price_list(config_dir() / "prices.yaml").values()
    assert {"P100", "T4", "H100", "H200", "B200", "L40", "A10G", "RTX4090"} <= {
        p.gpu for p in prices
    }
    assert all("https://" in p.source and p.currency == "USD" and p.provider for p in prices)


def test_own_prices_come_before_the_shipped_ones_of_their_currency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hourly(*gpus: str) -> dict[str, float]:
        return {gpu: price.per_hour for gpu, price in prices_of(gpus).items()}

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPTIME_PRICES", raising=False)
    assert price_file() == config_dir() / "prices.yaml"
    shipped = hourly("T4", "P100")
    listed(tmp_path, "gpu: T4, per_hour: 9")
    assert hourly("T4", "P100") == {"T4": 9.0}  # the shipped one is in another currency
    listed(tmp_path, "gpu: T4, per_hour: 8, currency: USD")
    assert hourly("T4", "P100") == {"T4": 8.0, "P100": shipped["P100"]}
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert hourly("T4") == {}


def test_a_card_has_the_same_price_in_any_company_and_its_own() -> None:
    alone = prices_of(["P100"])["P100"]
    assert prices_of(["P100", "T4", "V100-SXM2-16GB"])["P100"] == alone
    assert "V100" not in prices_of(["V100", "V100-SXM2-16GB"])
    notes = price_notes(prices_of(["P100", "T4"]), ["P100", "T4", "V100"])
    assert len(notes) == 3 and "GPU alone" in notes[0]
    assert notes[2] == "no price of V100; give price.V100=USD_AN_HOUR (docs/prices.md)"


def test_a_price_on_the_command_line_changes_the_cost_alone() -> None:
    asked = [ask(["gpu=T4", "model=resnet50", *more]) for more in ([], ["price.T4=$3.80"])]
    assert asked[0] == asked[1] and asked[1].own_price == 3.8
    assert asked[0].plain() == asked[1].plain()
    with pytest.raises(ConfigError, match=r"price\.H200: this GPU is not among those asked for"):
        ask(["gpu=T4", "model=resnet50", "price.H200=3"])
    p = predicted(3.6e9, gpu="T4", batch_size=76, own_price=3.8)
    assert (
        p.samples_per_price == pytest.approx(20)
        and ("price", "3.80 USD an hour, 20 samples per USD") in p.rows()
    )


def test_hours_and_cost_of_the_users_work_follow_the_interval() -> None:
    work = ask(["gpu=T4", "model=resnet50", "samples=1.2M", "epochs=3"]).work
    p = predicted(1e6, gpu="T4", batch_size=100, p10_us=9e5, p90_us=1.2e6, work=work, own_price=2.0)
    facts = p.as_dict()
    assert [facts[key] for key in ("hours", "hours_p10", "hours_p90", "cost")] == pytest.approx(
        [10.0, 9.0, 12.0, 20.0]
    )
    rows = dict(p.rows())
    assert rows["your work"] == "3 epochs of 1.2M samples"
    assert str(Work(tokens=3e9)) == "3B tokens"
    assert rows["  cost"] == "20.00 USD   (p10-p90: 18.00 to 24.00 USD)"
    of_text = predicted(1e6, asked={"seq_len": "512"}, batch_size=8)
    assert "(4.1k tokens/s, sequences of 512)" in dict(of_text.rows())["throughput"]
    tokens = ask(["gpu=T4", "model=resnet50", "tokens=3B"]).work
    with pytest.raises(InputError, match="no sequences of tokens; give samples"):
        predicted(1e6, gpu="T4", work=tokens).rows()
    with pytest.raises(InputError, match="epochs: give the samples"):
        ask(["gpu=T4", "model=resnet50", "epochs=3"])


def test_the_order_by_cost_pays_for_each_gpu_of_a_step() -> None:
    """Four GPUs with three times the throughput of one cost a third more for each sample; a GPU without a price is last."""
    four = SeveralGpus(4, 1, "dgx", 0.0, 0.0, dp=4)
    one, several, unpriced = (
        predicted(us, gpu=gpu, p10_us=us, p90_us=us, several=ranks, own_price=own)
        for gpu, us, ranks, own in (
            ("T4", 100.0, None, 1.0),
            ("T4", 400.0 / 3.0, four, 1.0),
            ("V100", 10.0, None, None),
        )
    )
    assert best_first([unpriced, several, one], Order.cost) == [one, several, unpriced]
    assert best_first([one, several, unpriced], Order.throughput) == [unpriced, several, one]


def test_prices_of_one_comparison_have_one_currency(tmp_path: Path) -> None:
    file = listed(tmp_path, "gpu: T4, per_hour: 1, currency: USD", "gpu: V100, per_hour: 1")
    assert one_currency(prices_of(["T4"], file).values()) == "USD"
    with pytest.raises(
        InputError, match="T4 in USD and V100 in EUR: prices of one comparison need one currency"
    ):
        one_currency(prices_of(["T4", "V100"], file).values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("1.5", ".nan"), "Expected `float` > 0"),
        (GOOD.replace("1.5", "-2"), "entry 1: Expected `float` > 0"),
        (
            "prices:\n  - {gpu: A100, per_hour: 1.5}\n",
            "entry 1: Object missing required field `date`",
        ),
        (GOOD.replace("A100", "A1000"), "entry 1: unknown GPU 'A1000'"),
        (
            GOOD + GOOD.partition("prices:\n")[2].replace("A100", "A100-PCIE-40GB"),
            "entry 2: A100-PCIE-40GB has a price already",
        ),
        (GOOD.replace("per_hour: 1.5", "per_hour: 1.5, per_hour: 2"), "'per_hour' is given twice"),
        (GOOD.replace("2026-01-15", "2999-01-01"), "2999-01-01 is in the future"),
        (GOOD.replace("currency", "curency"), "unknown field `curency`"),
        (GOOD.replace("currency: EUR\n", ""), "entry 1: no currency"),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused_by_its_entry(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.yaml") as refused:
        price_list(file)
    assert said in str(refused.value) and "\n" not in str(refused.value)
