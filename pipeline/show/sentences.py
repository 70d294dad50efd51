"""What a table of predicted steps says, in sentences: which GPU is faster or which tie, and what takes the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from pipeline.answers.host_share import hosts_differ
from pipeline.answers.ties import tied_gpus, why_tied
from pipeline.prediction import Prediction
from pipeline.prediction_rows import SURENESS
from pipeline.readable import MOST_CARDS, distinct, listed, rate, span

ALMOST_EQUAL = 1.1
"""Ratio of two step times below which it is stated in percent."""

HOSTS_DIFFER = "hosts differ: on one host see the brief"
"""Title of a figure of GPUs that their hosts make faster or slower, too."""

MOST_NAMED = 3
"""Number of GPUs of a tie that a title names; more are counted."""


def grid_title(predictions: Sequence[Prediction]) -> str:
    """The grid in words: models, GPUs and batch sizes."""
    models, gpus = (distinct(getattr(p, name) for p in predictions) for name in ("own_name", "gpu"))
    cards = listed(gpus) if len(gpus) <= MOST_CARDS else f"{len(gpus)} GPUs"
    sizes = listed([f"{size:,}" for size in sorted({p.batch_size for p in predictions})])
    return f"{listed(models)} on {cards}, batch {sizes}"


def weakest(predictions: Sequence[Prediction]) -> str:
    """The prediction that is least sure, and how sure it is."""
    order = ("measured", *(word for word, _ in SURENESS), "guess")
    p = max(predictions, key=lambda p: (order.index(p.sureness), p.p90_us / p.p10_us))
    word = "a guess" if p.sureness == "guess" else p.sureness
    which = (
        f"The weakest, {p.cards} at batch {p.batch_size:,}, is" if len(predictions) > 1 else "It is"
    )
    return f"{which} {word} (glossary: how sure)"


def step_sentence(rows: pd.DataFrame) -> str:
    """What the steps of one model say: which GPU is faster, or which tie and what limits them, by batch size.

    Args:
        rows: `steps` rows of one model.
    """
    table = rows.pivot_table(
        index="batch_size", columns="gpu", values="predicted_us", sort=False
    ).dropna()
    if table.shape[1] < 2 or table.empty:
        return _one_gpu(rows)
    groups: dict[tuple[str, ...], list[int]] = {}
    for size in sorted(table.index):
        groups.setdefault(tuple(tied_rows(rows[rows["batch_size"] == size])["gpu"]), []).append(
            size
        )
    texts = []
    for best, sizes in sorted(groups.items(), key=lambda group: -len(group[1]))[:2]:
        at = f" at batch {listed([f'{size:,}' for size in sizes])}" if len(groups) > 1 else ""
        texts.append(_group_sentence(best, table.loc[sizes], rows, at))
    return "; ".join(texts)


def tied_rows(rows: pd.DataFrame, value: str = "samples_per_s") -> pd.DataFrame:
    """The rows of different GPUs that tie with the largest throughput, or with the largest value in proportion to it."""
    middle = 1 / rows[value]
    low, high = (middle * rows[end] / rows["predicted_us"] for end in ("p10_us", "p90_us"))
    return rows[tied_gpus(list(zip(middle, low, high, strict=True)))]


def _group_sentence(best: tuple[str, ...], table: pd.DataFrame, rows: pd.DataFrame, at: str) -> str:
    """What holds at batch sizes at which the same GPUs are best.

    Args:
        best: one GPU, or those that tie.
        table: step time by batch size and GPU.
        rows: `steps` rows of the model.
        at: the batch sizes as words.
    """
    behind = [gpu for gpu in table.columns if gpu not in best]
    tied = rows[rows["gpu"].isin(best) & rows["batch_size"].isin(table.index)]
    why = why_tied(tied.itertuples()) if len(best) > 1 else ""
    if not behind:
        return f"{gpus_named(best)} tie{at}: {why}"
    worst = max(behind, key=lambda gpu: float(np.log(table[gpu]).mean()))
    ratio = table[worst] / table[list(best)].max(axis=1)
    low, high = float(ratio.min()), float(ratio.max())
    faster = (
        f"{span(100 * (low - 1), 100 * (high - 1), ' %')} faster than"
        if high < ALMOST_EQUAL
        else f"{span(low, high)} times as fast as"
    )
    if why:
        return f"{gpus_named(best)} tie{at} ({why}), {faster} {worst}"
    return f"{best[0]} is {faster} {worst}{at}"


def gpus_named(gpus: Sequence[str]) -> str:
    """Names of some GPUs, the number of many."""
    return listed(list(gpus)) if len(gpus) <= MOST_NAMED else f"{len(gpus)} GPUs"


def _one_gpu(rows: pd.DataFrame) -> str:
    busy = 100 * rows["active_us"] / rows["predicted_us"]
    bounds = set(rows["bound"])
    where = f", {bounds.pop()}-bound" if len(bounds) == 1 else ""
    gpu = ", ".join(dict.fromkeys(rows["gpu"]))
    return f"{gpu} is busy {span(float(busy.min()), float(busy.max()), ' %')} of the step{where}"


def on_one_host(rows: pd.DataFrame, says: Callable[[pd.DataFrame], str]) -> str:
    """What a sentence says about `steps` rows, with their host; no comparison of GPUs whose usual hosts differ."""
    if hosts_differ(zip(rows["gpu"], rows["host"], strict=True)):
        return HOSTS_DIFFER
    return (said := says(rows)) and said + on_hosts(rows)


def on_hosts(rows: pd.DataFrame) -> str:
    """The hosts of `steps` rows, as the end of a title."""
    hosts = " or ".join(filter(None, distinct(rows["host"])))
    return hosts and f", on {hosts}"


def family_sentence(shares: pd.DataFrame) -> str:
    """What takes most of a model's step.

    Args:
        shares: share of the step in % by point (rows) and family (columns), idle time too.
    """
    first = str(shares.mean().idxmax())
    name = "waiting for the host" if first == "idle" else first
    return (
        f"{name} takes {span(float(shares[first].min()), float(shares[first].max()), ' %')} of the"
        " step"
    )


def throughput_sentence(rows: pd.DataFrame) -> str:
    """The largest throughput of one model, or the GPUs that tie for it, among the points that fit."""
    fits = rows[rows["fits"].astype(bool)]
    if fits.empty:
        return "no point fits the memory of its GPU"
    best = fits.sort_values("samples_per_s", ascending=False, kind="stable").drop_duplicates("gpu")
    tie = tied_rows(best)
    speeds = [rate(float(value)) for value in tie["samples_per_s"]]
    if len(tie) == 1:
        return (
            f"{tie['cards'].iloc[0]} reaches {speeds[0]} samples/s at batch"
            f" {tie['batch_size'].iloc[0]:,}"
        )
    speeds = distinct(speeds)
    shown = listed(speeds) if len(speeds) <= MOST_NAMED else f"{speeds[-1]} to {speeds[0]}"
    return (
        f"{gpus_named(list(tie['cards']))} tie at {shown} samples/s: {why_tied(tie.itertuples())}"
    )
