"""Host overheads of the operators with the most of them: their table and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.palette import MEASURED
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    WIDE,
    Board,
    Page,
    rows_height,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

OPERATORS_PER_STEP = 8
"""Number of operators per host and model in the figure of T2, T3 and T5."""

AS_PROFILED = "As profiled: recording an event costs the host time, which the statistics subtract."
TYPE_NAMES = {
    "T2": "before the first launch",
    "T3": "after the last launch",
    "T5": "between launches",
}
"""Types of host time inside an operator."""

SHORT_PREFIXES = {
    "autograd::engine::evaluate_function: ": "autograd: ",
    "torch::autograd::": "",
    "aten::": "",
}
"""Prefixes of operators' names and their short forms in figures, so that the panels have enough space."""

BOX = "#9ECAE9"
"""Colour of boxes and ranges; black lines and marks on it stay visible in grey."""


def dominant_operators(spread: pd.DataFrame, page: Page = WIDE) -> Figure:
    """T2, T3 and T5 of the operators with the most host time in them: mean, median, 5th to 95th percentile.

    Args:
        spread: `operators_with_most` table.
    """
    from matplotlib.lines import Line2D

    types = [name for name in TYPE_NAMES if (spread["type"] == name).any()]
    steps = list(spread.groupby(["gpu", "model"], sort=False))
    labels = [list(map(shorter, distinct(part["op"]))) for _, part in steps]
    board = Board(
        [rows_height(names, page) for names in labels for _ in types], page, columns=len(types)
    )
    for row, (((gpu, model), part), names) in enumerate(zip(steps, labels, strict=True)):
        operators = distinct(part["op"])
        step = f"{model}, " if model else ""
        for column, kind in enumerate(types):
            axes, times = board.panels[row * len(types) + column], part[part["type"] == kind]
            where = [operators.index(op) for op in times["op"]]
            axes.hlines(where, times["p5_us"], times["p95_us"], color=BOX, linewidth=6)
            axes.plot(
                times["median_us"], where, "|", color="black", markersize=9, markeredgewidth=1.5
            )
            axes.plot(times["mean_us"], where, "o", color=MEASURED, markersize=4)
            axes.set_xlim(left=0)
            first = column == 0 or board.columns == 1
            board.label_rows(axes, names, once=True)
            board.number_ticks(axes)
            board.names(axes, "host time (µs)")
            board.title(
                axes, (f"{step}host of {gpu}\n" if first else "") + f"{kind}: {TYPE_NAMES[kind]}"
            )
    largest = [
        f"{f'{model} on ' if model else ''}the host of {gpu}: most in {shorter(part['op'].iloc[0])}"
        for (gpu, model), part in steps
    ]
    board.headline(f"Host time of {'; '.join(largest)}")
    handles: list[Artist] = [
        Line2D([], [], color=BOX, linewidth=6),
        Line2D([], [], color="black", marker="|", linestyle="none"),
        Line2D([], [], color=MEASURED, marker="o", linestyle="none", markersize=4),
    ]
    board.legend(handles, ["5th to 95th percentile", "median", "mean"])
    board.note(AS_PROFILED)
    return board.figure


def shorter(name: str) -> str:
    """Name of an operator without the prefixes that most operators have."""
    for long, short in SHORT_PREFIXES.items():
        name = name.replace(long, short)
    return name


def operators_with_most(
    observations: pd.DataFrame, operators: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Spread of T2, T3 and T5, per host and model, of the operators with the most such time in a step, largest first.

    Args:
        observations: `overhead_samples` with a gpu column.
        operators: number of calls in a step, with the columns model, op, calls. Without it, the operators with the most time
            in the observations, and no model.

    Returns:
        The columns of `spread` by gpu, model, op and type.
    """
    inside = observations[observations["type"].isin(["T2", "T3", "T5"])]
    total = (
        inside.groupby(["gpu", "op"], sort=True)["value_us"].sum().rename("total_us").reset_index()
    )
    if operators is None or operators.empty:
        total = total.assign(model="")
    else:
        first = inside[inside["type"] == "T2"]
        seen = first.groupby(["gpu", "op"]).size().rename("seen").reset_index()
        total = total.merge(seen).merge(operators, on="op")
        total["total_us"] *= total["calls"] / total["seen"]
    total = total.sort_values(
        ["gpu", "model", "total_us"], ascending=[True, True, False], kind="stable"
    )
    largest = total.groupby(["gpu", "model"], sort=False).head(OPERATORS_PER_STEP)
    spreads = _spread(inside.merge(largest[["gpu", "op"]].drop_duplicates()), ["gpu", "op", "type"])
    # a merge keeps the order of its left side, and `spread` sorts by type
    return largest[["gpu", "model", "op"]].merge(spreads)


def _spread(observations: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Count, mean and quantiles of `value_us` per group: p5_us, p25_us, median_us, mean_us, p75_us, p95_us, count."""
    known = observations.dropna(subset=list(by))
    names = ["p5_us", "p25_us", "median_us", "p75_us", "p95_us"]
    if known.empty:
        return pd.DataFrame(columns=[*by, *names, "mean_us", "count"])
    groups = known.groupby(list(by), sort=True, observed=True)["value_us"]
    quantiles = groups.quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])).unstack()
    quantiles.columns = pd.Index(names)
    return quantiles.assign(mean_us=groups.mean(), count=groups.size()).reset_index()
