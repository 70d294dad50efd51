"""Figures of host overheads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.overheads.op_names import HOST_TYPES
from pipeline.report.figures.style import (
    COLOURS,
    bar_height,
    footnote,
    label_rows,
    legend_above,
    new_figure,
    new_panels,
    plain_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AS_PROFILED = "As profiled: recording an event costs the host time, which the statistics subtract."
MIN_DRAWN_US = 0.5
"""Smallest time that is drawn, in µs: half the resolution of older profilers. A logarithmic axis has no zero."""

TYPE_NAMES = {"T2": "T2: before the first launch", "T3": "T3: after the last launch", "T5": "T5: between launches"}
SHORT_PREFIXES = {"autograd::engine::evaluate_function: ": "autograd: ", "torch::autograd::": "", "aten::": ""}
"""Prefixes of operators' names and their short forms in figures, so that the panels have enough space."""


def overhead_types(observations: pd.DataFrame, title: str) -> Figure:
    """One box per overhead type (T1 to T5) on a logarithmic axis; whiskers go from the 5th to the 95th percentile."""
    figure, axes = new_figure()
    types = [name for name in HOST_TYPES if (observations["type"] == name).any()]
    values = [observations.loc[observations["type"] == name, "value_us"].clip(lower=0.05).to_numpy() for name in types]
    if types:
        boxes = axes.boxplot(values, whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6)
        for patch, colour in zip(boxes["boxes"], COLOURS, strict=False):
            patch.set(facecolor=colour, alpha=0.7)
        for line in boxes["medians"]:
            line.set_color("black")
        axes.set_xticks(range(1, len(types) + 1), [f"{n}\n{len(v):,} seen" for n, v in zip(types, values, strict=True)])
    axes.set_yscale("log")
    axes.set_ylabel("time (µs), as profiled")
    axes.set_title(f"Host overheads, {title}", loc="left")
    return figure


def t1_by_workload(spread: pd.DataFrame) -> Figure:
    """T1, the host time between top-level operators, with a box per profiled workload and a panel per host.

    Args:
        spread: `spread` table of `pipeline.report.figures.figure_data` by gpu and workload.
    """
    return _boxes(spread, "workload", "T1: host time between operators (µs)")


def t4_by_api(spread: pd.DataFrame) -> Figure:
    """T4, the host time of a runtime call, with a box per call and a panel per host."""
    return _boxes(spread, "api", "T4: host time of the call (µs)")


def dominant_operators(spread: pd.DataFrame) -> Figure:
    """T2, T3 and T5 of the operators with the most host time in them: mean, median, 5th to 95th percentile.

    Args:
        spread: `spread` table by gpu, type and op.
    """
    hosts = list(dict.fromkeys(spread["gpu"]))
    types = [name for name in TYPE_NAMES if (spread["type"] == name).any()]
    most = max(spread.groupby("gpu")["op"].nunique())
    figure, panels = new_panels(len(types), len(hosts), width=10.0, height=(bar_height(most) + 0.2) * len(hosts))
    for row, gpu in enumerate(hosts):
        own = spread[spread["gpu"] == gpu]
        labels = list(dict.fromkeys(own["op"]))
        for axes, kind in zip(panels[row * len(types) :], types, strict=False):
            part = own[own["type"] == kind]
            where = [labels.index(op) for op in part["op"]]
            axes.hlines(where, part["p5_us"], part["p95_us"], color=COLOURS[4], linewidth=5)
            axes.plot(part["median_us"], where, "|", color="black", markersize=9, markeredgewidth=1.5, label="median")
            axes.plot(part["mean_us"], where, "o", color=COLOURS[5], markersize=4, label="mean")
            title = TYPE_NAMES[kind].replace(": ", "\n", 1) + (f", host of {gpu}" if len(hosts) > 1 else "")
            axes.set(xlabel="host time (µs)")
            axes.set_title(title, fontsize=9)
            axes.set_xlim(left=0)
            label_rows(axes, [_shorter(name) for name in labels])
    legend_above(figure, panels[0], columns=2)
    footnote(figure, f"Bar: 5th to 95th percentile. {AS_PROFILED}")
    return figure


def _shorter(name: str) -> str:
    for long, short in SHORT_PREFIXES.items():
        name = name.replace(long, short)
    return name


def _boxes(spread: pd.DataFrame, by: str, what: str) -> Figure:
    """Horizontal boxes from quantiles, on a logarithmic axis because overheads cover several decades."""
    hosts = list(dict.fromkeys(spread["gpu"]))
    labels = list(dict.fromkeys(spread[by]))
    figure, panels = new_panels(
        len(hosts), width=max(2.6 + 3.2 * len(hosts), 7.0), height=bar_height(len(labels)) + 0.4
    )
    for axes, gpu in zip(panels, hosts, strict=True):
        part = spread[spread["gpu"] == gpu]
        _draw(axes, part, [labels.index(label) for label in part[by]])
        axes.set(xscale="log", xlabel=what, title=f"host of {gpu}")
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.08)  # space for the numbers after the longest whiskers
        plain_ticks(axes.xaxis)
        label_rows(axes, labels)
    footnote(figure, "Box: quartiles; line: median; dot: mean; whiskers: 5th to 95th percentile; number: times seen. "
                     f"Times below {MIN_DRAWN_US:g} µs are drawn there. {AS_PROFILED}")  # fmt: skip
    return figure


def _draw(axes: Axes, part: pd.DataFrame, where: list[int]) -> None:
    names = {
        "whislo": "p5_us",
        "q1": "p25_us",
        "med": "median_us",
        "mean": "mean_us",
        "q3": "p75_us",
        "whishi": "p95_us",
    }
    values = {key: np.maximum(part[column].to_numpy(float), MIN_DRAWN_US) for key, column in names.items()}
    stats = [{key: float(column[i]) for key, column in values.items()} for i in range(len(part))]
    axes.bxp(
        stats, positions=where, orientation="horizontal", showfliers=False, showmeans=True, patch_artist=True,
        widths=0.6,
        boxprops={"facecolor": COLOURS[4], "linewidth": 0.8}, medianprops={"color": "black", "linewidth": 1.5},
        meanprops={"marker": "o", "markersize": 4, "markerfacecolor": COLOURS[5], "markeredgecolor": COLOURS[5]},
    )  # fmt: skip
    for y, (end, count) in zip(where, zip(values["whishi"], part["count"], strict=True), strict=True):
        axes.annotate(f"{count:,}", (end, y), (4, 0), "data", "offset points", va="center", fontsize=7, color="#555555")
