"""Figure of a step's kernels under the roofs of its GPU: FLOPs per byte against FLOP/s (Williams et al., CACM 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.errors import InputError
from pipeline.families import FAMILIES, family_colour
from pipeline.families.family import Law
from pipeline.palette import OTHER
from pipeline.prediction import Prediction
from pipeline.readable import milliseconds
from pipeline.show.figures.board import (
    LETTER,
    NOTE,
    TEXT,
    WIDE,
    Board,
    Page,
    plain_ticks,
)
from pipeline.show.figures.figure_data import DRAWN
from pipeline.show.figures.python_plots import shown_by_notebooks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT, LARGEST = 3.6, 900.0
"""Height of the panel in inches, and area of the largest mark in square points."""

COLOURED, LABELLED = 7, 5
"""Number of families with a colour of their own, and of kernels with a label."""

SMALL, LEAST_INTENSITY, LEAST_SHARE = 0.0005, 0.01, 0.001
"""Share of the kernels' time, FLOPs per byte, and share of its roof below which a kernel has no mark, for short axes."""

NEAR = 0.25
"""Share of its roof below which a kernel is too small, or too badly shaped, to be limited by it."""


def kernels_of(prediction: Prediction) -> pd.DataFrame:
    """Kernels of a step by operator and size, longest first; copies to and from the host and collectives are left out.

    Returns:
        `family`, `op`, `dtype`, `evidence`; `us` and `calls`, time and number of all equal calls; `intensity`, FLOPs per
        byte; `tflop_per_s` achieved; `roof_tflop_per_s`, the largest possible at this intensity; `memory`, whether this roof is
        the memory's. `intensity` is 0 for kernels without arithmetic.

    Raises:
        InputError: the prediction has no kernels with FLOPs.
    """
    a = prediction.arithmetic
    if prediction.calls is None or a is None or a.dram_gb_per_s is None:
        raise InputError(
            "roofline: the step was traced, read from a table, or computes no products; ask"
            " predict() about a model"
        )
    calls = prediction.calls
    elsewhere = [
        name for name, family in FAMILIES.items() if family.law in (Law.LINK, Law.COLLECTIVE)
    ]
    calls = calls[
        calls["device_end_us"].notna() & ~calls["family"].isin(elsewhere) & (calls["kernel_us"] > 0)
    ]
    moved = calls["bytes_read"] + calls["bytes_written"]
    keys = ["family", "op", "dtype", "evidence", "flops", "moved", "kernel_us"]
    groups = calls.assign(moved=moved).groupby(keys, sort=False, dropna=False)
    table = groups.size().rename("calls").reset_index()
    table["us"] = table["kernel_us"] * table["calls"]
    table["intensity"] = table["flops"] / table["moved"].clip(lower=1.0)
    table["tflop_per_s"] = table["flops"] / table["kernel_us"] / 1e6
    peak = table["dtype"].map(dict(a.peaks_tflop_per_s)).fillna(a.peaks_tflop_per_s[a.dtype])
    slope = table["intensity"] * a.dram_gb_per_s / 1e3
    table["memory"], table["roof_tflop_per_s"] = slope < peak, np.minimum(slope, peak)
    return table.sort_values("us", ascending=False, kind="stable").reset_index(drop=True)


def roofline_table(steps: Sequence[Prediction]) -> pd.DataFrame:
    """The kernels of the fastest step, as `kernels_of`; its attribute `DRAWN` is the step. Empty without a step that has them."""
    able = [p for p in steps if p.calls is not None and p.arithmetic and p.arithmetic.dram_gb_per_s]
    if not able:
        return pd.DataFrame()
    fastest = min(able, key=lambda p: p.predicted_us)
    table = kernels_of(fastest)
    table.attrs[DRAWN] = fastest
    return table


def draw_roofline(prediction: Prediction, page: Page = WIDE) -> Figure:
    """A mark per kernel: area is time, colour its family; lines are datasheet peaks of the GPU."""
    p, table = prediction, kernels_of(prediction)
    total = float(table["us"].sum())
    arithmetic = (table["intensity"] >= LEAST_INTENSITY) & (
        table["tflop_per_s"] >= LEAST_SHARE * table["roof_tflop_per_s"]
    )
    drawn = table[arithmetic & (table["us"] >= SMALL * total)]
    board = Board([HEIGHT], page, grid="both")
    (axes,) = board.panels
    times = drawn.groupby("family")["us"].sum().sort_values(ascending=False, kind="stable")
    named = list(times.index[:COLOURED])
    for family, rows in drawn.groupby("family", sort=False):
        areas = np.maximum(LARGEST * rows["us"] / table["us"].max(), 4.0)
        colour = family_colour(str(family)) if family in named else OTHER
        axes.scatter(
            rows["intensity"],
            rows["tflop_per_s"],
            s=areas,
            facecolor=colour,
            edgecolor="#222222",
            linewidth=0.8,
        )
    axes.set(xscale="log", yscale="log")
    _roofs(axes, p, drawn)
    _labels(axes, drawn, page)
    plain_ticks(axes.xaxis, axes.yaxis)
    board.names(axes, "FLOPs per byte of memory traffic", "TFLOP/s")
    memory, far = (
        float(table.loc[rows, "us"].sum()) / total
        for rows in (table["memory"], table["tflop_per_s"] < NEAR * table["roof_tflop_per_s"])
    )
    hidden = 1 - float(drawn["us"].sum()) / total
    board.headline(
        f"{100 * memory:.0f} % of the kernels' time is limited by memory, {100 * (1 - memory):.0f}"
        " % by arithmetic"
    )
    board.title(axes, f"{p.title}: {milliseconds(p.predicted_us)}")
    _legend(board, named, drawn["family"].nunique() > len(named))
    board.note(
        f"Area is time. {100 * far:.0f} % of it is in kernels that reach less than a quarter of"
        " their roof."
    )
    if hidden >= 0.005:
        board.note(
            f"Not drawn: kernels with hardly any arithmetic and very short ones, {100 * hidden:.0f}"
            " % of the time."
        )
    return shown_by_notebooks(board.figure)


def _roofs(axes: Axes, p: Prediction, drawn: pd.DataFrame) -> None:
    """The memory's roof, up to the highest peak, and a roof per dtype; each has its value beside it."""
    assert p.arithmetic is not None and p.arithmetic.dram_gb_per_s is not None
    peaks, slope = dict(p.arithmetic.peaks_tflop_per_s), p.arithmetic.dram_gb_per_s / 1e3
    top = max(peaks.values())
    left, right = (
        float(drawn["intensity"].min()) / 3,
        25 * max(float(drawn["intensity"].max()), top / slope),
    )
    axes.set_xlim(left, right)
    axes.set_ylim(min(float(drawn["tflop_per_s"].min()) / 3, left * slope), 3 * top)
    axes.plot([left, top / slope], [left * slope, top], color="#333333", linewidth=1.2)
    for dtype, peak in peaks.items():
        axes.plot([peak / slope, right], [peak, peak], color="#333333", linewidth=1.2)
        _beside(axes, f"{dtype} {peak:.3g} TFLOP/s", right, peak)
    _beside(axes, f"memory {p.arithmetic.dram_gb_per_s:,.0f} GB/s", top / slope / 5, top / 5)


def _beside(axes: Axes, text: str, x: float, y: float) -> None:
    """Write a text above the left of a point."""
    axes.annotate(text, (x, y), (-3, 3), textcoords="offset points", ha="right", fontsize=NOTE)


def _labels(axes: Axes, drawn: pd.DataFrame, page: Page) -> None:
    """Names of the longest kernels, of one family each, in the empty corner, with lines to their marks."""
    largest = (
        drawn.drop_duplicates("family")
        .head(LABELLED)
        .sort_values("intensity", ascending=False, kind="stable")
    )
    rows = largest.to_dict("records")
    texts = [
        f"{row['calls']} × " * (row["calls"] > 1)
        + f"{str(row['family']).replace('_', ' ')}, {milliseconds(row['us'])}"
        for row in rows
    ]
    left = 0.98 - LETTER * TEXT * max(map(len, texts)) / (page.width - 0.8)
    line = {"arrowstyle": "-", "linewidth": 0.5, "color": "#555555", "shrinkA": 0, "shrinkB": 0}
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        at = 0.36 - 0.075 * number
        axes.text(left, at, text, transform=axes.transAxes, fontsize=TEXT, va="center")
        axes.annotate(
            "",
            (row["intensity"], row["tflop_per_s"]),
            (left - 0.01, at),
            textcoords="axes fraction",
            arrowprops=line,
        )


def _legend(board: Board, named: list[str], others: bool) -> None:
    from matplotlib.patches import Patch

    colours = {name.replace("_", " "): family_colour(name) for name in named}
    colours |= {"other families": OTHER} if others else {}
    handles = [Patch(facecolor=colour, edgecolor="#222222") for colour in colours.values()]
    board.legend(handles, list(colours))
