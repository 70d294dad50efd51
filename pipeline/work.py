"""What a user wants to train, and what it takes: hours and money of so many samples, epochs or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.readable import amount, compact, number_of

ELECTRICITY = "electricity="
"""Beginning of the override with the price of a kWh."""

OVERRIDE = "price."
"""Beginning of the overrides that give the price of a GPU, such as `price.H200=3.80`."""

WORK_KEYS = (
    "work_samples", "hours", "hours_p10", "hours_p90", "cost", "cost_p10", "cost_p90",
)  # fmt: skip
"""Keys of an answer about the user's work; null where none was given. `cost` is in the currency of the price."""


@dataclass(frozen=True)
class Work:
    """Samples or tokens of an epoch, and epochs."""

    samples: float | None = None
    tokens: float | None = None
    epochs: float = 1.0

    @classmethod
    def of(cls, texts: Sequence[str]) -> Work | None:
        """The work of texts such as `samples=1.2M`; None without any.

        Raises:
            InputError: a text is no number, or epochs are given without what an epoch is.
        """
        parts = (text.partition("=") for text in texts)
        given = {key: number_of(value, f"{key}: ") for key, _, value in parts}
        if given and given.keys() <= {"epochs"}:
            raise InputError("epochs: give the samples or the tokens of an epoch, too")
        if len(given.keys() - {"epochs"}) > 1:
            raise InputError("samples and tokens: give one of the two")
        return cls(**given) if given else None

    def __str__(self) -> str:
        what = (
            f"{compact(self.samples or self.tokens or 0)} {'samples' if self.samples else 'tokens'}"
        )
        return what if self.epochs == 1 else f"{self.epochs:g} epochs of {what}"

    def facts(
        self, us_per_sample: Sequence[float], seq_len: int | None, per_hour: float | None
    ) -> dict[str, Any]:
        """The values of `WORK_KEYS`.

        Args:
            us_per_sample: µs of a sample: the middle, p10 and p90.
            seq_len: tokens of a sample; None where it has none.
            per_hour: what all GPUs cost in an hour.

        Raises:
            InputError: tokens are given, and a sample has none.
        """
        if self.samples is None and seq_len is None:
            raise InputError("tokens: this model has no sequences of tokens; give samples")
        samples = self.epochs * (self.samples or (self.tokens or 0.0) / (seq_len or 1))
        hours = [samples * us / 3.6e9 for us in us_per_sample]
        paid = [None if per_hour is None else hour * per_hour for hour in hours]
        return dict(zip(WORK_KEYS, (samples, *hours, *paid), strict=True))


def work_rows(facts: dict[str, Any], work: Work | None, currency: str) -> dict[str, str]:
    """Rows of a prediction's table: the work, its hours, and its cost."""
    if work is None:
        return {}
    rows = {"your work": str(work)}
    for name, keys, unit in (("  hours", WORK_KEYS[1:4], "h"), ("  cost", WORK_KEYS[4:], currency)):
        if facts[keys[0]] is not None:
            middle, low, high = (amount(facts[key]) for key in keys)
            rows[name] = f"{middle} {unit}   (p10-p90: {low} to {high} {unit})"
    return rows


def own_prices(overrides: Sequence[str]) -> dict[str, float]:
    """Prices of overrides such as `price.H200=3.80`, by the canonical name of the GPU.

    Raises:
        UnknownNameError: there is no such GPU.
        InputError: a price is no number above 0.
    """
    given = {}
    for text in overrides:
        name, _, value = text.lstrip("+").removeprefix(OVERRIDE).partition("=")
        given[load_gpu(name).name] = number_of(value, f"{OVERRIDE}{name}: ")
    return given


def own_terms(
    overrides: Sequence[str],
) -> tuple[list[str], dict[str, float], dict[str, Any]]:
    """Overrides without those that no time depends on, and what these say: prices by GPU, the price of a kWh, and the user's work.

    Raises:
        UnknownNameError, InputError: as `own_prices` and `Work.of`.
    """
    keys = {each.name for each in fields(Work)}
    paid = [text for text in overrides if text.lstrip("+").startswith(OVERRIDE)]
    work = [text for text in overrides if text.partition("=")[0] in keys]
    kwh = [text for text in overrides if text.startswith(ELECTRICITY)]
    others = [text for text in overrides if text not in (*paid, *work, *kwh)]
    price = number_of(kwh[0].removeprefix(ELECTRICITY), "electricity: ") if kwh else 0.0
    return others, own_prices(paid), {"electricity": price, "work": Work.of(work)}
