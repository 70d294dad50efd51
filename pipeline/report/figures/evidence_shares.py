"""Figures of predictions and public measurements: replayed traces, whole models, and the README's summary picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.palette import ACTIVE, SERIES, series_colours
from pipeline.report.figures.figure_data import FULL, KERNEL_SUM, REPLAY_METHODS
from pipeline.report.figures.layout import (
    FAMILY_ORDER,
    MARKERS,
    NOTE,
    WIDE,
    Board,
    Page,
    equality,
    in_order,
    plain_ticks,
    rows_height,
)
from pipeline.report.figures.published_errors import published

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_DRAWN_PERCENT = 0.02
"""Smallest error that is drawn, in %. Smaller ones are drawn at this value, because a logarithmic axis has no zero."""

FAMILY_NAMES = {"gemm": "matrix product", "bmm": "batched product", "conv2d_forward": "convolution",
                "elementwise": "element-wise", "layer_norm": "layer norm"}  # fmt: skip
"""Names of the learned families in the README's picture."""


def replay_errors(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Mean absolute error of the span per public trace, with a mark per prediction method.

    Args:
        errors: `mean_errors` of `pipeline.report.figures.figure_data`.
        page: what the figure is drawn for.
    """
    traces = list(dict.fromkeys(errors["trace"]))
    one_each = errors.drop_duplicates("trace").set_index("trace")
    labels = [f"{name} ({one_each.loc[name, 'device'].removeprefix('NVIDIA ')})" for name in traces]
    board = Board([1.2 * rows_height(labels, page)], page)
    (axes,) = board.panels
    methods = [name for name in REPLAY_METHODS if (errors["method"] == name).any()]
    handles: list[Artist] = []
    for number, (method, colour, marker) in enumerate(zip(methods, SERIES, MARKERS, strict=False)):
        of_method = errors[errors["method"] == method]
        shift = 0.5 * ((number + 0.5) / len(methods) - 0.5)  # shifted, so that equal errors do not hide each other
        where = np.array([traces.index(name) for name in of_method["trace"]]) + shift
        percent = np.maximum(100 * of_method["mean_error"].to_numpy(float), MIN_DRAWN_PERCENT)
        handles += axes.plot(percent, where, marker, color=colour, markersize=7 if number == 0 else 5.5, markeredgecolor="white",
                             markeredgewidth=0.5)  # fmt: skip
    for row in range(0, len(traces), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
    board.label_rows(axes, labels)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    board.names(axes, "mean |predicted / measured − 1| of an iteration's span (%)")
    ours = errors.loc[errors["method"] == methods[0], "mean_error"]
    board.headline(f"Replayed public traces: {100 * ours.mean():.1f} % mean error, {100 * ours.max():.1f} % at worst")
    board.legend(handles, methods)
    board.note("Kernel times given, host time and waiting predicted, from other iterations, ranks or machines.")
    return board.figure


def whole_models(passes: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured latency of whole language models, with a colour and mark per GPU.

    Args:
        passes: `predicted_passes` of `evaluation.checks.language_passes`.
        page: what the figure is drawn for.
    """
    board = Board([3.2], page, grid="both")
    board.legend(*draw_passes(board, board.panels[0], passes))
    error = 100 * (passes["predicted_us"] / passes["measured_us"] - 1).abs()
    board.headline(f"Whole language models: {error.mean():.1f} % mean error, {error.max():.1f} % at worst")
    board.note("fp32, inference and training passes measured by NeuSight; none of them was used in fitting. Line: equality; "
               "grey: within 10 %.")  # fmt: skip
    return board.figure


def result(kernels: pd.DataFrame, passes: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """The README's picture: kernel models, replayed traces and whole models, each compared with measurements.

    Args:
        kernels: `kernel_errors` table of `pipeline.report.figures.figure_data`.
        passes: `predicted_passes` of `evaluation.checks.language_passes`.
        errors: `mean_errors` of `pipeline.report.figures.figure_data`.
    """
    board = Board([3.0] * 3, Page(12.0, 3, 1.5), grid="both")
    left, middle, right = board.panels
    _kernel_dots(board, left, kernels)
    _replay_bars(board, middle, errors)
    handles, names = draw_passes(board, right, passes)
    right.legend(handles, names, frameon=False, fontsize=NOTE)
    board.title(left, "Kernel models")
    board.title(middle, "Steps of public traces, kernel times given")
    board.title(right, "Whole models, end to end")
    return board.figure


def _kernel_dots(board: Board, axes: Axes, kernels: pd.DataFrame) -> None:
    families = in_order(kernels.loc[kernels["family"].isin(FAMILY_ORDER), "family"])
    # these GPUs have one family in one dtype, so they share a mark
    half = kernels["gpu"].astype(str).str.endswith("(bf16)")
    series = kernels["gpu"].astype(str).where(~half, "newer GPUs, bf16")
    for (gpu, rows), colour, marker in zip(kernels.groupby(series, sort=True), SERIES, MARKERS, strict=False):
        rows = rows[rows["family"].isin(families)]
        where = [families.index(name) for name in rows["family"]]
        axes.plot(100 * rows["gmae"], where, marker, color=colour, markersize=6, label=_short(str(gpu)))
    bound = published("kernels")[0]
    axes.axvline(bound.percent, color="black", linestyle="--", linewidth=1, label="published bound")
    board.label_rows(axes, [FAMILY_NAMES.get(name, name) for name in families])
    board.names(axes, "GMAE on shapes not trained on (%)")
    axes.set_xlim(0, 1.05 * bound.percent)
    axes.legend(frameon=False, fontsize=NOTE, loc="lower right", bbox_to_anchor=(0.93, 0.0))


def _replay_bars(board: Board, axes: Axes, errors: pd.DataFrame) -> None:
    traces = list(dict.fromkeys(errors["trace"]))
    for method, colour, shift in ((FULL, ACTIVE, -0.2), (KERNEL_SUM, "#999999", 0.2)):
        of_method = errors[errors["method"] == method].set_index("trace").reindex(traces)
        percent = 100 * of_method["mean_error"].to_numpy(float)
        bars = axes.barh(np.arange(len(traces)) + shift, percent, height=0.36, color=colour, label=method)
        axes.bar_label(
            bars, [f"{value:.1f}" if np.isfinite(value) else "" for value in percent], padding=4, fontsize=NOTE
        )
    board.label_rows(axes, [name.replace("_", "\n", 1) for name in traces])
    board.names(axes, "mean error of an iteration's span (%)")
    axes.set_xlim(left=0)
    board.number_ticks(axes)
    axes.legend(frameon=False, fontsize=NOTE, loc="center right")


def draw_passes(board: Board, axes: Axes, passes: pd.DataFrame) -> tuple[list[Artist], list[str]]:
    """Draw predicted against measured passes; returns a mark per GPU and its name with the mean error."""
    equality(axes, passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6)
    handles: list[Artist] = []
    names = []
    for (gpu, colour), marker in zip(series_colours(sorted(set(passes["gpu"]))).items(), MARKERS * 4, strict=False):
        rows = passes[passes["gpu"] == gpu]
        error = 100 * float((rows["predicted_us"] / rows["measured_us"] - 1).abs().mean())
        handles += axes.plot(rows["measured_us"] / 1e6, rows["predicted_us"] / 1e6, marker, color=colour, markersize=6,
                             markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
        names.append(f"{_short(gpu)}: mean error {error:.1f} %")
    board.names(axes, "measured (s)", "predicted (s)")
    return handles, names


def _short(gpu: str) -> str:
    return gpu.replace("-PCIE-40GB", "").replace("-PCIE-80GB", " 80 GB")
