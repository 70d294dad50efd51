"""Figures of predicted steps: their time and its parts, throughput and cost, with a panel per model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.palette import ACTIVE, IDLE, MEASURED, OTHER, family_colour, series_colours
from pipeline.readable import short_time
from pipeline.report.figures.layout import (
    WIDE,
    Page,
    board,
    finish,
    footnote,
    label_rows,
    legend_of,
    page_of,
    panel_title,
    rows_height,
    segment_label,
    value_label,
)
from pipeline.report.figures.sentences import family_sentence, rate, step_sentence, throughput_sentence
from pipeline.report.figures.style import MARKERS, number_ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_SHARE = 3.0
"""Share of a point's device time, in %, from which a kernel family is shown by its name."""

MIN_LABEL = 8.0
"""Share, in %, from which a part of a bar shows its number."""

MOST_LINES = 6
"""Greatest number of GPUs whose throughput is drawn as lines; more are easier to compare as bars."""

HATCH = "////"
"""Hatch of the families that are drawn together, so that they differ from light colours in grey."""

TOO_LARGE = " *"
"""Mark of a point that needs more memory than the GPU has."""


def step_times(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted steps with p10 to p90: a panel per model, a bar per GPU and batch size, whose lighter tail is idle time.

    Args:
        steps: `steps` table of `pipeline.report.figures.step_table`.
        page: what the figure is drawn for.
    """

    def draw(axes: Axes, rows: pd.DataFrame) -> str:
        step_bars(axes, rows)
        return step_sentence(rows)

    figure = _panel_per_model(steps, page, draw)
    legend_of(figure, *step_legend(bool(steps["measured_us"].notna().any())))
    return finish(figure)


def step_bars(axes: Axes, rows: pd.DataFrame) -> None:
    """A bar per step, in the order of the rows: active time, then idle time, the interval, and the measured step if any."""
    where = np.arange(len(rows))
    longest = float(np.nanmax(rows[["p90_us", "predicted_us", "measured_us"]].to_numpy(float)))
    unit, name = (1.0, "µs") if longest < 1000 else (1e-3, "ms")
    step, active, low, high, measured = (
        unit * rows[column].to_numpy(float)
        for column in ("predicted_us", "active_us", "p10_us", "p90_us", "measured_us")
    )
    axes.barh(where, active, color=ACTIVE, height=0.62)
    axes.barh(where, step - active, left=active, color=IDLE, height=0.62)
    axes.errorbar(step, where, xerr=_spread(step, low, high), fmt="none", ecolor="black", elinewidth=1, capsize=2.5)
    axes.plot(
        measured, where, "D", color=MEASURED, markersize=5.5, markeredgecolor="white", markeredgewidth=0.8, zorder=4
    )
    ends = np.nanmax([step, high, measured], axis=0)
    for y, (end, us, share) in enumerate(zip(ends, rows["predicted_us"], active / step, strict=True)):
        value_label(axes, float(end), y, f"{short_time(us)}, {100 * share:.0f} % busy")
    axes.set_xlabel(f"time of one step ({name})")
    axes.set_xlim(left=0)
    number_ticks(axes.xaxis, 0.6 * page_of(axes).width)


def breakdown(families: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Device time by kernel family: a panel per model, a stacked bar per GPU and batch size.

    Args:
        families: `families` table of `pipeline.report.figures.figure_data`.
        page: what the figure is drawn for.
    """
    named: dict[str, float] = {}

    def draw(axes: Axes, rows: pd.DataFrame) -> str:
        time = rows.pivot_table(
            index=["gpu", "batch_size"], columns="family", values="device_us", aggfunc="sum", fill_value=0.0
        )
        keys = rows[["gpu", "batch_size"]].drop_duplicates()
        time = time.reindex(pd.MultiIndex.from_frame(keys))
        share = 100 * time.div(time.sum(axis=1), axis=0)
        large = share.columns[(share >= MIN_SHARE).any()]
        ordered = sorted(large, key=lambda family: -share[family].mean())
        for family in ordered:
            named[family] = named.get(family, 0.0) + float(share[family].mean())
        rest = share.drop(columns=ordered).sum(axis=1)
        left = np.zeros(len(share))
        parts = [(family, share[family].to_numpy(float), family_colour(family)) for family in ordered]
        for family, width, colour in [*parts, ("other families", rest.to_numpy(float), OTHER)]:
            axes.barh(np.arange(len(share)), width, left=left, color=colour, height=0.7, edgecolor="white", linewidth=0.8,
                      hatch=HATCH if colour == OTHER else None)  # fmt: skip
            for y in np.flatnonzero(width >= MIN_LABEL).tolist():
                number = f"{width[y]:.0f}"
                segment_label(axes, left[y], left[y] + width[y], y, (f"{family} {number}", number), colour)
            left += width
        for y, us in enumerate(time.sum(axis=1)):
            value_label(axes, 100.0, y, short_time(us))
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of device time (%)")
        axes.set_xticks([0, 20, 40, 60, 80, 100])
        return family_sentence(share)

    figure = _panel_per_model(families, page, draw)
    order = sorted(named, key=lambda family: -named[family])
    legend_of(figure, *_patches({**{family: family_colour(family) for family in order}, "other families": OTHER}))
    footnote(
        figure,
        f"Beside the bar: total device time. Families below {MIN_SHARE:g} % in every bar of a panel are drawn together.",
    )
    return finish(figure)


def throughput(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Samples per second with p10 to p90: a panel per model, a line per GPU over the batch size.

    A model with one batch size, and a grid of many GPUs, get bars.
    """
    gpus = list(dict.fromkeys(steps["gpu"]))
    several = bool((steps.groupby("model_variant")["batch_size"].nunique() > 1).all())
    colours, marks = series_colours(gpus), dict(zip(gpus, MARKERS * 4, strict=False))
    if several and len(gpus) <= MOST_LINES:
        models = list(dict.fromkeys(steps["model_variant"]))
        figure, panels = board([2.0] * len(models), page, columns=2, grid="y")
        for axes, model in zip(panels, models, strict=True):
            rows = steps[steps["model_variant"] == model]
            _throughput_lines(axes, rows, colours, marks)
            panel_title(axes, f"{model}: {throughput_sentence(rows)}")
        legend_of(figure, *_lines(colours, marks))
    else:
        figure = _panel_per_model(steps, page, _throughput_bars)
    note = (
        "Marks stand beside each other where GPUs are equally fast. " if several and 1 < len(gpus) <= MOST_LINES else ""
    )
    footnote(figure, f"{note}Whiskers: p10 to p90.")
    if not steps["fits"].all():
        footnote(figure, "Hollow: the step needs more memory than the GPU has.")
    return finish(figure)


def _throughput_bars(axes: Axes, rows: pd.DataFrame) -> str:
    speed, low, high = _speeds(rows)
    faces = [ACTIVE if fits else "white" for fits in rows["fits"]]
    axes.barh(np.arange(len(rows)), speed, height=0.62, color=faces, edgecolor=ACTIVE)
    axes.errorbar(
        speed,
        np.arange(len(rows)),
        xerr=_spread(speed, low, high),
        fmt="none",
        ecolor="black",
        elinewidth=1,
        capsize=2.5,
    )
    for y, (end, value) in enumerate(zip(np.maximum(speed, high), speed, strict=True)):
        value_label(axes, float(end), y, rate(value))
    axes.set_xlabel("throughput (samples/s)")
    axes.set_xlim(left=0)
    number_ticks(axes.xaxis, 0.6 * page_of(axes).width)
    return throughput_sentence(rows)


def _throughput_lines(axes: Axes, rows: pd.DataFrame, colours: dict[str, str], marks: dict[str, str]) -> None:
    gpus = list(dict.fromkeys(rows["gpu"]))
    for place, gpu in enumerate(gpus):
        line = rows[rows["gpu"] == gpu].sort_values("batch_size")
        speed, low, high = _speeds(line)
        size = line["batch_size"].to_numpy(float) * 1.045 ** (2 * place - len(gpus) + 1)
        axes.errorbar(
            size, speed, yerr=_spread(speed, low, high), color=colours[gpu], linewidth=1.3, elinewidth=1, capsize=2
        )
        for fits in (True, False):
            some = line["fits"].to_numpy(bool) == fits
            axes.plot(size[some], speed[some], marks[gpu], color=colours[gpu], markerfacecolor=colours[gpu] if fits else "white",
                      markersize=6)  # fmt: skip
    sizes = sorted(set(rows["batch_size"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    number_ticks(axes.yaxis, 4.0)
    axes.set(xlabel="batch size (samples)", ylabel="samples/s")


def _panel_per_model(table: pd.DataFrame, page: Page, draw: Callable[[Axes, pd.DataFrame], str]) -> Figure:
    """Panels below each other, one per model, with a row per point; `draw` returns the title's sentence.

    Rows are sorted by batch size, and within one by GPU in the order of the grid, so that GPUs stand below each other.
    """
    gpus = {gpu: place for place, gpu in enumerate(dict.fromkeys(table["gpu"]))}
    models = list(dict.fromkeys(table["model_variant"]))
    parts = [table[table["model_variant"] == model] for model in models]
    parts = [
        part.assign(place=part["gpu"].map(gpus))
        .sort_values(["batch_size", "place"], kind="stable")
        .reset_index(drop=True)
        for part in parts
    ]
    labels = [_point_labels(part) for part in parts]
    figure, panels = board([rows_height(names, page) for names in labels], page, columns=1)
    for axes, model, part, names in zip(panels, models, parts, labels, strict=True):
        said = draw(axes, part)
        sizes = part["batch_size"].unique()
        one = f", batch {sizes[0]:,}" if len(sizes) == 1 else ""
        panel_title(axes, f"{model}{one}: {said}")
        label_rows(axes, names)
    if any(name.endswith(TOO_LARGE) for names in labels for name in names):
        footnote(figure, "* The step needs more memory than the GPU has.")
    return figure


def _point_labels(rows: pd.DataFrame) -> list[str]:
    """Names of a model's points without what they have in common: GPU, batch size or both."""
    points = rows.drop_duplicates(["gpu", "batch_size"])
    one = points["batch_size"].nunique() == 1
    fits = points["fits"] if "fits" in points else np.ones(len(points), bool)
    return [
        (str(gpu) if one else f"{gpu}, batch {size:,}") + ("" if room else TOO_LARGE)
        for gpu, size, room in zip(points["gpu"], points["batch_size"], fits, strict=True)
    ]


def _speeds(rows: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Throughput with its p10 and p90, in samples per second."""
    batch = rows["batch_size"].to_numpy(float)
    return (
        rows["samples_per_s"].to_numpy(float),
        1e6 * batch / rows["p90_us"].to_numpy(float),
        1e6 * batch / rows["p10_us"].to_numpy(float),
    )


def _spread(
    middle: npt.NDArray[np.float64], low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.maximum([middle - low, high - middle], 0.0)


def _patches(colours: dict[str, str]) -> tuple[list[Artist], list[str]]:
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Patch(facecolor=colour, edgecolor="white", hatch=HATCH)
        if colour == OTHER
        else Patch(facecolor=colour, edgecolor="#777777", linewidth=0.4)
        for colour in colours.values()
    ]
    return handles, list(colours)


def _lines(colours: dict[str, str], marks: dict[str, str]) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=colours[name], marker=marks[name], linewidth=1.3) for name in colours], list(colours)


def step_legend(measured: bool) -> tuple[list[Artist], list[str]]:
    """Marks of `step_bars` and their names."""
    from matplotlib.lines import Line2D

    handles, names = _patches({"a kernel runs": ACTIVE, "idle: the GPU waits": IDLE})
    handles.append(Line2D([], [], color="black", marker="|", markersize=7, linewidth=1))
    names.append("p10 to p90")
    if measured:
        handles.append(Line2D([], [], color=MEASURED, marker="D", linestyle="none", markersize=5.5))
        names.append("measured, unprofiled")
    return handles, names
