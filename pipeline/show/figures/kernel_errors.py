"""Figures of kernel models: errors per family, predicted against measured, and the distribution of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from pipeline.arrays import Array
from pipeline.palette import series_colours
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    MARKERS,
    NOTE,
    WIDE,
    Board,
    Page,
    in_order,
    marks,
    number_ticks,
    rows_height,
    value_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_STYLES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
"""Styles of the lines of several GPUs, so that they also differ in grey."""


BOUND_PERCENT, BOUND_SOURCE = 10.0, "Lin et al., HiPC 2022"
"""Bound that the paper reports for the GMAE of every kernel family, in %, and the paper."""


def family_errors(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Held-out error of every kernel model (geometric mean and mean), and the coverage of its intervals.

    Args:
        errors: `kernel_errors` table of `pipeline.show.figures.figure_data`: gpu, family, gmae, mape, coverage.
    """
    from matplotlib.lines import Line2D

    families, gpus = in_order(errors["family"]), distinct(errors["gpu"])
    colours = series_colours(gpus)
    height = rows_height(families, page) * max(1.0, 0.45 * len(gpus))
    board = Board([height, height], page, columns=2)
    left, right = board.panels
    groups = errors.sort_values("family", key=lambda f: f.map(families.index)).groupby("gpu")
    for number, (gpu, marker) in enumerate(zip(gpus, MARKERS * 4, strict=False)):
        rows = groups.get_group(gpu)
        where = rows["family"].map(families.index).to_numpy(float)
        where = where + 0.8 / len(gpus) * (number - (len(gpus) - 1) / 2)
        _errors_of_gpu(left, rows, where, marker, colours[gpu], labelled=len(gpus) == 1)
        right.plot(100 * rows["coverage"], where, marker, color=colours[gpu], markersize=6)
    left.axvline(BOUND_PERCENT, color="black", linestyle="--", linewidth=1, zorder=1)
    left.set_xlim(left=0)
    right.axvline(80, color="black", linewidth=1, linestyle="--", zorder=1)
    right.set_xlim(min(60.0, 100 * float(errors["coverage"].min()) - 2), 101)
    for axes in (left, right):
        board.label_rows(axes, families, once=True)
        board.number_ticks(axes)
    board.names(left, "error on shapes not trained on (%)")
    board.names(right, "calls inside p10 to p90 (%)")
    worst = errors.iloc[int(errors["gmae"].to_numpy().argmax())]
    every = "Every" if (errors["gmae"] < BOUND_PERCENT / 100).all() else "Not every"
    least_exact = f"{worst['family']} on {worst['gpu']} is least exact, {100 * worst['gmae']:.1f} %"
    board.headline(f"{every} kernel model errs by less than {BOUND_PERCENT:g} %; {least_exact}")
    board.title(left, "Error")
    board.title(right, "Coverage, target 80 %")
    hollow = Line2D([], [], color="black", marker="o", linestyle="none", markerfacecolor="white")
    board.legend([*marks(colours.values()), hollow], [*gpus, "hollow: arithmetic mean"])
    board.note(
        "Filled: GMAE, the geometric mean of the errors. Dashed: the published bound of every"
        f" family ({BOUND_SOURCE}), and the target of the intervals."
    )
    return board.figure


def _errors_of_gpu(
    axes: Axes, rows: pd.DataFrame, where: Array, marker: str, colour: str, labelled: bool
) -> None:
    """The errors of one GPU's models: the geometric mean with a line from zero, and a hollow arithmetic mean."""
    gmae, mape = 100 * rows["gmae"], 100 * rows["mape"]
    axes.hlines(where, 0, gmae, color=colour, linewidth=1.2)
    axes.plot(gmae, where, marker, color=colour, markersize=6)
    axes.plot(mape, where, marker, color=colour, markerfacecolor="white", markersize=5)
    if not labelled:
        return
    value_labels(axes, mape, [f"{percent:.1f}" for percent in mape])
    above: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "va": "bottom",
        "fontsize": NOTE,
    }
    for percent, row in zip(gmae, where, strict=True):
        axes.annotate(f"{percent:.1f}", (percent, row), (0, 4), color=colour, **above)


def error_histograms(histograms: pd.DataFrame, page: Page) -> Figure:
    """Distribution of the held-out errors, with a panel per family and a line per GPU.

    Args:
        histograms: `error_histograms` table: gpu, family, from_percent, to_percent, share.
    """
    from matplotlib.lines import Line2D

    families = in_order(histograms["family"])
    board = Board([1.3] * len(families), page, grid="y")
    colours = series_colours(histograms["gpu"])
    styles = dict(zip(colours, LINE_STYLES * 9, strict=False))
    for axes, family in zip(board.panels, families, strict=True):
        for gpu, part in histograms[histograms["family"] == family].groupby("gpu", sort=False):
            edges = [*part["from_percent"], part["to_percent"].iloc[-1]]
            axes.stairs(
                100 * part["share"],
                edges,
                color=colours[str(gpu)],
                linestyle=styles[str(gpu)],
                linewidth=1.3,
            )
        axes.axvline(0, color="black", linewidth=0.8)
        board.names(axes, "error (%)", "calls (%)")
        board.number_ticks(axes)
        number_ticks(axes.yaxis, 3)
        board.title(axes, family)
    middle = (histograms["from_percent"] + histograms["to_percent"]) / 2 * histograms["share"]
    bias = middle.groupby([histograms["family"], histograms["gpu"]]).sum()
    largest = int(bias.abs().to_numpy().argmax())
    where = " on ".join(bias.index[largest])
    board.headline(
        f"The largest bias is {bias.iloc[largest]:+.1f} %, of {where}".replace("-", "−", 1)
    )
    board.legend(
        [Line2D([], [], color=colours[gpu], linestyle=styles[gpu]) for gpu in colours],
        list(colours),
    )
    board.note(
        "Error: predicted / measured − 1 of held-out calls. The outermost bins include all larger"
        " errors."
    )
    return board.figure
