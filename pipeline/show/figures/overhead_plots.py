"""Figures of host overheads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pipeline.palette import MEASURED
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    NOTE,
    WIDE,
    Board,
    Page,
    plain_ticks,
    rows_height,
    value_labels,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AS_PROFILED = "As profiled: recording an event costs the host time, which the statistics subtract."
MIN_DRAWN_US = 0.5
"""Smallest time that is drawn, in µs: half the resolution of older profilers. A logarithmic axis has no zero."""

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

QUANTILES = {
    "p5_us": "whislo", "p25_us": "q1", "median_us": "med", "mean_us": "mean", "p75_us": "q3",
    "p95_us": "whishi",
}  # fmt: skip
"""Columns of a spread -> matplotlib's names of the parts of a box."""

BOX = "#9ECAE9"
"""Colour of boxes and ranges; black lines and marks on it stay visible in grey."""


def t1_by_workload(spread: pd.DataFrame, page: Page) -> Figure:
    """T1, the host time between top-level operators, with a box per profiled workload and a panel per host.

    Args:
        spread: `spread` table of `pipeline.show.figures.figure_data` by gpu and workload.
    """
    return _boxes(
        spread,
        "workload",
        "T1: host time between operators (µs)",
        "an operator follows another after",
        page,
    )


def t4_by_api(spread: pd.DataFrame, page: Page) -> Figure:
    """T4, the host time of a runtime call, with a box per call and a panel per host."""
    return _boxes(spread, "api", "T4: host time of the call (µs)", "a runtime call takes", page)


def dominant_operators(spread: pd.DataFrame, page: Page = WIDE) -> Figure:
    """T2, T3 and T5 of the operators with the most host time in them: mean, median, 5th to 95th percentile.

    Args:
        spread: `dominant_operators` table of `pipeline.show.figures.figure_data`.
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


def _boxes(spread: pd.DataFrame, by: str, what: str, says: str, page: Page) -> Figure:
    """Horizontal boxes from quantiles, on a logarithmic axis because overheads cover several decades."""
    hosts = list(spread.groupby("gpu", sort=False))
    board = Board([rows_height(list(part[by]), page) for _, part in hosts], page, columns=1)
    for axes, (gpu, part) in zip(board.panels, hosts, strict=True):
        _draw(axes, part)
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        board.label_rows(axes, list(part[by]))
        board.names(axes, what)
        low, high = float(part["median_us"].min()), float(part["median_us"].max())
        between = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
        board.title(axes, f"Host of {gpu}: {says} {between} µs in the median")
    board.note(
        "Box: quartiles; line: median; dot: mean; whiskers: 5th to 95th percentile; number: times"
        f" seen. Times below {MIN_DRAWN_US:g} µs are drawn there. {AS_PROFILED}"
    )
    return board.figure


def _draw(axes: Axes, part: pd.DataFrame) -> None:
    values = part[list(QUANTILES)].clip(lower=MIN_DRAWN_US).rename(columns=QUANTILES)
    axes.bxp(
        values.to_dict("records"),  # type: ignore[arg-type]
        positions=range(len(part)),
        orientation="horizontal",
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        widths=0.6,
        manage_ticks=False,
        boxprops={"facecolor": BOX, "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.5},
        meanprops={
            "marker": "o",
            "markersize": 4,
            "markerfacecolor": MEASURED,
            "markeredgecolor": MEASURED,
        },
    )
    ends = values[["whishi", "mean"]].max(axis=1)
    value_labels(axes, ends, [f"{count:,}" for count in part["count"]], NOTE)
