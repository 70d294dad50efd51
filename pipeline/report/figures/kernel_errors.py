"""Figures of kernel models: errors per family, predicted against measured, and the distribution of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from pipeline.palette import ACTIVE, SERIES, series_colours
from pipeline.report.figures.layout import (
    LINE,
    WIDE,
    Page,
    board,
    finish,
    footnote,
    headline,
    label_rows,
    legend_of,
    panel_title,
    rows_height,
    value_label,
)
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import MARKERS, equality, in_order, number_ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

LINE_STYLES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
"""Styles of the lines of several GPUs, so that they also differ in grey."""


def predicted_against_measured(test: pd.DataFrame, title: str) -> Figure:
    """Scatter on logarithmic axes, one colour per op, with the line of equality and the band of 10 % around it.

    Args:
        test: held-out samples with `latency_us`, `predicted_us` and `op`.
        title: what was fitted, such as family and GPU.
    """
    figure, (axes,) = board([4.0], Page(5.5, 1, 2.0), grid="both")
    handles: list[Artist] = []
    names = []
    for colour, (op, rows) in zip(SERIES * 4, test.groupby("op", sort=True), strict=False):
        handles.append(
            axes.scatter(
                rows["latency_us"], rows["predicted_us"], s=5, alpha=0.5, color=colour, linewidths=0, rasterized=True
            )
        )
        names.append(str(op))
    equality(axes, test[["latency_us", "predicted_us"]].to_numpy(float))
    axes.set(xlabel="measured latency (µs)", ylabel="predicted latency (µs)")
    within = 100 * float(((test["predicted_us"] / test["latency_us"] - 1).abs() <= 0.1).mean())
    headline(figure, f"{title}: {within:.0f} % of {len(test):,} held-out calls are within 10 %")
    legend_of(figure, handles, names)
    return finish(figure)


def error_histogram(test: pd.DataFrame, title: str) -> Figure:
    """Histogram of predicted / measured - 1 in percent, cut at the 1st and 99th percentiles."""
    figure, (axes,) = board([2.6], Page(5.5, 1, 2.0), grid="y")
    error = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
    low, high = np.percentile(error, [1, 99])
    width = max(abs(low), abs(high), 0.5)
    axes.hist(np.clip(error, -width, width), bins=60, range=(-width, width), color=ACTIVE)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="predicted / measured − 1 (%)", ylabel="held-out calls")
    number_ticks(axes.xaxis, 4.0)
    headline(figure, f"{title}: half of the errors are between {_signed(error, 25)} and {_signed(error, 75)} %")
    return finish(figure)


def _signed(error: np.ndarray, percentile: float) -> str:
    return f"{np.percentile(error, percentile):+.1f}".replace("-", "−")


def family_errors(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Held-out error of every kernel model (geometric mean and mean), and the coverage of its intervals.

    Args:
        errors: `kernel_errors` table of `pipeline.report.figures.figure_data`: gpu, family, gmae, mape, coverage.
        page: what the figure is drawn for.
    """
    from matplotlib.lines import Line2D

    families, gpus = in_order(errors["family"]), list(dict.fromkeys(errors["gpu"]))
    colours = series_colours(gpus)
    each = rows_height(families, page) * max(1.0, 0.45 * len(gpus))
    figure, (left, right) = board([each, each], page, columns=2)
    step = 0.8 / len(gpus)
    for number, (gpu, marker) in enumerate(zip(gpus, MARKERS * 4, strict=False)):
        own = errors[errors["gpu"] == gpu]
        where = np.array([families.index(name) for name in own["family"]]) + step * (number - (len(gpus) - 1) / 2)
        left.hlines(where, 0, 100 * own["gmae"], color=colours[gpu], linewidth=1.2)
        left.plot(100 * own["gmae"], where, marker, color=colours[gpu], markersize=6)
        left.plot(100 * own["mape"], where, marker, color=colours[gpu], markerfacecolor="white", markersize=5)
        right.plot(100 * own["coverage"], where, marker, color=colours[gpu], markersize=6)
        if len(gpus) == 1:
            for y, (end, gmae) in enumerate(zip(own[["gmae", "mape"]].max(axis=1), own["gmae"], strict=True)):
                value_label(left, 100 * float(end), float(where[y]), f"{100 * gmae:.1f}", gap=6)
    bound = published("kernels")[0]
    left.axvline(bound.percent, color="black", linestyle="--", linewidth=1, zorder=1)
    left.set(xlabel="error on shapes not trained on (%)", xlim=(0, None))
    right.axvline(80, color="black", linewidth=1, linestyle="--", zorder=1)
    right.set(xlabel="calls inside p10 to p90 (%)")
    right.set_xlim(min(60.0, 100 * float(errors["coverage"].min()) - 2), 101)
    for axes in (left, right):
        number_ticks(axes.xaxis, 0.6 * page.width / min(2, page.columns))
        label_rows(axes, families)
    worst = errors.iloc[int(errors["gmae"].to_numpy().argmax())]
    below = (errors["gmae"] < bound.percent / 100).all()
    said = (
        f"Every kernel model errs by less than {bound.percent:g} %"
        if below
        else "Not every kernel model errs by less than 10 %"
    )
    headline(figure, f"{said}; {worst['family']} on {worst['gpu']} is least exact, {100 * worst['gmae']:.1f} %")
    panel_title(left, "Error")
    panel_title(right, "Coverage, target 80 %")
    handles: list[Artist] = [Line2D([], [], color=colours[gpu], marker=marker, linestyle="none")
                             for gpu, marker in zip(gpus, MARKERS * 4, strict=False)]  # fmt: skip
    handles += [Line2D([], [], color="black", marker="o", linestyle="none", markerfacecolor="white")]
    legend_of(figure, handles, [*gpus, "hollow: arithmetic mean"])
    footnote(figure, "Filled: GMAE, the geometric mean of the errors. Dashed: the published bound of every family "
                     f"({bound.source}), and the target of the intervals.")  # fmt: skip
    return finish(figure)


def error_histograms(histograms: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Distribution of the held-out errors, with a panel per family and a line per GPU.

    Args:
        histograms: `error_histograms` table: gpu, family, from_percent, to_percent, share.
        page: what the figure is drawn for.
    """
    from matplotlib.lines import Line2D

    families = in_order(histograms["family"])
    figure, panels = board([1.3] * len(families), page, grid="y")
    colours = series_colours(histograms["gpu"])
    styles = dict(zip(colours, LINE_STYLES * 9, strict=False))
    for axes, family in zip(panels, families, strict=True):
        for gpu, part in histograms[histograms["family"] == family].groupby("gpu", sort=False):
            edges = [*part["from_percent"], part["to_percent"].iloc[-1]]
            axes.stairs(100 * part["share"], edges, color=colours[str(gpu)], linestyle=styles[str(gpu)], linewidth=1.3)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(xlabel="error (%)", ylabel="calls (%)")
        number_ticks(axes.xaxis, 0.5 * page.width / page.columns)
        number_ticks(axes.yaxis, 6 * LINE)
        panel_title(axes, family)
    middle = (histograms["from_percent"] + histograms["to_percent"]) / 2 * histograms["share"]
    bias = middle.groupby([histograms["family"], histograms["gpu"]]).sum()
    largest = int(bias.abs().to_numpy().argmax())
    where = " on ".join(bias.index[largest])
    headline(figure, f"The largest bias is {bias.iloc[largest]:+.1f} %, of {where}".replace("-", "−", 1))
    legend_of(figure, [Line2D([], [], color=colours[gpu], linestyle=styles[gpu]) for gpu in colours], list(colours))
    footnote(figure, "Error: predicted / measured − 1 of held-out calls. The outermost bins include all larger errors.")
    return finish(figure)
