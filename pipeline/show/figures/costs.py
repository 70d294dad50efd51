"""Figures of cost: throughput for the money per GPU, as in the evaluation of Surfer and Habitat, and the front of a plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.answers.plan_results import Choice, Plan
from pipeline.answers.ties import why_tied
from pipeline.palette import ACTIVE, MONEY, series_colours
from pipeline.prediction_parts import JOULES_PER_KWH
from pipeline.show.figures.board import (
    MARKERS,
    TEXT,
    WIDE,
    Board,
    Page,
    plain_ticks,
    rows_height,
    spread,
)
from pipeline.show.sentences import gpus_named, on_one_host, tied_rows

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def value_for_money(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Throughput, and throughput per cost, of each GPU relative to the first: two panels per workload.

    Args:
        table: from `pipeline.show.figures.figure_data.value_for_money`; at least one GPU has a price.
    """
    parts = {
        str(model): part.reset_index(drop=True)
        for model, part in table.groupby("model_variant", sort=False)
    }
    labels = [
        [f"{row.gpu}, batch {row.batch_size:,}" for row in rows.itertuples()]
        for rows in parts.values()
    ]
    board = Board([rows_height(names, page) for names in labels for _ in range(2)], page, columns=2)
    currency = table["currency"].dropna().iloc[0]
    for number, ((model, rows), names) in enumerate(zip(parts.items(), labels, strict=True)):
        left, right = board.panels[2 * number : 2 * number + 2]
        for axes, column, colour in (
            (left, "samples_per_s", ACTIVE),
            (right, "samples_per_dollar", MONEY),
        ):
            board.label_rows(axes, names, once=True)
            _bars(axes, rows, column, colour)
            board.number_ticks(axes)
        board.names(left, "throughput, relative")
        board.names(right, f"throughput per {currency}, relative")
        board.title(left, model)
        priced = rows[rows["samples_per_dollar"].notna()]
        board.title(right, on_one_host(priced, partial(_winner, currency=currency)))
    priced = table[table["price_per_hour"].notna()].drop_duplicates("gpu")
    prices = ", ".join(f"{row.gpu} {row.price_per_hour:.4g}" for row in priced.itertuples())
    providers = ", ".join(dict.fromkeys(filter(None, table["provider"].dropna())))
    by = f" ({providers})" if providers else ""
    board.note(f"Best batch of each GPU. Whiskers: p10 to p90. {currency} per hour{by}: {prices}.")
    return board.figure


def _winner(priced: pd.DataFrame, currency: str) -> str:
    """The title of the right panel: which GPU gives most for the money, or which tie."""
    if len(priced) < 2:
        return ""
    priced = priced.sort_values("samples_per_dollar", ascending=False, kind="stable")
    tie = tied_rows(priced, "samples_per_dollar")
    if len(tie) > 1:
        return f"{gpus_named(list(tie['gpu']))} tie per {currency}: {why_tied(tie.itertuples())}"
    return f"{tie['gpu'].iloc[0]} gives most per {currency}"


def _bars(axes: Axes, rows: pd.DataFrame, column: str, colour: str) -> None:
    """Bars of a column relative to its first known row, with their values and p10 to p90 of the throughput."""
    known = rows[rows[column].notna()]
    value = (known[column] / known[column].iloc[0]).to_numpy(float) if len(known) else np.empty(0)
    low, high = (
        value * (known[f"{end}_samples_per_s"] / known["samples_per_s"]).to_numpy(float)
        for end in ("low", "high")
    )
    bars = axes.barh(
        known.index,
        value,
        color=colour,
        height=0.6,
        xerr=spread(value, low, high),
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.bar_label(bars, [f"{number:.2f}" for number in value], padding=4, fontsize=TEXT)
    for row in rows.index.difference(known.index):
        axes.text(0, row, " no price", va="center", fontsize=TEXT, color="#555555")
    axes.set_xlim(0, 1.02 * max(high, default=1.0))


def plan_front(plan: Plan) -> Figure:
    """Time against cost of a million samples: the front as a line, and the other best points.

    For an objective of energy, time against energy; without any price, against batch size.
    """
    of_energy = plan.objective.of_energy
    shown = list({choice.question: choice for choice in (*plan.front, *plan.contenders)}.values())
    priced = [choice for choice in shown if of_energy or choice.cost_per_sample is not None]

    def position(choice: Choice, end_us: float = 0.0) -> tuple[float, float]:
        """Where a point is, or would be if its step took `end_us`."""
        longer = end_us / choice.prediction.predicted_us if end_us else 1.0
        spent = choice.cost / JOULES_PER_KWH if of_energy else choice.cost_per_sample
        time = choice.us_per_sample * longer
        return time, 1e6 * spent * longer if spent else choice.question.batch_size

    shown = priced or shown
    board = Board([3.2], grid="both")
    (axes,) = board.panels
    handles: list[Artist] = []
    colours = series_colours(choice.question.gpu.name for choice in shown)
    for (gpu, colour), marker in zip(colours.items(), MARKERS * len(colours), strict=False):
        positions = [position(choice) for choice in shown if choice.question.gpu.name == gpu]
        handles += axes.plot(*zip(*positions, strict=True), marker, color=colour, label=gpu)
        for choice in (choice for choice in shown if choice.question.gpu.name == gpu):
            p = choice.prediction  # a longer step costs more: p10 to p90 lie on a slope
            reach = position(choice, p.p10_us), position(choice, p.p90_us)
            axes.plot(*zip(*reach, strict=True), ":", color=colour, linewidth=1, zorder=0)
    if priced:
        line = [position(choice) for choice in plan.front if choice in priced]
        handles += axes.plot(
            *zip(*line, strict=True), "-", color=ACTIVE, linewidth=1, zorder=1, label="front"
        )
    if plan.best in shown:
        axes.annotate(
            "best", position(plan.best), xytext=(6, 6), textcoords="offset points", fontsize=9
        )
    axes.set(xscale="log", yscale="log")
    plain_ticks(axes.xaxis, axes.yaxis)
    unit = "kWh" if of_energy else plan.currency
    cost = f"{plan.objective.spent} of a million samples ({unit})"
    board.names(axes, "time of a million samples (s)", cost if priced else "batch size")
    board.legend(handles, [str(handle.get_label()) for handle in handles])
    board.note(f"{plan.points:,} combinations, objective {plan.objective}. Dotted: p10 to p90.")
    board.note("; ".join(plan.prices))
    return board.figure
