"""Figures of cross-GPU prediction: errors by origin and destination, per kernel family and per whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.palette import ACTIVE, series_colours
from pipeline.report.figures.layout import (
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
        page: what the figure is drawn for.
    """
    families = in_order(errors["family"])
    gpus = sorted(set(errors["origin"]) | set(errors["destination"]))
    colours, marks = series_colours(gpus), dict(zip(gpus, MARKERS * 4, strict=False))
    tables = [errors[errors["family"] == family] for family in families]
    names = [sorted(set(table["destination"])) for table in tables]
    figure, panels = board([rows_height(list(map(short_name, each)), page) for each in names], page)
    worst, matters = float(errors["mape"].max()), []
    for axes, family, table, rows in zip(panels, families, tables, names, strict=True):
        spread = table.groupby("destination")["mape"].agg(["mean", "min", "max"]).reindex(rows)
        axes.barh(range(len(rows)), spread["mean"], color=ACTIVE, height=0.62)
        if (spread["max"] - spread["min"]).max() >= EQUAL_PERCENT:
            matters.append(family)
            _origins(axes, table, rows, colours, marks)
        for y, (mean, most) in enumerate(zip(spread["mean"], spread["max"], strict=True)):
            value_label(axes, float(most), y, f"{mean:.0f}", gap=6)
        axes.set_xlim(0, worst)
        axes.set(xlabel="mean error (%)")
        number_ticks(axes.xaxis, 0.5 * page.width / page.columns)
        label_rows(axes, [f"to {short_name(gpu)}" for gpu in rows])
        panel_title(axes, family)
    mean = errors.groupby("family")["mape"].mean()
    headline(figure, f"Kernels on a GPU without samples: {mean.min():.0f} % mean error for {mean.idxmin()}, "
                     f"{mean.max():.0f} % for {mean.idxmax()}")  # fmt: skip
    if matters:
        legend_of(figure, *_marks({f"from {short_name(gpu)}": (colours[gpu], marks[gpu]) for gpu in gpus}))
    equal = [family for family in families if family not in matters]
    footnote(
        figure,
        "Mean |predicted / measured − 1| above twice the latency floor; the destination was left out of training.",
    )
    if equal:
        footnote(figure, f"The GPU that was measured makes no difference to {_listed(equal)}.")
    return finish(figure)


def errors_by_pair(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Mean error of whole models per pair of GPUs, with a panel per origin: the mean, and each model as a mark.

    Args:
        errors: columns model, origin, destination, mape (%), of one transfer method.
        page: what the figure is drawn for.
    """
    models, origins = sorted(set(errors["model"])), sorted(set(errors["origin"]))
    colours, marks = series_colours(models), dict(zip(models, MARKERS * 4, strict=False))
    tables = [errors[errors["origin"] == origin] for origin in origins]
    names = [sorted(set(table["destination"])) for table in tables]
    figure, panels = board([rows_height(list(map(short_name, each)), page) for each in names], page)
    worst = float(errors["mape"].max())
    for axes, origin, table, rows in zip(panels, origins, tables, names, strict=True):
        mean = table.groupby("destination")["mape"].mean().reindex(rows)
        most = table.groupby("destination")["mape"].max().reindex(rows)
        axes.barh(range(len(rows)), mean, color="#9ECAE9", height=0.62)
        for model in models:
            own = table[table["model"] == model]
            where = [rows.index(gpu) for gpu in own["destination"]]
            axes.plot(own["mape"], where, marks[model], color=colours[model], markersize=5, markeredgecolor="black",
                      markeredgewidth=0.5)  # fmt: skip
        for y, (value, end) in enumerate(zip(mean, most, strict=True)):
            value_label(axes, float(end), y, f"{value:.0f}", gap=6)
        axes.set_xlim(0, 1.04 * worst)
        axes.set(xlabel="mean error (%)")
        number_ticks(axes.xaxis, 0.5 * page.width / page.columns)
        label_rows(axes, [f"to {short_name(gpu)}" for gpu in rows])
        panel_title(axes, f"from {short_name(origin)}")
    pairs = errors.groupby(["origin", "destination"])["mape"].mean()
    habitat = published("transfer")[0]
    inside = int((pairs <= habitat.percent).sum())
    headline(
        figure,
        f"Whole models on another GPU: {inside} of {len(pairs)} pairs err by less than the published {habitat.percent:g} %",
    )
    legend_of(figure, *_marks({model: (colours[model], marks[model]) for model in models}))
    footnote(figure, f"Bar and number: mean over the models, |predicted / measured − 1| of a pass in %, method "
                     f"{errors['method'].iloc[0]}; the destination was left out of training. Published, other models and GPUs: "
                     f"{habitat.percent:g} % ({habitat.source}).")  # fmt: skip
    return finish(figure)


def steps_moved(passes: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured time of whole models, with a panel per origin GPU and a mark per destination.

    Args:
        passes: `passes_moved` of `pipeline.report.figures.figure_data`.
        page: what the figure is drawn for.
    """
    origins, gpus = sorted(set(passes["origin"])), sorted(set(passes["destination"]))
    figure, panels = board([1.9 if page.columns > 1 else 2.6] * len(origins), page, grid="both")
    times = passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6
    colours, marks = series_colours(gpus), dict(zip(gpus, MARKERS * 4, strict=False))
    for axes, origin in zip(panels, origins, strict=True):
        equality(axes, times)
        own = passes[passes["origin"] == origin]
        for gpu in gpus:
            some = own[own["destination"] == gpu]
            axes.plot(some["measured_us"] / 1e6, some["predicted_us"] / 1e6, marks[gpu], color=colours[gpu], markersize=5,
                      markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
        axes.set(xlabel="measured (s)", ylabel="predicted (s)")
        axes.margins(x=0)
        axes.set_ylim(axes.get_xlim())
        error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean())
        panel_title(axes, f"from {short_name(origin)}: {error:.0f} % off")
    error, waves = (100 * float((passes[name] / passes["measured_us"] - 1).abs().mean())
                    for name in ("predicted_us", "wave_us"))  # fmt: skip
    headline(figure, f"Whole models on another GPU are {error:.1f} % off in the mean; wave scaling alone {waves:.1f} %")
    legend_of(figure, *_marks({f"to {short_name(gpu)}": (colours[gpu], marks[gpu]) for gpu in gpus}))
    habitat = published("transfer")[0]
    footnote(figure, "Passes of language models; the destination was left out of training. Published, other models and GPUs: "
                     f"{habitat.percent:g} % ({habitat.source}). Line: equality; grey: within 10 %.")  # fmt: skip
    return finish(figure)


def short_name(gpu: str) -> str:
    """Name of a GPU without bus and memory, for labels."""
    for part in FULL_NAMES:
        gpu = gpu.replace(part, "")
    return gpu


def _origins(axes: Axes, table: pd.DataFrame, rows: list[str], colours: dict[str, str], marks: dict[str, str]) -> None:
    gpus = sorted(set(table["origin"]))
    for place, gpu in enumerate(gpus):
        own = table[table["origin"] == gpu]
        shift = 0.5 * ((place + 0.5) / len(gpus) - 0.5)
        axes.plot(own["mape"], np.array([rows.index(name) for name in own["destination"]]) + shift, marks[gpu], color=colours[gpu],
                  markersize=4.5, markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip


def _marks(shown: dict[str, tuple[str, str]]) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=colour, marker=mark, linestyle="none", markersize=5) for colour, mark in shown.values()
    ], list(shown)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
