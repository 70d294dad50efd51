"""Figures of cross-GPU prediction: errors by origin and destination, per kernel family and per whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from evaluation.published.published_errors import published
from pipeline.palette import series_colours
from pipeline.show.figures.board import (
    MARKERS,
    WIDE,
    Board,
    Page,
    marks,
    rows_height,
    value_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL_NAMES = ("-PCIE-40GB", "-PCIE-80GB")
"""Parts of GPU names that figures leave out."""


def errors_by_pair(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Mean error of whole models per pair of GPUs, with a panel per origin: the mean, and each model as a mark.

    Args:
        errors: columns model, origin, destination, mape (%), of one transfer method.
    """
    models, origins = sorted(set(errors["model"])), sorted(set(errors["origin"]))
    colours, markers = series_colours(models), dict(zip(models, MARKERS * 4, strict=False))
    tables = [errors[errors["origin"] == origin] for origin in origins]
    destinations = [sorted(set(table["destination"])) for table in tables]
    board = Board([rows_height(list(map(_to, rows)), page) for rows in destinations], page)
    for axes, origin, table, rows in zip(board.panels, origins, tables, destinations, strict=True):
        mape = table.groupby("destination")["mape"].agg(["mean", "max"]).reindex(rows)
        axes.barh(range(len(rows)), mape["mean"], color="#9ECAE9", height=0.62)
        for model in models:
            errors_of = table[table["model"] == model]
            where = [rows.index(gpu) for gpu in errors_of["destination"]]
            axes.plot(
                errors_of["mape"],
                where,
                markers[model],
                color=colours[model],
                markersize=5,
                markeredgecolor="black",
                markeredgewidth=0.5,
            )
        value_labels(axes, mape["max"], [f"{mean:.0f}" for mean in mape["mean"]])
        _error_axis(board, axes, rows, 1.04 * float(errors["mape"].max()))
        board.title(axes, f"from {short_name(origin)}")
    pairs = errors.groupby(["origin", "destination"])["mape"].mean()
    habitat = published("transfer")[0]
    inside = int((pairs <= habitat.percent).sum())
    board.headline(
        f"Whole models on another GPU: {inside} of {len(pairs)} pairs err by less than the"
        f" published {habitat.percent:g} %"
    )
    board.legend(marks(colours.values()), models)
    board.note(
        "Bar and number: mean over the models, |predicted / measured − 1| of a pass in %, method"
        f" {errors['method'].iloc[0]}; the destination was left out of training. Published, other"
        f" models and GPUs: {habitat.percent:g} % ({habitat.source})."
    )
    return board.figure


def short_name(gpu: str) -> str:
    """Name of a GPU without bus and memory, for labels."""
    for part in FULL_NAMES:
        gpu = gpu.replace(part, "")
    return gpu


def _to(gpu: str) -> str:
    return f"to {short_name(gpu)}"


def _error_axis(board: Board, axes: Axes, rows: list[str], widest: float) -> None:
    axes.set_xlim(0, widest)
    board.label_rows(axes, list(map(_to, rows)))
    board.number_ticks(axes)
    board.names(axes, "mean error (%)")
