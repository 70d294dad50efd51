"""Kernel models as pictures: predicted against measured, and the distribution of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.report.figures.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def predicted_against_measured(test: pd.DataFrame, title: str) -> Figure:
    """Scatter on logarithmic axes, one colour per op, with the identity line.

    Args:
        test: held-out samples with `latency_us`, `predicted_us` and `op`.
    """
    figure, axes = new_figure(5.5, 5.0)
    for colour, (op, rows) in zip(COLOURS * 4, test.groupby("op", sort=True), strict=False):
        axes.scatter(rows["latency_us"], rows["predicted_us"], s=5, alpha=0.5, color=colour, label=str(op), linewidths=0)
    low = float(min(test["latency_us"].min(), test["predicted_us"].min()))
    high = float(max(test["latency_us"].max(), test["predicted_us"].max()))
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured latency (µs)", ylabel="predicted latency (µs)")
    axes.set_title(f"{title}: {len(test):,} held-out calls", loc="left")
    axes.legend(frameon=False, markerscale=3, fontsize=8)
    return figure


def error_histogram(test: pd.DataFrame, title: str) -> Figure:
    """Histogram of predicted / measured - 1 in percent, cut at the 1st and 99th percentile."""
    figure, axes = new_figure()
    error = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
    low, high = np.percentile(error, [1, 99])
    width = max(abs(low), abs(high), 0.5)
    axes.hist(np.clip(error, -width, width), bins=60, range=(-width, width), color=COLOURS[0])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="error of the predicted latency (%)", ylabel="held-out calls")
    axes.set_title(title, loc="left")
    return figure
