"""Cost of training samples on rented GPUs, from the user's price table; each price has its date and source.

No prices are shipped, because prices change. Write `config/prices.yaml` (or name another file):

    currency: USD
    prices:
      - gpu: A100-PCIE-40GB
        per_hour: 1.10
        date: 2026-01-15
        source: offer of my provider, on demand
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError, did_you_mean
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import config_dir
from pipeline.prediction import Prediction
from pipeline.yaml_text import YamlError, load_yaml

PRICES = "prices.yaml"
"""File name of the user's price table under `config/`."""

KEYS = ("gpu", "per_hour", "date", "source")
"""Keys of an entry of the table; all are required."""


def load_prices(path: str | Path | None = None) -> dict[str, float]:
    """Price per hour by GPU name; empty where the default file does not exist.

    Raises:
        ConfigError: the named file is missing, an entry lacks its date, its source or a positive price, a GPU has two.
    """
    values = _read(path)
    if values is None:
        return {}
    file, prices = _file(path), dict[str, float]()
    for number, entry in enumerate(values["prices"], 1):
        gpu, price = _entry(entry, f"{file}: entry {number}")
        if gpu in prices:
            raise ConfigError(f"{file}: entry {number}: {gpu} has a price already; keep only the valid one")
        prices[gpu] = price
    return prices


def currency(path: str | Path | None = None) -> str:
    """The currency that a price table names; `price table's currency` if it names none or does not exist.

    Raises:
        ConfigError: as `load_prices`.
    """
    values = _read(path)
    named = None if values is None else values.get("currency")
    return str(named) if named else "price table's currency"


def _file(path: str | Path | None) -> Path:
    return config_dir() / PRICES if path is None else Path(path)


def _read(path: str | Path | None) -> dict[str, Any] | None:
    """Content of the price table; None where the default file does not exist."""
    file = _file(path)
    if not file.is_file():
        if path is None:
            return None
        raise ConfigError(f"{file}: the price table does not exist")
    try:
        values = load_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{file}: not readable as YAML ({said})") from None
    if not isinstance(values, dict) or not isinstance(values.get("prices"), list):
        raise ConfigError(f"{file}: expected a list `prices` of gpu, per_hour, date and source")
    _refuse_unknown(values, ("currency", "prices"), str(file))
    if not isinstance(values.get("currency", ""), str):
        raise ConfigError(f"{file}: currency {values['currency']!r} is not a name; write for example currency: USD")
    return values


def _refuse_unknown(values: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse unknown keys: `{per_hour: 1,50}` is read in YAML as a price of 1 and a key 50."""
    for key in values:
        if key not in known:
            raise ConfigError(
                f"{where}: unknown key {key!r}: {did_you_mean(str(key), known)}known are {', '.join(known)}"
            )


def _entry(entry: object, where: str) -> tuple[str, float]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected gpu, per_hour, date and source")
    missing = [key for key in KEYS if entry.get(key) in (None, "")]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing, so the price cannot be checked")
    _refuse_unknown(entry, KEYS, where)
    try:
        price = -1.0 if isinstance(entry["per_hour"], bool) else float(entry["per_hour"])
    except (TypeError, ValueError):
        price = -1.0
    if not (math.isfinite(price) and price > 0):
        raise ConfigError(f"{where}: per_hour {entry['per_hour']!r} is not a positive number")
    _check_date(entry["date"], where)
    try:
        return load_gpu(str(entry["gpu"])).name, price
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_date(given: object, where: str) -> None:
    """Refuse a date that is invalid, or in the future in every time zone."""
    try:
        day = given.date() if isinstance(given, datetime) else given
        day = day if isinstance(day, date) else date.fromisoformat(str(day)) if isinstance(day, str) else None
    except ValueError:
        day = None
    if day is None:
        raise ConfigError(f"{where}: date {given!r} is not a date; write it as 2026-01-15")
    if day > date.today() + timedelta(days=1):
        raise ConfigError(f"{where}: date {day.isoformat()} is in the future")


def cost_per_million(prediction: Prediction, prices: Mapping[str, float]) -> float | None:
    """Cost of a million samples at the predicted throughput; None without a price of that GPU."""
    price = prices.get(prediction.gpu)
    return None if price is None else price / 3600.0 * 1e6 / prediction.samples_per_s
