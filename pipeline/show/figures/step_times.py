"""Predicted steps: their table, and figures of their time and its parts, and of throughput, with a panel per model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.families import family_colour
from pipeline.palette import (
    ACTIVE,
    IDLE_STYLE,
    MEASURED,
    OTHER,
    series_colours,
    text_on,
)
from pipeline.prediction import Prediction
from pipeline.readable import rate, short_time
from pipeline.show.figures.layout import (
    MARKERS,
    WIDE,
    Board,
    Page,
    number_ticks,
    rows_height,
    value_labels,
)
from pipeline.show.sentences import family_sentence, step_sentence, throughput_sentence

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_SHARE = 3.0
"""Share of a point's device time, in %, from which a kernel family is shown by its name."""

LETTER_SHARE = 1.9
"""Share of the longest bar, in %, that a letter takes on the wide page; names and numbers are written where they fit."""

MOST_LINES = 6
"""Greatest number of GPUs whose throughput is drawn as lines; more are easier to compare as bars."""

TOO_LARGE = " *"
"""Mark of a point that needs more memory than the GPU has."""

NAMES_OF = {"idle": "idle: the GPU waits"}
"""Names in legends of parts of a step that are no kernel family."""

Numbers = npt.NDArray[np.float64]


def steps(points: Iterable[Prediction]) -> pd.DataFrame:
    """One row per predicted point.

    Args:
        points: predictions, of a `summary` table (`Prediction.all_of`) or in memory.

    Returns:
        A table of these columns.
        Point: gpu, workload (model, variant and batch size as one label), model_variant, batch_size.
        Times: predicted_us, active_us, idle_us, host_us, kernels_us (sum of all kernels), p10_us, p90_us, measured_us.
        Other results: samples_per_s, fits, bound, device_evidence, host_evidence, unmodelled_share.
    """
    rows = [
        {
            "gpu": p.gpu,
            "workload": p.label,
            "model_variant": p.label.rpartition(" b")[0],
            "batch_size": p.batch_size,
            "predicted_us": p.predicted_us,
            "active_us": p.active_us,
            "idle_us": p.idle_us,
            "host_us": p.host_us,
            "kernels_us": sum(p.families_us.values()) or np.nan,
            "p10_us": p.p10_us,
            "p90_us": p.p90_us,
            "measured_us": np.nan if p.measured_us is None else p.measured_us,
            "samples_per_s": p.samples_per_s,
            "fits": p.fits,
            "bound": p.bound,
            "device_evidence": percentages(p.evidence),
            "host_evidence": percentages(p.host_evidence),
            "unmodelled_share": p.unmodelled_share,
        }
        for p in points
    ]
    return pd.DataFrame(rows)


def percentages(kinds: Mapping[str, float]) -> str:
    """Shares as text such as `pack 92 %, roofline 8 %`, largest first."""
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in ordered if share >= 0.005)


def step_times(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted steps with p10 to p90: a panel per model, a bar per GPU and batch size, whose hatched tail is idle time.

    Args:
        steps: from `steps`.
    """

    def draw(board: Board, axes: Axes, rows: pd.DataFrame) -> str:
        step_bars(board, axes, rows)
        return step_sentence(rows)

    board = _panel_per_model(steps, page, draw)
    board.legend(*step_legend(bool(steps["measured_us"].notna().any())))
    return board.figure


def step_bars(board: Board, axes: Axes, rows: pd.DataFrame) -> None:
    """A bar per step, in the order of the rows: active time, then idle time, the interval, and the measured step if any."""
    where = np.arange(len(rows))
    longest = float(np.nanmax(rows[["p90_us", "predicted_us", "measured_us"]].to_numpy(float)))
    unit, name = (1.0, "µs") if longest < 1000 else (1e-3, "ms")
    step, active, low, high, measured = (
        unit * rows[column].to_numpy(float)
        for column in ("predicted_us", "active_us", "p10_us", "p90_us", "measured_us")
    )
    axes.barh(where, active, color=ACTIVE, height=0.62)
    axes.barh(where, step - active, left=active, height=0.62, **IDLE_STYLE)
    axes.errorbar(
        step,
        where,
        xerr=spread(step, low, high),
        fmt="none",
        ecolor="black",
        elinewidth=1,
        capsize=2.5,
    )
    axes.plot(
        measured,
        where,
        "D",
        color=MEASURED,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
    )
    texts = [
        f"{short_time(us)}, {100 * share:.0f} % busy"
        for us, share in zip(rows["predicted_us"], active / step, strict=True)
    ]
    value_labels(axes, np.nanmax([step, high, measured], axis=0), texts)
    board.names(axes, f"time of one step ({name})")
    axes.set_xlim(left=0)
    board.number_ticks(axes)


def breakdown(families: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Time of a step by kernel family, and idle time: a panel per model, a stacked bar per GPU and batch size.

    Args:
        families: `families` table of `figure_data`.
    """
    named: dict[str, float] = {}

    def draw(board: Board, axes: Axes, rows: pd.DataFrame) -> str:
        time = rows.pivot_table(
            index=["gpu", "batch_size"],
            columns="family",
            values="device_us",
            aggfunc="sum",
            fill_value=0.0,
        )
        time = time.reindex(pd.MultiIndex.from_frame(rows[["gpu", "batch_size"]].drop_duplicates()))
        share = 100 * time.div(time.sum(axis=1), axis=0)
        for family in share.columns[(share >= MIN_SHARE).any()]:
            named[str(family)] = named.get(str(family), 0.0) + float(share[family].mean())
        longest = float(time.sum(axis=1).max())
        unit, name = (1.0, "µs") if longest < 1000 else (1e-3, "ms")
        _stack(
            axes, share, time * unit, LETTER_SHARE * WIDE.width / page.width * longest * unit / 100
        )
        value_labels(axes, unit * time.sum(axis=1), map(short_time, time.sum(axis=1)))
        board.names(axes, f"time of one step ({name})")
        axes.set_xlim(left=0)
        board.number_ticks(axes)
        return family_sentence(share)

    board = _panel_per_model(families, page, draw)
    order = sorted(named, key=lambda family: (family == "idle", -named[family]))
    board.legend(
        *_patches({**{family: family_colour(family) for family in order}, "other families": OTHER})
    )
    board.note(
        f"In the bars: % of the step. Families below {MIN_SHARE:g} % in every bar of a panel are"
        " drawn together."
    )
    return board.figure


def _stack(axes: Axes, share: pd.DataFrame, time: pd.DataFrame, letter: float) -> None:
    """Stacked bars, the largest family first, small ones together, idle time last.

    Args:
        axes: the panel.
        share: a row per bar, a column per family, in % of the step.
        time: the same as time.
        letter: width of a letter, as time.
    """
    large = [str(name) for name in share.columns[(share >= MIN_SHARE).any()] if name != "idle"]
    large.sort(key=lambda family: -share[family].mean())
    small = [name for name in share.columns if name not in large and name != "idle"]
    parts: dict[str, list[str]] = {name: [name] for name in large} | {"other families": small}
    parts |= {"idle": ["idle"]} if "idle" in share else {}
    left = np.zeros(len(share))
    for family, members in parts.items():
        width, percent = time[members].sum(axis=1).to_numpy(float), share[members].sum(axis=1)
        colour = (
            "#FFFFFF"
            if family == "idle"
            else OTHER
            if family == "other families"
            else family_colour(family)
        )
        bars = axes.barh(
            np.arange(len(share)), width, left=left, height=0.7, **_style(family, colour)
        )
        texts = [
            _fitting(number, family, letter, length)
            for number, length in zip(percent, width, strict=True)
        ]
        box = (
            {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            if family in ("idle", "other families")
            else None
        )
        axes.bar_label(
            bars, texts, label_type="center", fontsize=8, color=text_on(colour), bbox=box
        )
        left += width


def _style(family: str, colour: str) -> dict[str, Any]:
    """How a part of a bar is drawn."""
    if family == "idle":
        return dict(IDLE_STYLE)
    return {"color": colour, "edgecolor": "white", "linewidth": 0.8}


def _fitting(percent: float, family: str, letter: float, length: float) -> str:
    """What is written into a part of a bar: name and number, the number alone, or nothing."""
    number = f"{percent:.0f}"
    for text in (f"{family} {number}", number):
        if letter * (len(text) + 1) < length and percent >= 1:
            return text
    return ""


def throughput(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Samples per second with p10 to p90: a panel per model, a line per GPU over the batch size.

    A model with one batch size, and a grid of many GPUs, get bars.
    """
    gpus = list(dict.fromkeys(steps["gpu"]))
    several = bool((steps.groupby("model_variant")["batch_size"].nunique() > 1).all())
    if several and len(gpus) <= MOST_LINES:
        colours, markers = series_colours(gpus), dict(zip(gpus, MARKERS, strict=False))
        models = list(dict.fromkeys(steps["model_variant"]))
        board = Board([2.0] * len(models), page, columns=2, grid="y")
        for axes, model in zip(board.panels, models, strict=True):
            rows = steps[steps["model_variant"] == model]
            _throughput_lines(axes, rows, colours, markers)
            board.names(axes, "batch size (samples)", "samples/s")
            board.title(axes, f"{model}: {throughput_sentence(rows)}")
        board.legend(*_lines(colours, markers))
        if len(gpus) > 1:
            board.note("Marks stand beside each other where GPUs are equally fast.")
    else:
        board = _panel_per_model(steps, page, _throughput_bars)
    board.note("Whiskers: p10 to p90.")
    if not steps["fits"].all():
        board.note("Hollow: the step needs more memory than the GPU has.")
    return board.figure


def _throughput_bars(board: Board, axes: Axes, rows: pd.DataFrame) -> str:
    speed, low, high = _speeds(rows)
    faces = [ACTIVE if fits else "white" for fits in rows["fits"]]
    bars = axes.barh(
        np.arange(len(rows)),
        speed,
        height=0.62,
        color=faces,
        edgecolor=ACTIVE,
        xerr=spread(speed, low, high),
        error_kw={"elinewidth": 1, "capsize": 2.5},
    )
    axes.bar_label(bars, [rate(value) for value in speed], padding=4, fontsize=8.5)
    board.names(axes, "throughput (samples/s)")
    axes.set_xlim(left=0)
    board.number_ticks(axes)
    return throughput_sentence(rows)


def _throughput_lines(
    axes: Axes, rows: pd.DataFrame, colours: dict[str, str], markers: dict[str, str]
) -> None:
    gpus = list(dict.fromkeys(rows["gpu"]))
    for number, gpu in enumerate(gpus):
        line = rows[rows["gpu"] == gpu].sort_values("batch_size")
        speed, low, high = _speeds(line)
        size = line["batch_size"].to_numpy(float) * 1.045 ** (2 * number - len(gpus) + 1)
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


def _panel_per_model(
    table: pd.DataFrame, page: Page, draw: Callable[[Board, Axes, pd.DataFrame], str]
) -> Board:
    """Panels below each other, one per model, with a row per point; `draw` returns the title's sentence.

    Rows are sorted by batch size, and within one by GPU in the order of the grid, so that GPUs stand below each other.
    """
    order = {gpu: number for number, gpu in enumerate(dict.fromkeys(table["gpu"]))}
    ordered = table.assign(order=table["gpu"].map(order)).sort_values(
        ["batch_size", "order"], kind="stable"
    )
    models = list(dict.fromkeys(table["model_variant"]))
    parts = [ordered[ordered["model_variant"] == model].reset_index(drop=True) for model in models]
    labels = [_point_labels(part) for part in parts]
    board = Board([rows_height(names, page) for names in labels], page, columns=1)
    for axes, model, part, names in zip(board.panels, models, parts, labels, strict=True):
        board.label_rows(axes, names)
        sentence = draw(board, axes, part)
        sizes = part["batch_size"].unique()
        one = f", batch {sizes[0]:,}" if len(sizes) == 1 else ""
        board.title(axes, f"{model}{one}: {sentence}")
    if any(name.endswith(TOO_LARGE) for names in labels for name in names):
        board.note("* The step needs more memory than the GPU has.")
    return board


def _point_labels(rows: pd.DataFrame) -> list[str]:
    """Names of a model's points without what they have in common: GPU, batch size or both."""
    points = rows.drop_duplicates(["gpu", "batch_size"])
    one = points["batch_size"].nunique() == 1
    fits = points["fits"] if "fits" in points else np.ones(len(points), bool)
    return [
        (str(gpu) if one else f"{gpu}, batch {size:,}") + ("" if room else TOO_LARGE)
        for gpu, size, room in zip(points["gpu"], points["batch_size"], fits, strict=True)
    ]


def _speeds(rows: pd.DataFrame) -> tuple[Numbers, Numbers, Numbers]:
    """Throughput with its p10 and p90, in samples per second."""
    batch = rows["batch_size"].to_numpy(float)
    low, high = (1e6 * batch / rows[column].to_numpy(float) for column in ("p90_us", "p10_us"))
    return rows["samples_per_s"].to_numpy(float), low, high


def spread(middle: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Lengths of whiskers, as matplotlib's error bars take them."""
    return np.maximum([middle - low, high - middle], 0.0)


def _patches(colours: dict[str, str]) -> tuple[list[Artist], list[str]]:
    from matplotlib.patches import Patch

    patches: list[Artist] = [
        (
            Patch(**IDLE_STYLE)
            if name == "idle"
            else Patch(facecolor=colour, edgecolor="#777777", linewidth=0.4)
        )
        for name, colour in colours.items()
    ]
    return patches, [NAMES_OF.get(name, name) for name in colours]


def _lines(colours: dict[str, str], markers: dict[str, str]) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=colours[name], marker=markers[name], linewidth=1.3) for name in colours
    ], list(colours)


def step_legend(measured: bool) -> tuple[list[Artist], list[str]]:
    """Marks of `step_bars` and their names."""
    from matplotlib.lines import Line2D

    handles, names = _patches({"a kernel runs": ACTIVE, "idle": ""})
    handles.append(Line2D([], [], color="black", marker="|", markersize=7, linewidth=1))
    names.append("p10 to p90")
    if measured:
        handles.append(Line2D([], [], color=MEASURED, marker="D", linestyle="none", markersize=5.5))
        names.append("measured, unprofiled")
    return handles, names
