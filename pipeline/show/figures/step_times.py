"""Predicted steps: their table, and figures of their time and its parts, with a panel per model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.families import family_colour
from pipeline.palette import (
    ACTIVE,
    IDLE_STYLE,
    MEASURED,
    OTHER,
    text_on,
)
from pipeline.prediction import Prediction
from pipeline.readable import distinct, shares, short_time
from pipeline.show.figures.board import (
    WIDE,
    Board,
    Page,
    rows_height,
    spread,
    value_labels,
)
from pipeline.show.figures.figure_data import point_columns
from pipeline.show.sentences import family_sentence, on_one_host, step_sentence

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_SHARE = 3.0
"""Share of a point's device time, in %, from which a kernel family is shown by its name."""

LETTER_SHARE = 1.9
"""Share of the longest bar, in %, that a letter takes on the wide page; names and numbers are written where they fit."""

UNNAMED = {"idle": "#FFFFFF", "other families": OTHER}
"""Colours of parts of a step that are no kernel family."""

TOO_LARGE = " *"
"""Mark of a point that needs more memory than the GPU has."""

NAMES_OF = {"idle": "idle: the GPU waits"}
"""Names in legends of parts of a step that are no kernel family."""


def steps(points: Iterable[Prediction]) -> pd.DataFrame:
    """One row per predicted point.

    Args:
        points: predictions, of a `summary` table (`Prediction.all_of`) or in memory.

    Returns:
        A table of these columns.
        Point: gpu, workload (model, variant and batch size as one label), model_variant, batch_size.
        Times: predicted_us, active_us, idle_us, host_us, kernels_us (sum of all kernels), p10_us, p90_us, measured_us.
        Throughput: samples_per_s, low_samples_per_s, high_samples_per_s (p10 and p90).
        Other results: fits, bound, device_evidence, host_evidence, unmodelled_share, host, cards.
    """
    rows = [
        {
            **point_columns(p),
            **{name: getattr(p, name) for name in COLUMNS},
            "kernels_us": sum(p.families_us.values()) or np.nan,
            "measured_us": np.nan if p.measured_us is None else p.measured_us,
            "device_evidence": shares(p.evidence),
            "host_evidence": shares(p.host_evidence),
        }
        for p in points
    ]
    return pd.DataFrame(rows)


COLUMNS = (
    "predicted_us", "active_us", "idle_us", "host_us", "p10_us", "p90_us", "samples_per_s",
    "low_samples_per_s", "high_samples_per_s", "fits", "bound", "unmodelled_share", "host", "cards",
)  # fmt: skip
"""Columns of `steps` that are attributes of a prediction."""


def step_times(steps: pd.DataFrame, page: Page = WIDE, alike: pd.DataFrame | None = None) -> Figure:
    """Predicted steps with p10 to p90: a panel per model, a bar per GPU and batch size, whose hatched tail is idle time.

    Args:
        steps: from `steps`.
        page: what the figure is for.
        alike: the same steps on one host, which titles compare. Without them, titles say that hosts differ.
    """

    def draw(board: Board, axes: Axes, rows: pd.DataFrame) -> str:
        step_bars(board, axes, rows)
        same = rows if alike is None else alike
        compared = same[same["model_variant"] == rows["model_variant"].iloc[0]]
        return on_one_host(compared, step_sentence)

    board = panel_per_model(steps, page, draw)
    board.legend(*step_legend(bool(steps["measured_us"].notna().any())))
    return board.figure


def step_bars(board: Board, axes: Axes, rows: pd.DataFrame) -> None:
    """A bar per step, in the order of the rows: active time, then idle time, the interval, and the measured step if any."""
    where = np.arange(len(rows))
    longest = float(np.nanmax(rows[["p90_us", "predicted_us", "measured_us"]].to_numpy(float)))
    unit, name = _unit(longest)
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


def _unit(longest_us: float) -> tuple[float, str]:
    """The unit of an axis of times, as a factor on µs and as text."""
    return (1.0, "µs") if longest_us < 1000 else (1e-3, "ms")


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
        unit, name = _unit(longest)
        _stack(
            axes, share, time * unit, LETTER_SHARE * WIDE.width / page.width * longest * unit / 100
        )
        value_labels(axes, unit * time.sum(axis=1), map(short_time, time.sum(axis=1)))
        board.names(axes, f"time of one step ({name})")
        axes.set_xlim(left=0)
        board.number_ticks(axes)
        return family_sentence(share)

    board = panel_per_model(families, page, draw)
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
        colour = UNNAMED.get(family) or family_colour(family)
        style: dict[str, Any] = {"color": colour, "edgecolor": "white", "linewidth": 0.8}
        style = dict(IDLE_STYLE) if family == "idle" else style
        bars = axes.barh(np.arange(len(share)), width, left=left, height=0.7, **style)
        texts = [
            _fitting(number, family, letter, length)
            for number, length in zip(percent, width, strict=True)
        ]
        white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        box = white if family in UNNAMED else None
        axes.bar_label(
            bars, texts, label_type="center", fontsize=8, color=text_on(colour), bbox=box
        )
        left += width


def _fitting(percent: float, family: str, letter: float, length: float) -> str:
    """What is written into a part of a bar: name and number, the number alone, or nothing."""
    number = f"{percent:.0f}"
    for text in (f"{family} {number}", number):
        if letter * (len(text) + 1) < length and percent >= 1:
            return text
    return ""


def panel_per_model(
    table: pd.DataFrame, page: Page, draw: Callable[[Board, Axes, pd.DataFrame], str]
) -> Board:
    """Panels below each other, one per model, with a row per point; `draw` returns the title's sentence.

    Rows are sorted by batch size, and within one by GPU in the order of the grid, so that GPUs stand below each other.
    """
    order = {gpu: number for number, gpu in enumerate(dict.fromkeys(table["gpu"]))}
    ordered = table.assign(order=table["gpu"].map(order)).sort_values(
        ["batch_size", "order"], kind="stable"
    )
    of_model = dict(list(ordered.groupby("model_variant", sort=False)))
    parts = {
        model: of_model[model].reset_index(drop=True) for model in distinct(table["model_variant"])
    }
    labels = [_point_labels(part) for part in parts.values()]
    board = Board([rows_height(names, page) for names in labels], page, columns=1)
    for axes, (model, part), names in zip(board.panels, parts.items(), labels, strict=True):
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
