"""Figures of the two papers that no other figure covers: published numbers beside ours.

Lin et al. is the HiPC 2022 paper on DLRM, Habitat that of Yu et al. (ATC 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.published.published_errors import NETWORK_METHODS
from pipeline.palette import ACTIVE, IDLE, MEASURED, series_colours
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    MARKERS,
    WIDE,
    Board,
    Page,
    in_order,
    marks,
    rows_height,
    value_labels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED_IDLE = "#F5CBB0"
"""Measured idle time: a lighter `pipeline.palette.MEASURED`."""

FAMILY_NAMES = {
    "gemm": "matrix product", "bmm": "batched product", "conv2d_forward": "convolution",
    "elementwise": "element-wise", "layer_norm": "layer norm",
}  # fmt: skip
"""Names of the families with learned models."""

BAR = 0.38
"""Height of one of the two bars of a step, as a fraction of a row."""


def measured_beside_predicted(rows: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Active and idle time of measured steps, each above the predicted step: a panel per GPU and model, a row per batch.

    Args:
        rows: `predicted_dlrm` of `evaluation.checks.lin2022_steps`.
    """
    from matplotlib.patches import Patch

    panels = list(rows.groupby(["gpu", "model"], sort=False))
    board = Board(
        [1.6 * rows_height([str(size) for size in part["batch_size"]], page) for _, part in panels],
        page,
    )
    for axes, ((gpu, model), part) in zip(board.panels, panels, strict=True):
        where = np.arange(len(part))
        step, predicted = (
            part[name].to_numpy(float) / 1000 for name in ("measured_us", "predicted_us")
        )
        active = step * part["busy"].to_numpy(float), part["active_us"].to_numpy(float) / 1000
        for total, busy, shift, colours in (
            (step, active[0], -BAR / 2, (MEASURED, MEASURED_IDLE)),
            (predicted, active[1], BAR / 2, (ACTIVE, IDLE)),
        ):
            axes.barh(where + shift, busy, color=colours[0], height=BAR)
            axes.barh(where + shift, total - busy, left=busy, color=colours[1], height=BAR)
        errors = [f"{100 * error:+.0f} %".replace("-", "−") for error in part["error"]]
        value_labels(axes, np.maximum(step, predicted), errors)
        axes.set_xlim(0, 1.25 * float(np.maximum(step, predicted).max()))
        board.label_rows(axes, [f"{size:,}" for size in part["batch_size"]])
        board.number_ticks(axes)
        board.names(axes, "time of one step (ms)")
        board.title(axes, f"{model}, {gpu}")
    inside = int((rows["error"].abs() <= 0.1).sum())
    board.headline(f"{inside} of {len(rows)} measured DLRM steps are predicted to 10 %")
    names = ("measured: active", "measured: idle", "predicted: active", "predicted: idle")
    board.legend([Patch(color=colour) for colour in (MEASURED, MEASURED_IDLE, ACTIVE, IDLE)], names)
    board.note(
        "Rows: batch size; number: error of the predicted step. Measured: Lin et al., HiPC 2022."
    )
    return board.figure


def busy_shares(rows: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Busy share of each step, measured and by two predictions: a panel per GPU.

    Args:
        rows: as for `measured_beside_predicted`.
    """
    series = {
        "busy": "measured",
        "predicted_busy": "Steptime",
        "published_busy": "Lin et al., their prediction",
    }
    rows = rows.assign(predicted_busy=rows["active_us"] / rows["predicted_us"])
    colours = dict(zip(series, (MEASURED, ACTIVE, "#444444"), strict=True))
    gpus = distinct(rows["gpu"])
    steps = [
        f"{row.model.removeprefix('dlrm_')}, {row.batch_size:,}"
        for row in rows[rows["gpu"] == gpus[0]].itertuples()
    ]
    board = Board([rows_height(steps, page)] * len(gpus), page)
    for axes, gpu in zip(board.panels, gpus, strict=True):
        part = rows[rows["gpu"] == gpu]
        for column, marker in zip(series, MARKERS, strict=False):
            axes.plot(
                100 * part[column],
                np.arange(len(part)),
                marker,
                color=colours[column],
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.5,
            )
        axes.set_xlim(0, 100)
        board.label_rows(axes, steps, once=True)
        board.number_ticks(axes)
        board.names(axes, "busy share (%)")
        board.title(axes, str(gpu))
    off = {name: 100 * float((rows[name] - rows["busy"]).abs().mean()) for name in series}
    board.headline(
        f"Busy shares are {off['predicted_busy']:.0f} points off in the mean; "
        f"published predictions {off['published_busy']:.0f}"
    )
    board.legend(marks(colours.values()), list(series.values()))
    board.note(
        "Rows: DLRM model and batch size. Measured shares and published predictions: Lin et al.,"
        " HiPC 2022."
    )
    return board.figure


def bars_by_group(
    table: pd.DataFrame, headline: str, note: str, page: Page = WIDE, name: str = "error (%)"
) -> Figure:
    """Percentages: a row per group, a bar per series.

    Args:
        table: a row per group, a column per series, in their order.
        headline: what the figure shows.
        note: where the numbers come from.
        name: name of the axis.
    """
    from matplotlib.patches import Patch

    groups, colours = [str(group) for group in table.index], series_colours(map(str, table.columns))
    board = Board([rows_height(groups, page) * max(1.0, 0.6 * len(table.columns))], page)
    (axes,) = board.panels
    height = 0.84 / len(table.columns)
    for number, (series, values) in enumerate(table.items()):
        where = np.arange(len(table)) + height * (number - (len(table.columns) - 1) / 2)
        bars = axes.barh(where, values, height=0.9 * height, color=colours[str(series)])
        axes.bar_label(
            bars,
            [f"{value:.1f}" if np.isfinite(value) else "" for value in values],
            padding=3,
            fontsize=7.5,
        )
    board.label_rows(axes, groups)
    axes.set_xlim(left=0)
    board.number_ticks(axes)
    board.names(axes, name)
    board.headline(headline)
    board.legend([Patch(color=colour) for colour in colours.values()], list(colours))
    board.note(note)
    return board.figure


def mean_step_errors(means: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Errors of DLRM steps with own and shared overheads, and ours.

    Args:
        means: `published_means` of `evaluation.figures.accuracy_data`.
    """
    means = means.set_index(means.columns[0])
    theirs, _, ours = means.iloc[0].to_numpy(float)
    return bars_by_group(
        means,
        f"Predicted DLRM steps: GMAE {ours:.1f} %, published {theirs:.1f} %",
        "GMAE of the 12 steps of each GPU, and of all. Published: Lin et al., HiPC 2022, from its"
        " authors' code.",
        page,
    )


def methods_between_gpus(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Errors of kernels on another GPU by family: wave scaling, networks, and ours.

    Args:
        table: `methods_by_family` of `evaluation.figures.accuracy_data`.
    """
    table = in_family_order(table.set_index("family"), FAMILY_NAMES)
    means = table.mean()
    return bars_by_group(
        table,
        f"Kernels on another GPU: wave scaling {means['wave scaling']:.0f} % off, Steptime"
        f" {means['Steptime']:.0f} %",
        "Mean absolute error over the ordered pairs of V100, P100, P4, T4 and A100, above twice the"
        " latency floor; the destination was left out of training.",
        page,
    )


def in_family_order(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """A table by kernel family in the order of all figures, with readable names of families."""
    return table.reindex(in_order(table.index)).rename(index=dict(names))


def published_networks(rows: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Absolute errors of steps of convolutional networks by GPU: ours and published ones, each with colour and mark.

    Args:
        rows: `predicted_cnn` of `evaluation.checks.lin2022_steps`.
    """
    gpus = distinct(rows["gpu"])
    steps = distinct(zip(rows["model"], rows["batch_size"], strict=True))
    rows = rows.assign(ours=rows["error"].abs())
    series = {
        "ours": "Steptime",
        **{name: f"{name} (published)" for name in NETWORK_METHODS.values()},
    }
    colours = series_colours(series)
    labels = [f"{model}, batch {batch}" for model, batch in steps]
    board = Board([1.25 * rows_height(labels, page)] * len(gpus), page)
    for axes, gpu in zip(board.panels, gpus, strict=True):
        of_gpu = rows[rows["gpu"] == gpu]
        where = np.array(
            [steps.index(step) for step in zip(of_gpu["model"], of_gpu["batch_size"], strict=True)],
            float,
        )
        for number, (column, marker) in enumerate(zip(series, MARKERS, strict=False)):
            shift = 0.18 * (
                number - (len(series) - 1) / 2
            )  # shifted, so that equal errors do not hide each other
            axes.plot(
                100 * of_gpu[column],
                where + shift,
                marker,
                color=colours[column],
                markersize=6 if column == "ours" else 4.5,
                markeredgecolor="black",
                markeredgewidth=0.5,
                clip_on=False,
            )
        for row in range(0, len(steps), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
        axes.set_xlim(0, 105 * float(rows[list(series)].to_numpy().max()))
        board.label_rows(axes, labels, once=True)
        board.number_ticks(axes)
        board.names(axes, "|predicted / measured − 1| (%)")
        board.title(axes, str(gpu))
    means = ", ".join(
        f"{series[name].removesuffix(' (published)')} {100 * rows[name].mean():.1f} %"
        for name in series
    )
    board.headline(f"Mean error of {len(rows)} steps: {means}")
    board.legend(
        marks(colours.values(), markeredgecolor="black", markeredgewidth=0.5), list(series.values())
    )
    board.note("Measured steps and published errors: Lin et al., HiPC 2022.")
    return board.figure
