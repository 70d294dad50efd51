"""Pictures of README.md and docs/accuracy.md: our errors beside measurements and published errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.checks.method_names import FULL, KERNEL_SUM
from evaluation.figures.measured_errors import draw_passes, short_gpu
from evaluation.figures.paper_figures import FAMILY_NAMES
from evaluation.published.published_errors import published
from pipeline.palette import ACTIVE, SERIES
from pipeline.readable import distinct
from pipeline.show.figures.board import FAMILY_ORDER, MARKERS, NOTE, Board, Page, in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def result(kernels: pd.DataFrame, passes: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """The README's picture: kernel models, replayed traces and whole models, each compared with measurements.

    Args:
        kernels: `kernel_errors` table of `evaluation.figures`.
        passes: `predicted_passes` of `evaluation.checks.language_passes`.
        errors: `mean_errors` of `evaluation.figures.accuracy_data`.
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
    for (gpu, rows), colour, marker in zip(
        kernels.groupby(series, sort=True), SERIES, MARKERS, strict=False
    ):
        rows = rows[rows["family"].isin(families)]
        where = [families.index(name) for name in rows["family"]]
        axes.plot(
            100 * rows["gmae"], where, marker, color=colour, markersize=6, label=short_gpu(str(gpu))
        )
    bound = published("kernels")[0]
    axes.axvline(bound.percent, color="black", linestyle="--", linewidth=1, label="published bound")
    board.label_rows(axes, [FAMILY_NAMES.get(name, name) for name in families])
    board.names(axes, "GMAE on shapes not trained on (%)")
    axes.set_xlim(0, 1.05 * bound.percent)
    axes.legend(frameon=False, fontsize=NOTE, loc="lower right", bbox_to_anchor=(0.93, 0.0))


def _replay_bars(board: Board, axes: Axes, errors: pd.DataFrame) -> None:
    traces = distinct(errors["trace"])
    for method, colour, shift in ((FULL, ACTIVE, -0.2), (KERNEL_SUM, "#999999", 0.2)):
        of_method = errors[errors["method"] == method].set_index("trace").reindex(traces)
        percent = 100 * of_method["mean_error"].to_numpy(float)
        bars = axes.barh(
            np.arange(len(traces)) + shift, percent, height=0.36, color=colour, label=method
        )
        axes.bar_label(
            bars,
            [f"{value:.1f}" if np.isfinite(value) else "" for value in percent],
            padding=4,
            fontsize=NOTE,
        )
    board.label_rows(axes, [name.replace("_", "\n", 1) for name in traces])
    board.names(axes, "mean error of an iteration's span (%)")
    axes.set_xlim(left=0)
    board.number_ticks(axes)
    axes.legend(frameon=False, fontsize=NOTE, loc="center right")
