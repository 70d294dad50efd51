"""The figure of throughput and cost per GPU, drawn as in the evaluation of Surfer and Habitat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.palette import ACTIVE, SERIES
from pipeline.report.figures.layout import (
    GREY,
    TEXT,
    WIDE,
    Page,
    board,
    finish,
    footnote,
    label_rows,
    panel_title,
    rows_height,
    value_label,
)
from pipeline.report.figures.style import number_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MONEY = SERIES[1]
"""Colour of throughput per cost; that of throughput is the colour of active time."""


def value_for_money(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Throughput, and throughput per cost, of each GPU relative to the first: two panels per workload.

    Args:
        table: from `pipeline.report.figures.figure_data.value_for_money`; at least one GPU has a price.
        page: what the figure is drawn for.
    """
    models = list(dict.fromkeys(table["model_variant"]))
    parts = [table[table["model_variant"] == model] for model in models]
    labels = [[f"{row.gpu}, batch {row.batch_size:,}" for row in rows.itertuples()] for rows in parts]
    figure, panels = board([rows_height(names, page) for names in labels for _ in range(2)], page, columns=2)
    currency = table["currency"].dropna().iloc[0]
    for place, (model, rows, names) in enumerate(zip(models, parts, labels, strict=True)):
        left, right = panels[2 * place : 2 * place + 2]
        _bars(left, rows, "samples_per_s", rows, ACTIVE)
        priced = rows[rows["samples_per_dollar"].notna()]
        _bars(right, rows, "samples_per_dollar", priced, MONEY)
        left.set_xlabel("throughput, relative")
        right.set_xlabel(f"throughput per {currency}, relative")
        for axes in (left, right):
            number_ticks(axes.xaxis, 0.5 * page.width / min(2, page.columns))
            label_rows(axes, names if axes is left or page.columns == 1 else [""] * len(names))
        panel_title(left, model)
        panel_title(right, _winner(priced, currency))
    named = ", ".join(f"{row.gpu} {row.price_per_hour:.4g}" for row in _prices(table).itertuples())
    providers = ", ".join(dict.fromkeys(filter(None, table["provider"].dropna())))
    footnote(figure, f"Best batch of each GPU. {currency} per hour{f' ({providers})' if providers else ''}: {named}.")
    return finish(figure)


def _prices(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["price_per_hour"].notna()].drop_duplicates("gpu")


def _winner(priced: pd.DataFrame, currency: str) -> str:
    """The title of the right panel: which GPU gives most for the money."""
    if len(priced) < 2:
        return ""
    best = int(priced["samples_per_dollar"].to_numpy(float).argmax())
    return f"{priced['gpu'].iloc[best]} gives most per {currency}"


def _bars(axes: Axes, rows: pd.DataFrame, column: str, shown: pd.DataFrame, colour: str) -> None:
    """Bars of a column relative to its first known row, with their values and p10 to p90 of the throughput."""
    place = {index: number for number, index in enumerate(rows.index)}
    where = np.array([place[index] for index in shown.index])
    one = float(shown[column].iloc[0]) if len(shown) else 1.0
    value = shown[column].to_numpy(float) / one
    low, high = (
        value * (shown[f"{end}_samples_per_s"] / shown["samples_per_s"]).to_numpy(float) for end in ("low", "high")
    )
    axes.barh(where, value, color=colour, height=0.6)
    spread = np.maximum([value - low, high - value], 0.0)
    axes.errorbar(value, where, xerr=spread, fmt="none", ecolor="black", elinewidth=1, capsize=2)
    for y, end, text in zip(where, high, value, strict=True):
        value_label(axes, float(end), int(y), f"{text:.2f}")
    for index in rows.index.difference(shown.index):
        axes.text(0, place[index], " no price", va="center", fontsize=TEXT, color=GREY)
    axes.set_xlim(0, 1.02 * max(high, default=1.0))
