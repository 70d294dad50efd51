"""Figures of cross-GPU prediction: errors by origin and destination, per kernel family and per whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.published.published_errors import published
from pipeline.palette import ACTIVE, series_colours
from pipeline.readable import listed
from pipeline.show.figures.board import (
    MARKERS,
    WIDE,
    Board,
    Page,
    equality,
    in_order,
    marks,
    rows_height,
    value_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EQUAL_PERCENT = 1.0
"""Difference between origins, in percentage points, below which they count as equal."""

FULL_NAMES = ("-PCIE-40GB", "-PCIE-80GB")
"""Parts of GPU names that figures leave out."""


def errors_by_destination(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Mean error of kernels carried to each GPU, with a panel per family: the mean over origins, and each origin as a mark.

    Args:
        errors: columns family, origin, destination, mape (%), of one transfer method.
    """
    families = in_order(errors["family"])
    gpus = sorted(set(errors["origin"]) | set(errors["destination"]))
    colours, markers = series_colours(gpus), dict(zip(gpus, MARKERS * 4, strict=False))
    tables = [errors[errors["family"] == family] for family in families]
    destinations = [sorted(set(table["destination"])) for table in tables]
    board = Board([rows_height(list(map(_to, rows)), page) for rows in destinations], page)
    origin_matters = []
    for axes, family, table, rows in zip(board.panels, families, tables, destinations, strict=True):
        mape = table.groupby("destination")["mape"].agg(["mean", "min", "max"]).reindex(rows)
        axes.barh(range(len(rows)), mape["mean"], color=ACTIVE, height=0.62)
        if (mape["max"] - mape["min"]).max() >= EQUAL_PERCENT:
            origin_matters.append(family)
            _origins(axes, table, rows, colours, markers)
        value_labels(axes, mape["max"], [f"{mean:.0f}" for mean in mape["mean"]])
        _error_axis(board, axes, rows, float(errors["mape"].max()))
        board.title(axes, family)
    mean = errors.groupby("family")["mape"].mean()
    board.headline(
        f"Kernels on a GPU without samples: {mean.min():.0f} % mean error for {mean.idxmin()}, "
        f"{mean.max():.0f} % for {mean.idxmax()}"
    )
    if origin_matters:
        board.legend(marks(colours.values()), [f"from {short_name(gpu)}" for gpu in gpus])
    board.note(
        "Mean |predicted / measured − 1| above twice the latency floor; the destination was left"
        " out of training."
    )
    if equal := [family for family in families if family not in origin_matters]:
        board.note(f"The GPU that was measured makes no difference to {listed(equal)}.")
    return board.figure


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


def steps_moved(passes: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured time of whole models, with a panel per origin GPU and a mark per destination.

    Args:
        passes: `passes_moved` of `evaluation.figures.accuracy_data`.
    """
    origins, gpus = sorted(set(passes["origin"])), sorted(set(passes["destination"]))
    board = Board([1.9 if page.columns > 1 else 2.6] * len(origins), page, grid="both")
    times = passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6
    colours, markers = series_colours(gpus), dict(zip(gpus, MARKERS * 4, strict=False))
    for axes, origin in zip(board.panels, origins, strict=True):
        equality(axes, times)
        of_origin = passes[passes["origin"] == origin]
        for gpu in gpus:
            moved = of_origin[of_origin["destination"] == gpu]
            axes.plot(
                moved["measured_us"] / 1e6,
                moved["predicted_us"] / 1e6,
                markers[gpu],
                color=colours[gpu],
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.4,
            )
        board.names(axes, "measured (s)", "predicted (s)")
        axes.margins(x=0)
        axes.set_ylim(axes.get_xlim())
        error = 100 * float((of_origin["predicted_us"] / of_origin["measured_us"] - 1).abs().mean())
        board.title(axes, f"from {short_name(origin)}: {error:.0f} % off")
    error, waves = (
        100 * float((passes[name] / passes["measured_us"] - 1).abs().mean())
        for name in ("predicted_us", "wave_us")
    )
    board.headline(
        f"Whole models on another GPU are {error:.1f} % off in the mean; wave scaling alone"
        f" {waves:.1f} %"
    )
    board.legend(marks(colours.values()), [_to(gpu) for gpu in gpus])
    habitat = published("transfer")[0]
    board.note(
        "Passes of language models; the destination was left out of training. Published, other"
        f" models and GPUs: {habitat.percent:g} % ({habitat.source}). Line: equality; grey: within"
        " 10 %."
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


def _origins(
    axes: Axes,
    table: pd.DataFrame,
    rows: list[str],
    colours: dict[str, str],
    markers: dict[str, str],
) -> None:
    gpus = sorted(set(table["origin"]))
    for number, gpu in enumerate(gpus):
        from_gpu = table[table["origin"] == gpu]
        where = np.array([rows.index(name) for name in from_gpu["destination"]]) + 0.5 * (
            (number + 0.5) / len(gpus) - 0.5
        )
        axes.plot(
            from_gpu["mape"],
            where,
            markers[gpu],
            color=colours[gpu],
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
        )
