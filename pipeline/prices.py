"""On-demand prices per GPU and hour: the user's own, or those of the shipped list, and what a sample costs.

The shipped list is `config/prices.yaml`. Every entry has its provider, date and source; no price is estimated. A card is
priced as the card that it is, whatever it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import pandas as pd

from pipeline.errors import ConfigError, InputError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import config_dir, named_path
from pipeline.readable import MOST_CARDS, distinct
from pipeline.work import OVERRIDE
from pipeline.yaml_text import kept_while_unchanged, read_mapping

Read = TypeVar("Read")

PRICES = "prices.yaml"
"""File name of a price list: in the working folder, or under `config/`."""

NAMED = 6
"""Most GPUs without a price that a note names."""

ALONE = " without its machine"
"""What to know of a price that is the GPU's alone."""

GIVEN = "given"
"""Source of a price that the user gave with an override."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an hour of a GPU costs, as an entry of a price list states it."""

    gpu: Annotated[str, msgspec.Meta(min_length=1)]
    per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    date: date
    source: Annotated[str, msgspec.Meta(min_length=1)]
    currency: str = ""
    """Needed where the list names none for all entries."""
    provider: str = ""
    region: str = ""
    scope: Literal["instance", "gpu"] = "instance"
    """What the price covers: an equal share of a machine, or the GPU alone."""

    @property
    def offer(self) -> str:
        """Who asks for it, where and when, in brackets; empty where the user gave it."""
        alone = f"GPU alone{ALONE}" if self.scope == "gpu" else ""
        parts = (self.provider, self.region, self.date.isoformat(), alone)
        return "" if self.source == GIVEN else f" ({', '.join(filter(None, parts))})"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(msgspec.to_builtins(self))


class PriceList(msgspec.Struct, forbid_unknown_fields=True):
    """A price list, whose entries are read one by one."""

    prices: list[Any]
    currency: str = ""


COST_COLUMNS = ("price_per_hour", "currency", "provider", "samples_per_dollar", "cost_per_million")
"""What an answer says of its cost. `samples_per_dollar` is samples per unit of `currency`; `cost_per_million` is of samples."""


def price_file() -> Path | None:
    """The user's price list: $STEPTIME_PRICES, or `prices.yaml` in the working folder; else the shipped list.

    None if $STEPTIME_PRICES is empty or `none`: then nothing has a price.
    """
    own = Path(PRICES)
    return named_path("STEPTIME_PRICES", lambda: own if own.is_file() else config_dir() / PRICES)


def price_of(gpu: str, own: float | None = None, path: str | Path | None = None) -> Price | None:
    """The price of a GPU; None without one.

    Args:
        gpu: its canonical name.
        own: what the user says an hour of it costs (`own_prices`).
        path: a price list; by default `price_file`.

    Raises:
        ConfigError: the list is missing or damaged, or an entry is not complete.
    """
    file = Path(path) if path is not None else price_file()
    known, currency = _prices(file) if file else ({}, "USD")
    if own is not None:
        return Price(gpu, own, date.today(), GIVEN, currency)
    return known.get(gpu)


def prices_of(gpus: Iterable[str], path: str | Path | None = None) -> dict[str, Price]:
    """The prices of those GPUs that have one, by canonical name.

    Args:
        gpus: names or aliases.
        path: a price list; by default `price_file`.

    Raises:
        ConfigError: as `price_of`.
    """
    named = {gpu: price_of(gpu, path=path) for gpu in map(_resolved, distinct(gpus))}
    return {gpu: price for gpu, price in named.items() if price is not None}


def one_currency(prices: Iterable[Price | None]) -> str:
    """The currency of the prices of one comparison; empty without any.

    Raises:
        InputError: there are two.
    """
    by_currency = {price.currency: price.gpu for price in prices if price}
    if len(by_currency) > 1:
        named = " and ".join(f"{gpu} in {currency}" for currency, gpu in by_currency.items())
        raise InputError(f"{price_file()}: {named}: prices of one comparison need one currency")
    return next(iter(by_currency), "")


@kept_while_unchanged
def price_list(path: Path) -> dict[str, Price]:
    """The entries of a price list by the canonical name of their GPU.

    Raises:
        ConfigError: the list is missing or damaged, or an entry is not complete.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such price list; correct $STEPTIME_PRICES, or unset it to use the shipped"
            " list"
        )
    values = _read(read_mapping(path, "a currency and prices"), PriceList, str(path))
    known: dict[str, Price] = {}
    for number, stated in enumerate(values.prices, 1):
        where = f"{path}: entry {number}"
        price = _checked(_read(stated, Price, where), values.currency, where)
        if price.gpu in known:
            raise ConfigError(f"{where}: {price.gpu} has a price already; keep only the valid one")
        known[price.gpu] = price
    return known


def costs(
    price: Price | None, samples_per_s: float, devices: int = 1, electricity: float = 0.0
) -> dict[str, Any]:
    """The values of `COST_COLUMNS`; null without a price. `electricity` is what one GPU takes of it in an hour, by its price."""
    if price is None:
        return dict.fromkeys(COST_COLUMNS)
    samples = samples_per_s * 3600.0 / ((price.per_hour + electricity) * devices)
    offer = price.per_hour, price.currency, price.provider
    return dict(zip(COST_COLUMNS, (*offer, samples, 1e6 / samples), strict=True))


def with_prices(table: pd.DataFrame, path: str | Path | None = None) -> pd.DataFrame:
    """A table of predictions on one GPU each, with the columns of `COST_COLUMNS`; they are empty for a GPU without a price.

    Args:
        table: columns `gpu` and `samples_per_s`.
        path: a price list; by default `price_file`.

    Raises:
        ConfigError, InputError: as `price_of` and `one_currency`.
    """
    prices = [price_of(gpu, path=path) for gpu in map(_resolved, table["gpu"])]
    one_currency(prices)
    rows = [costs(price, us) for price, us in zip(prices, table["samples_per_s"], strict=True)]
    costly = pd.DataFrame(rows, table.index, list(COST_COLUMNS))
    numbers = {name: float for name in COST_COLUMNS if name not in ("currency", "provider")}
    return table.drop(columns=list(COST_COLUMNS), errors="ignore").join(costly.astype(numbers))


def price_notes(
    prices: Mapping[str, Price], gpus: Iterable[str], electricity: float = 0.0
) -> list[str]:
    """What a reader must know of the prices in a comparison, one line each: whose they are, and which are missing.

    Args:
        prices: by canonical name.
        gpus: canonical names of the compared GPUs.
        electricity: price of a kWh; 0 where it does not count.
    """
    names = distinct(gpus)
    by_offer: dict[tuple[str, str], list[str]] = {}
    many = sum(gpu in prices for gpu in names) > MOST_CARDS
    for gpu in filter(prices.get, names):
        price = prices[gpu]
        named = f"{gpu} {price.per_hour:.4g}"
        if many:  # one line, without whose each is
            named += ALONE * (price.scope == "gpu")
        offer = " (each with its source: docs/prices.md)" if many else price.offer
        by_offer.setdefault((price.currency, offer), []).append(named)
    notes = [f"{money} per hour{offer}: {', '.join(of)}" for (money, offer), of in by_offer.items()]
    if notes and electricity:
        notes.append(f"beside that, electricity of GPUs and machines at {electricity:g} a kWh")
    missing = [gpu for gpu in names if gpu not in prices]
    return notes + ([no_price(missing)] if missing and price_file() else [])


def no_price(gpus: Sequence[str]) -> str:
    """What to do where no list has the price of some GPUs."""
    shown = ", ".join(gpus[:NAMED]) + f" and {len(gpus) - NAMED} more" * (len(gpus) > NAMED)
    return f"no price of {shown}; give {OVERRIDE}{gpus[0]}=USD_AN_HOUR (docs/prices.md)"


def _prices(file: Path) -> tuple[dict[str, Price], str]:
    """The prices of a list, and those of the shipped one in its currency; and that currency."""
    own, shipped = price_list(file), config_dir() / PRICES
    currency = next((price.currency for price in own.values()), "USD")
    if file == shipped or not shipped.is_file():
        return own, currency
    others = price_list(shipped).items()
    return {gpu: price for gpu, price in others if price.currency == currency} | own, currency


def _resolved(gpu: str) -> str:
    """The name of a GPU; a name without a file (a what-if GPU) stays, and has no price."""
    try:
        return load_gpu(gpu).name
    except UnknownNameError:
        return gpu


def _read(stated: object, kind: type[Read], where: str) -> Read:
    try:
        return msgspec.convert(stated, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def _checked(price: Price, currency: str, where: str) -> Price:
    """An entry with the canonical name of its GPU and its currency."""
    try:
        gpu = load_gpu(price.gpu).name
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not (currency := price.currency or currency):
        raise ConfigError(
            f"{where}: no currency; write for example currency: USD at the head of the list"
        )
    if price.date > date.today() + timedelta(days=1):  # in every time zone
        raise ConfigError(f"{where}: date {price.date} is in the future")
    return msgspec.structs.replace(price, gpu=gpu, currency=currency)
