"""Figures of predictions and public measurements: replayed traces, whole models, and the README's summary picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.palette import ACTIVE, SERIES, series_colours
from pipeline.report.figures.figure_data import FULL, KERNEL_SUM, REPLAY_METHODS
from pipeline.report.figures.layout import (
    NOTE,
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
from pipeline.report.figures.style import FAMILY_ORDER, MARKERS, equality, in_order, number_ticks, plain_ticks

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
    figure, (axes,) = board([1.2 * rows_height(labels, page)], page)
    methods = [name for name in REPLAY_METHODS if (errors["method"] == name).any()]
    handles: list[Artist] = []
    for number, (method, colour, marker) in enumerate(zip(methods, SERIES, MARKERS, strict=False)):
        own = errors[errors["method"] == method]
        shift = 0.5 * ((number + 0.5) / len(methods) - 0.5)  # shifted, so that equal errors do not hide each other
        where = np.array([traces.index(name) for name in own["trace"]]) + shift
        percent = np.maximum(100 * own["mean_error"].to_numpy(float), MIN_DRAWN_PERCENT)
        handles += axes.plot(percent, where, marker, color=colour, markersize=7 if number == 0 else 5.5, markeredgecolor="white",
                             markeredgewidth=0.5)  # fmt: skip
    for row in range(0, len(traces), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
    label_rows(axes, labels)
    axes.set(xscale="log", xlabel="mean |predicted / measured − 1| of an iteration's span (%)")
    plain_ticks(axes.xaxis)
    ours = errors.loc[errors["method"] == methods[0], "mean_error"]
    headline(figure, f"Replayed public traces: {100 * ours.mean():.1f} % mean error, {100 * ours.max():.1f} % at worst")
    legend_of(figure, handles, methods)
    footnote(figure, "Kernel times given, host time and waiting predicted, from other iterations, ranks or machines.")
    return finish(figure)


def whole_models(passes: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured latency of whole language models, with a colour and mark per GPU.

    Args:
        passes: `predicted_passes` of `evaluation.checks.language_passes`.
        page: what the figure is drawn for.
    """
    figure, (axes,) = board([3.2], page, grid="both")
    legend_of(figure, *_passes(axes, passes))
    error = 100 * (passes["predicted_us"] / passes["measured_us"] - 1).abs()
    headline(figure, f"Whole language models: {error.mean():.1f} % mean error, {error.max():.1f} % at worst")
    footnote(figure, "fp32, inference and training passes measured by NeuSight; none of them was used in fitting. Line: equality; "
                     "grey: within 10 %.")  # fmt: skip
    return finish(figure)


def result(kernels: pd.DataFrame, passes: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """The README's picture: kernel models, replayed traces and whole models, each compared with measurements.

    Args:
        kernels: `kernel_errors` table of `pipeline.report.figures.figure_data`.
        passes: `predicted_passes` of `evaluation.checks.language_passes`.
        errors: `mean_errors` of `pipeline.report.figures.figure_data`.
    """
    figure, panels = board([3.0] * 3, Page(12.0, 3, 1.5), grid="both")
    _kernel_dots(panels[0], kernels)
    _replay_bars(panels[1], errors)
    handles, names = _passes(panels[2], passes)
    panels[2].legend(handles, names, frameon=False, fontsize=NOTE)
    panel_title(panels[0], "Kernel models")
    panel_title(panels[1], "Steps of public traces, kernel times given")
    panel_title(panels[2], "Whole models, end to end")
    return finish(figure)


def _kernel_dots(axes: Axes, kernels: pd.DataFrame) -> None:
    families = in_order(kernels.loc[kernels["family"].isin(FAMILY_ORDER), "family"])
    # these GPUs have one family in one dtype, so they share a mark
    half = kernels["gpu"].astype(str).str.endswith("(bf16)")
    series = kernels["gpu"].astype(str).where(~half, "newer GPUs, bf16")
    for (gpu, own), colour, marker in zip(kernels.groupby(series, sort=True), SERIES, MARKERS, strict=False):
        own = own[own["family"].isin(families)]
        where = [families.index(name) for name in own["family"]]
        axes.plot(100 * own["gmae"], where, marker, color=colour, markersize=6, label=_short(str(gpu)))
    bound = published("kernels")[0]
    axes.axvline(bound.percent, color="black", linestyle="--", linewidth=1, label="published bound")
    label_rows(axes, [FAMILY_NAMES.get(name, name) for name in families])
    axes.set(xlabel="GMAE on shapes not trained on (%)", xlim=(0, 1.05 * bound.percent))
    axes.legend(frameon=False, fontsize=NOTE, loc="lower right", bbox_to_anchor=(0.93, 0.0))


def _replay_bars(axes: Axes, errors: pd.DataFrame) -> None:
    traces = list(dict.fromkeys(errors["trace"]))
    for method, colour, shift in ((FULL, ACTIVE, -0.2), (KERNEL_SUM, "#999999", 0.2)):
        own = errors[errors["method"] == method].set_index("trace").reindex(traces)
        percent = 100 * own["mean_error"].to_numpy(float)
        where = np.arange(len(traces)) + shift
        axes.barh(where, percent, height=0.36, color=colour, label=method)
        for y, value in zip(where, percent, strict=True):
            if np.isfinite(value):
                value_label(axes, float(value), float(y), f"{value:.1f}", size=NOTE)
    label_rows(axes, [name.replace("_", "\n", 1) for name in traces])
    axes.set(xlabel="mean error of an iteration's span (%)")
    axes.set_xlim(left=0)
    number_ticks(axes.xaxis, 2.0)
    axes.legend(frameon=False, fontsize=NOTE, loc="center right")


def _passes(axes: Axes, passes: pd.DataFrame) -> tuple[list[Artist], list[str]]:
    """Draw predicted against measured passes; returns a mark per GPU and its name with the mean error."""
    equality(axes, passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6)
    handles: list[Artist] = []
    names = []
    for (gpu, colour), marker in zip(series_colours(sorted(set(passes["gpu"]))).items(), MARKERS * 4, strict=False):
        own = passes[passes["gpu"] == gpu]
        error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean())
        handles += axes.plot(own["measured_us"] / 1e6, own["predicted_us"] / 1e6, marker, color=colour, markersize=6,
                             markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
        names.append(f"{_short(gpu)}: mean error {error:.1f} %")
    axes.set(xlabel="measured (s)", ylabel="predicted (s)")
    return handles, names


def _short(gpu: str) -> str:
    return gpu.replace("-PCIE-40GB", "").replace("-PCIE-80GB", " 80 GB")
