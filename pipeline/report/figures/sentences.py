"""Titles of figures: sentences computed from their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

EQUAL_RATIO = 1.1
"""Ratio of two step times below which a GPU gains nothing: an error of 10 % is usual for a predicted step."""


def times(ratio: float) -> str:
    """A ratio as text, such as `3.4`: two digits, and whole numbers from 10."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def span(low: float, high: float, unit: str = "") -> str:
    """A range as text, such as `3 to 5 %`; one number where both are the same text."""
    one, two = (f"{value:.0f}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}" for value in (low, high))
    return f"{one}{unit}" if one == two else f"{one} to {two}{unit}"


def step_sentence(rows: pd.DataFrame) -> str:
    """What the steps of one model say: which GPU gains, and where the host limits them.

    Args:
        rows: `steps` rows of one model.
    """
    table = rows.pivot_table(index="batch_size", columns="gpu", values="predicted_us", sort=False).dropna()
    if table.shape[1] < 2 or table.empty:
        return _one_gpu(rows)
    mean = np.log(table).mean()
    best, worst = str(mean.idxmin()), str(mean.idxmax())
    ratio = table[worst] / table[best]
    alone = rows.groupby("batch_size")["bound"].agg(lambda bound: bool((bound == "host").all())).reindex(ratio.index)
    gained = ratio[ratio >= EQUAL_RATIO]
    why = ": the step is host-bound" if bool(alone[ratio < EQUAL_RATIO].all()) else ""
    if gained.empty:
        return f"{best} gains nothing over {worst}{why}" if table.shape[1] == 2 else f"no GPU gains{why}"
    low, high = times(float(gained.min())), times(float(gained.max()))
    text = f"{best} is {low if low == high else f'{low} to {high}'} times as fast as {worst}"
    equal = [f"{size:,}" for size in ratio.index[ratio < EQUAL_RATIO]]
    return text + (f"; it gains nothing at batch {_listed(equal)}{why}" if equal else "")


def _one_gpu(rows: pd.DataFrame) -> str:
    busy = 100 * rows["active_us"] / rows["predicted_us"]
    bounds = set(rows["bound"])
    where = f", {bounds.pop()}-bound" if len(bounds) == 1 else ""
    gpu = ", ".join(dict.fromkeys(rows["gpu"]))
    return f"{gpu} is busy {span(float(busy.min()), float(busy.max()), ' %')} of the step{where}"


def family_sentence(shares: pd.DataFrame) -> str:
    """Which kernel family takes most of a model's device time.

    Args:
        shares: share of device time in % by point (rows) and family (columns).
    """
    first = str(shares.mean().idxmax())
    return f"{first} takes {span(float(shares[first].min()), float(shares[first].max()), ' %')} of the device time"


def throughput_sentence(rows: pd.DataFrame) -> str:
    """The largest throughput of one model, among the points that fit."""
    fits = rows[rows["fits"].astype(bool)]
    if fits.empty:
        return "no point fits the memory of its GPU"
    best = fits.iloc[int(fits["samples_per_s"].to_numpy().argmax())]
    return f"{best['gpu']} reaches {rate(float(best['samples_per_s']))} samples/s at batch {best['batch_size']:,}"


def within_sentence(errors: pd.Series, what: str, bound: float = 0.1) -> str:
    """How many relative errors are within a bound: `3 of 4 measured steps are within 10 %`."""
    inside = int((errors.abs() <= bound).sum())
    if len(errors) == 1:
        error = 100 * float(errors.iloc[0])
        return f"The {what.removesuffix('s')} is predicted {abs(error):.0f} % too {'short' if error < 0 else 'long'}"
    return f"{inside} of {len(errors)} {what} are within {100 * bound:.0f} %"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rate(per_second: float) -> str:
    """Samples per second with three or four digits."""
    if per_second < 100:
        return f"{per_second:.3g}"
    digits = max(0, int(np.floor(np.log10(per_second))) - 2)
    return f"{round(per_second, -digits):,.0f}"
