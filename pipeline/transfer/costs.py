"""What samples cost on rented GPUs: a price table that the user keeps, each price with its date and source.

No prices are shipped, because none would stay true. Write `config/prices.yaml` (or name another file):

    currency: USD
    prices:
      - gpu: A100-PCIE-40GB
        per_hour: 1.10
        date: 2026-01-15
        source: offer of my provider, on demand
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.spec import load_gpu
from pipeline.paths import config_dir
from pipeline.prediction import Prediction

PRICES = "prices.yaml"
"""The user's price table, under `config/`."""


def load_prices(path: str | Path | None = None) -> dict[str, float]:
    """Price per hour by GPU name; empty where the default file does not exist.

    Raises:
        ConfigError: the named file is missing, or an entry lacks its date, its source or a positive price.
    """
    file = config_dir() / PRICES if path is None else Path(path)
    if not file.is_file():
        if path is None:
            return {}
        raise ConfigError(f"{file}: no such price table")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: not readable as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(values, dict) or not isinstance(values.get("prices"), list):
        raise ConfigError(f"{file}: expected a list `prices` of gpu, per_hour, date and source")
    return dict(_entry(entry, f"{file}: entry {number}") for number, entry in enumerate(values["prices"], 1))


def currency(path: str | Path | None = None) -> str:
    """The currency that a price table names; `price table's currency` where it names none or does not exist."""
    file = config_dir() / PRICES if path is None else Path(path)
    values = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    named = values.get("currency") if isinstance(values, dict) else None
    return str(named) if named else "price table's currency"


def _entry(entry: object, where: str) -> tuple[str, float]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected gpu, per_hour, date and source")
    missing = [key for key in ("gpu", "per_hour", "date", "source") if not entry.get(key)]
    if missing:
        raise ConfigError(f"{where} misses {', '.join(missing)}: a price without it cannot be checked")
    try:
        price = float(entry["per_hour"])
    except (TypeError, ValueError):
        price = -1.0
    if price <= 0:
        raise ConfigError(f"{where}: per_hour {entry['per_hour']!r} is not a positive number")
    try:
        return load_gpu(str(entry["gpu"])).name, price
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from None


def cost_per_million(prediction: Prediction, prices: Mapping[str, float]) -> float | None:
    """Cost of a million samples at the predicted throughput; None without a price of that GPU."""
    price = prices.get(prediction.gpu)
    return None if price is None else price / 3600.0 * 1e6 / prediction.samples_per_s
