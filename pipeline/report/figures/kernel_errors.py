"""Figures of kernel models: errors per family, predicted against measured, and the distribution of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import (
    COLOURS,
    bar_height,
    equality,
    footnote,
    in_order,
    label_rows,
    legend_above,
    new_figure,
    new_panels,
    tiled_panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def predicted_against_measured(test: pd.DataFrame, title: str) -> Figure:
    """Scatter on logarithmic axes, one colour per op, with the line of equality and the band of 10 % around it.

    Args:
        test: held-out samples with `latency_us`, `predicted_us` and `op`.
    """
    figure, axes = new_figure(5.5, 5.0)
    for colour, (op, rows) in zip(COLOURS * 4, test.groupby("op", sort=True), strict=False):
        axes.scatter(rows["latency_us"], rows["predicted_us"], s=5, alpha=0.5, color=colour, label=str(op),
                     linewidths=0, rasterized=True)  # fmt: skip
    equality(axes, test[["latency_us", "predicted_us"]].to_numpy(float))
    axes.set(xlabel="measured latency (µs)", ylabel="predicted latency (µs)")
    axes.set_title(f"{title}: {len(test):,} held-out calls", loc="left", fontsize=10)
    axes.legend(frameon=False, markerscale=3, fontsize=9)
    return figure


def error_histogram(test: pd.DataFrame, title: str) -> Figure:
    """Histogram of predicted / measured - 1 in percent, cut at the 1st and 99th percentiles."""
    figure, axes = new_figure()
    error = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
    low, high = np.percentile(error, [1, 99])
    width = max(abs(low), abs(high), 0.5)
    axes.hist(np.clip(error, -width, width), bins=60, range=(-width, width), color=COLOURS[0])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="error of the predicted latency (%)", ylabel="held-out calls")
    axes.set_title(title, loc="left")
    return figure


def family_errors(errors: pd.DataFrame) -> Figure:
    """Held-out error of every kernel model (geometric mean and mean), and the coverage of its intervals.

    Args:
        errors: `kernel_errors` table of `pipeline.report.figures.figure_data`: gpu, family, gmae, mape, coverage.
    """
    families, gpus = in_order(errors["family"]), list(dict.fromkeys(errors["gpu"]))
    figure, panels = new_panels(2, width=9.5, height=bar_height(len(families) * max(1.0, 0.55 * len(gpus))) + 0.8)
    step = 0.8 / len(gpus)
    for number, (gpu, colour) in enumerate(zip(gpus, COLOURS * 3, strict=False)):
        own = errors[errors["gpu"] == gpu]
        where = np.array([families.index(name) for name in own["family"]]) + step * (number - (len(gpus) - 1) / 2)
        panels[0].barh(where, 100 * own["gmae"], height=0.85 * step, color=colour, label=str(gpu))
        panels[0].plot(100 * own["mape"], where, "|", color="black", markersize=4 + 24 * step / len(gpus) ** 0.5)
        panels[1].plot(100 * own["coverage"], where, "o", color=colour, markersize=5)
    panels[0].plot([], [], "|", color="black", label="arithmetic mean, ours")
    bound = published("kernels")[0]
    panels[0].axvline(bound.percent, color="black", linestyle="--", linewidth=1,
                      label=f"published: every GMAE below {bound.percent:g} % ({bound.source})")  # fmt: skip
    panels[0].set(xlabel="GMAE on shapes not trained on (%)", xlim=(0, None))
    panels[1].axvline(80, color="black", linewidth=0.8, linestyle=":")
    panels[1].set(xlabel="held-out calls inside p10 to p90 (%); target: 80")
    panels[1].set_xlim(min(50.0, 100 * float(errors["coverage"].min()) - 2), 101)
    for axes in panels:
        label_rows(axes, families)
    legend_above(figure, panels[0])
    return figure


def error_histograms(histograms: pd.DataFrame) -> Figure:
    """Distribution of the held-out errors, with a panel per family and a line per GPU.

    Args:
        histograms: `error_histograms` table: gpu, family, from_percent, to_percent, share.
    """
    families = in_order(histograms["family"])
    figure, panels = tiled_panels(len(families), (3.2, 2.2), grid="y")
    colours = dict(zip(dict.fromkeys(histograms["gpu"]), COLOURS * 3, strict=False))
    for axes, family in zip(panels, families, strict=True):
        for gpu, part in histograms[histograms["family"] == family].groupby("gpu", sort=False):
            edges = [*part["from_percent"], part["to_percent"].iloc[-1]]
            axes.stairs(100 * part["share"], edges, color=colours[gpu], linewidth=1.3, label=str(gpu))
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=family, xlabel="predicted / measured − 1 (%)", ylabel="held-out calls (%)")
        axes.legend(frameon=False, fontsize=7)
    footnote(figure, "The outermost bins include all larger errors.")
    return figure
