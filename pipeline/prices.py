"""On-demand prices per GPU and hour: the shipped list or the user's own, and what a sample costs.

The shipped list is `config/prices.yaml`. Every entry has its provider, date and source; no price is estimated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import pandas as pd

from pipeline.errors import ConfigError, InputError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import config_dir
from pipeline.prediction import Prediction
from pipeline.readable import distinct
from pipeline.yaml_text import read_mapping

Read = TypeVar("Read")

PRICES = "prices.yaml"
"""File name of a price list: in the working folder, or under `config/`."""


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a price list."""

    gpu: Annotated[str, msgspec.Meta(min_length=1)]
    per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    date: date
    source: Annotated[str, msgspec.Meta(min_length=1)]
    currency: str | None = None
    """Needed where the list names none for all entries."""
    provider: str | None = None
    region: str | None = None
    scope: Literal["instance", "gpu"] = "instance"
    """What the price covers: an equal share of a machine, or the GPU alone."""
    stands_for: list[str] = []
    """Similar boards that the offer stands for."""


class PriceList(msgspec.Struct, forbid_unknown_fields=True):
    """A price list, whose entries are read one by one."""

    prices: list[Any]
    currency: str | None = None


COLUMNS = (
    "gpu", "price_per_hour", "currency", "provider", "region", "date", "source", "scope",
    "priced_as",
)  # fmt: skip
"""Columns of `prices_of`. `priced_as` is the board that is offered, where it stands for a similar one; else empty."""

COST_COLUMNS = ("price_per_hour", "currency", "provider", "samples_per_dollar", "cost_per_million")
"""Columns of `with_prices`. `samples_per_dollar` is samples per unit of `currency`; `cost_per_million` is of samples."""

OFFER = ["provider", "region", "scope"]
"""Columns that tell offers of one GPU apart."""


def price_file() -> Path | None:
    """The price list in use: $STEPTIME_PRICES, `prices.yaml` in the working folder, or the shipped list.

    None if $STEPTIME_PRICES is empty or `none`: then nothing has a price.
    """
    named = os.environ.get("STEPTIME_PRICES")
    if named is not None:
        return Path(named).expanduser() if named not in ("", "none") else None
    in_folder = Path(PRICES)
    return in_folder if in_folder.is_file() else config_dir() / PRICES


def prices_of(gpus: Sequence[str], path: str | Path | None = None) -> pd.DataFrame:
    """The price of each GPU, for a comparison of these GPUs.

    If a list has several offers of a GPU, the offers of the provider (and region and scope) that covers most of `gpus`
    are taken, so that a comparison mixes as few providers as possible. The remaining GPUs follow in the same way. Of
    equal ones, the more recent offers are taken.

    Args:
        gpus: names or aliases.
        path: a price list; by default `price_file`.

    Returns:
        A row per GPU that has a price, in the order of `gpus`. Columns are those of `COLUMNS`; `date` is ISO text.

    Raises:
        ConfigError: the list is missing or damaged, or an entry is not complete.
        InputError: the prices are in different currencies.
    """
    offers = offers_in(path)
    wanted = distinct(map(_resolved, dict.fromkeys(gpus)))
    left, chosen = set(wanted), []
    while left:
        open_offers = offers[offers["gpu"].isin(left)]
        if open_offers.empty:
            break
        groups = open_offers.groupby(OFFER, sort=False).agg(
            count=("gpu", "nunique"), date=("date", "min")
        )
        best = groups.sort_values(["count", "date"], ascending=False, kind="stable").index[0]
        taken = open_offers[(open_offers[OFFER] == list(best)).all(axis=1)]
        # an offer of the board itself comes before one that stands for it
        taken = taken.sort_values("priced_as", kind="stable").drop_duplicates("gpu")
        chosen.append(taken)
        left -= set(taken["gpu"])
    prices = pd.concat(chosen, ignore_index=True) if chosen else offers.iloc[:0]
    currencies = prices.drop_duplicates("currency")
    if len(currencies) > 1:
        named = " and ".join(f"{row.gpu} in {row.currency}" for row in currencies.itertuples())
        raise InputError(
            f"{path or price_file()}: {named}: prices of one comparison need one currency"
        )
    return prices.sort_values("gpu", key=lambda column: column.map(wanted.index), ignore_index=True)


def offers_in(path: str | Path | None = None) -> pd.DataFrame:
    """Every offer of a price list, in the columns of `COLUMNS`; empty where prices are switched off.

    An offer that stands for similar boards has a row for each of them.

    Raises:
        ConfigError: the list is missing or damaged, or an entry is not complete.
    """
    file = Path(path) if path is not None else price_file()
    if file is None:
        return pd.DataFrame(columns=list(COLUMNS))
    if not file.is_file():
        raise ConfigError(
            f"{file}: no such price list; correct $STEPTIME_PRICES, or unset it to use the shipped"
            " list"
        )
    values = _read(read_mapping(file, "a currency and prices"), PriceList, str(file))
    rows = []
    for number, stated in enumerate(values.prices, 1):
        where = f"{file}: entry {number}"
        rows += _rows(_read(stated, Entry, where), values.currency, where)
        listed = [row for row in rows if not row["priced_as"]]
        if any(all(row[key] == listed[-1][key] for key in ("gpu", *OFFER)) for row in listed[:-1]):
            raise ConfigError(
                f"{file}: entry {number}: {listed[-1]['gpu']} has a price already; keep only the"
                " valid one, or tell the two apart by provider, region or scope"
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def hourly_prices(prices: pd.DataFrame) -> dict[str, float]:
    """Price of an hour by GPU, of `prices_of`."""
    return dict(zip(prices["gpu"], prices["price_per_hour"], strict=True)) if len(prices) else {}


class Order(StrEnum):
    """What rows are sorted by, best first."""

    step = "step"
    throughput = "throughput"
    cost = "cost"


def in_order(
    predictions: Sequence[Prediction], prices: pd.DataFrame, order: Order
) -> list[Prediction]:
    """Predictions, best first; those on a GPU without a price come last where cost is asked for.

    Args:
        predictions: in any order.
        prices: from `prices_of`.
        order: what they are sorted by.
    """
    hourly = hourly_prices(prices)

    def key(prediction: Prediction) -> float:
        if order is Order.cost:
            return (
                hourly.get(prediction.gpu, math.inf) * prediction.devices / prediction.samples_per_s
            )
        return prediction.predicted_us if order is Order.step else -prediction.samples_per_s

    return sorted(predictions, key=key)


def with_prices(table: pd.DataFrame, path: str | Path | None = None) -> pd.DataFrame:
    """A table of predictions with what their samples cost.

    Args:
        table: columns `gpu` and `samples_per_s`.
        path: a price list; by default `price_file`.

    Returns:
        The same rows with the columns of `COST_COLUMNS`. They are empty for a GPU without a price.

    Raises:
        ConfigError, InputError: as `prices_of`.
    """
    prices = prices_of(list(table["gpu"]), path).set_index("gpu")[
        ["price_per_hour", "currency", "provider"]
    ]
    priced = table.drop(columns=[name for name in COST_COLUMNS if name in table]).join(
        prices, on="gpu"
    )
    samples = priced["samples_per_s"] * 3600.0 / priced["price_per_hour"].astype(float)
    return priced.assign(samples_per_dollar=samples, cost_per_million=1e6 / samples)


def price_notes(prices: pd.DataFrame, gpus: Sequence[str]) -> list[str]:
    """What a reader must know of the prices in a comparison, one line each: whose they are, and which are missing.

    Args:
        prices: from `prices_of`.
        gpus: canonical names of the compared GPUs.
    """
    if prices.empty:
        return []
    notes, offers = [], prices.groupby(OFFER, sort=False)
    for _, rows in offers:
        provider, region, scope = map(str, rows[OFFER].iloc[0])
        where = ", ".join(filter(None, (provider, region)))
        currency = str(rows["currency"].iloc[0])
        alone = ", GPU alone without its machine" if scope == "gpu" else ""
        by_gpu = ", ".join(
            f"{row['gpu']} {row['price_per_hour']:.4g}"
            + (f" (price of {row['priced_as']})" if row["priced_as"] else "")
            for row in rows.to_dict("records")
        )
        day = " to ".join(sorted({min(rows["date"]), max(rows["date"])}))
        notes.append(f"{currency} per hour{f' ({where})' if where else ''}, {day}{alone}: {by_gpu}")
    if len(offers) > 1:
        notes[-1] += "; no single offer covers all of these GPUs"
    missing = [gpu for gpu in dict.fromkeys(gpus) if gpu not in set(prices["gpu"])]
    return notes + ([f"no price of {', '.join(missing)} (docs/prices.md)"] if missing else [])


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


def _rows(entry: Entry, currency: str | None, where: str) -> list[dict[str, Any]]:
    """Rows of `COLUMNS` for one entry: first its board, then those that it stands for."""
    try:
        gpu, *similar = (load_gpu(name).name for name in (entry.gpu, *entry.stands_for))
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not (currency := entry.currency or currency):
        raise ConfigError(
            f"{where}: no currency; write for example currency: USD at the head of the list"
        )
    if entry.date > date.today() + timedelta(days=1):  # in every time zone
        raise ConfigError(f"{where}: date {entry.date} is in the future")
    offer = {
        "price_per_hour": entry.per_hour,
        "currency": currency,
        "provider": entry.provider or "",
        "region": entry.region or "",
        "date": entry.date.isoformat(),
        "source": entry.source,
        "scope": entry.scope,
    }
    priced_as = {gpu: ""} | {board: gpu for board in similar}
    return [{"gpu": board, **offer, "priced_as": of} for board, of in priced_as.items()]
