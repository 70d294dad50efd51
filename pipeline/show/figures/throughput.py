"""Figure of the throughput of predicted steps, with a panel per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pipeline.palette import series_colours
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    MARKERS,
    WIDE,
    Board,
    Page,
    number_ticks,
    spread,
)
from pipeline.show.sentences import on_one_host, throughput_sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 6
"""Greatest number of GPUs whose throughput is drawn: those with most."""


def over_batches(steps: pd.DataFrame) -> pd.DataFrame:
    """The `steps` of models with several batch sizes, on the GPUs with most samples per second."""
    sizes = steps.groupby("model_variant")["batch_size"].transform("nunique")
    best = steps.groupby("gpu")["samples_per_s"].max().nlargest(MOST_LINES).index
    return steps[(sizes > 1) & steps["gpu"].isin(best)]


def throughput(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Samples per second with p10 to p90: a panel per model, a line per GPU over the batch size.

    Args:
        steps: from `over_batches`.
        page: what the figure is for.
    """
    from matplotlib.lines import Line2D

    gpus = distinct(steps["gpu"])
    colours, markers = series_colours(gpus), dict(zip(gpus, MARKERS, strict=False))
    groups = list(steps.groupby("model_variant", sort=False))
    board = Board([2.0] * len(groups), page, columns=2, grid="y")
    for axes, (model, rows) in zip(board.panels, groups, strict=True):
        _throughput_lines(axes, rows, colours, markers)
        board.names(axes, "batch size (samples)", "samples/s")
        board.title(axes, f"{model}: {on_one_host(rows, throughput_sentence)}")
    handles = [
        Line2D([], [], color=colour, marker=markers[gpu], linewidth=1.3)
        for gpu, colour in colours.items()
    ]
    board.legend(handles, list(colours))
    board.note("Whiskers: p10 to p90.")
    if not steps["fits"].all():
        board.note("Hollow: the step needs more memory than the GPU has.")
    return board.figure


def _throughput_lines(
    axes: Axes, rows: pd.DataFrame, colours: dict[str, str], markers: dict[str, str]
) -> None:
    for gpu in distinct(rows["gpu"]):
        line = rows[rows["gpu"] == gpu].sort_values("batch_size")
        speed, low, high = (
            line[f"{end}samples_per_s"].to_numpy(float) for end in ("", "low_", "high_")
        )
        size = line["batch_size"].to_numpy(float)
        colour = colours[gpu]
        axes.errorbar(
            size,
            speed,
            yerr=spread(speed, low, high),
            color=colour,
            linewidth=1.3,
            elinewidth=1,
            capsize=2,
        )
        for fits in (True, False):
            shown = line["fits"].to_numpy(bool) == fits
            axes.plot(
                size[shown],
                speed[shown],
                markers[gpu],
                color=colour,
                markerfacecolor=colour if fits else "white",
                markersize=6,
            )
    sizes = sorted(set(rows["batch_size"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    if len(sizes) > 5:
        axes.tick_params(axis="x", rotation=45)
    axes.set_ylim(bottom=0)
    number_ticks(axes.yaxis)
