"""Figures of predictions and public measurements: replayed traces, whole models, and the README's summary picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.evaluation.replayed_traces import FULL, KERNEL_SUM, METHODS
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import (
    COLOURS,
    FAMILY_ORDER,
    MARKERS,
    bar_height,
    equality,
    footnote,
    in_order,
    label_rows,
    legend_above,
    new_figure,
    new_panels,
    plain_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_DRAWN_PERCENT = 0.02
"""Smallest error that is drawn, in %. Smaller ones are drawn at this value, because a logarithmic axis has no zero."""

FAMILY_NAMES = {"gemm": "matrix product", "bmm": "batched product", "conv2d_forward": "convolution",
                "elementwise": "element-wise", "layer_norm": "layer norm"}  # fmt: skip
"""Names of the learned families in the README's picture."""


def replay_errors(errors: pd.DataFrame) -> Figure:
    """Mean absolute error of the span per public trace, with a mark per prediction method.

    Args:
        errors: `mean_errors` of `pipeline.evaluation.replayed_traces`.
    """
    traces = list(dict.fromkeys(errors["trace"]))
    figure, axes = new_figure(8.0, bar_height(1.6 * len(traces)) + 0.3, grid="x")
    methods = [name for name in METHODS if (errors["method"] == name).any()]
    for method, colour, marker in zip(methods, COLOURS, MARKERS, strict=False):
        own = errors[errors["method"] == method]
        where = [traces.index(name) for name in own["trace"]]
        percent = np.maximum(100 * own["mean_error"].to_numpy(float), MIN_DRAWN_PERCENT)
        axes.plot(percent, where, marker, color=colour, markersize=8 if method == methods[0] else 6, label=method,
                  zorder=4 if method == methods[0] else 3)  # fmt: skip
    one_each = errors.drop_duplicates("trace").set_index("trace")
    label_rows(axes, [f"{name}\n{one_each.loc[name, 'device'].removeprefix('NVIDIA ')}" for name in traces])
    axes.set(xscale="log", xlabel="mean |predicted / measured − 1| of an iteration's span (%)")
    plain_ticks(axes.xaxis)
    legend_above(figure, axes, columns=3)
    footnote(figure, "Kernel times given, host time and waiting predicted, from other iterations, ranks or machines.")
    return figure


def whole_models(passes: pd.DataFrame) -> Figure:
    """Predicted against measured latency of whole language models, with a colour and mark per GPU.

    Args:
        passes: `predicted_passes` of `pipeline.evaluation.language_passes`.
    """
    figure, axes = new_figure(6.0, 5.2, grid="both")
    _passes(axes, passes)
    axes.legend(frameon=False, fontsize=8)
    footnote(figure, "fp32, inference and training passes measured by NeuSight; none of them was used in fitting.")
    return figure


def result(kernels: pd.DataFrame, passes: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """The README's picture: kernel models, replayed traces and whole models, each compared with measurements.

    Args:
        kernels: `kernel_errors` table of `pipeline.report.figures.figure_data`.
        passes: `predicted_passes` of `pipeline.evaluation.language_passes`.
        errors: `mean_errors` of `pipeline.evaluation.replayed_traces`.
    """
    figure, panels = new_panels(3, width=12.0, height=4.3, grid="both", share_y=False)
    _kernel_dots(panels[0], kernels)
    _replay_bars(panels[1], errors)
    _passes(panels[2], passes)
    panels[2].set_title("Whole models, end to end", loc="left", fontsize=10)
    panels[2].legend(frameon=False, fontsize=7.5)
    return figure


def _kernel_dots(axes: Axes, kernels: pd.DataFrame) -> None:
    families = in_order(kernels.loc[kernels["family"].isin(FAMILY_ORDER), "family"])
    # these GPUs have one family in one dtype, so they share a mark
    half = kernels["gpu"].astype(str).str.endswith("(bf16)")
    series = kernels["gpu"].astype(str).where(~half, "newer GPUs, bf16")
    for (gpu, own), colour, marker in zip(kernels.groupby(series, sort=True), COLOURS, MARKERS, strict=False):
        own = own[own["family"].isin(families)]
        where = [families.index(name) for name in own["family"]]
        axes.plot(100 * own["gmae"], where, marker, color=colour, markersize=6, label=_short(str(gpu)))
    bound = published("kernels")[0]
    axes.axvline(bound.percent, color="black", linestyle="--", linewidth=1)
    axes.annotate("published\nbound", (bound.percent, -0.55), (-3, 0), "data", "offset points", ha="right", va="top",
                  fontsize=7.5)  # fmt: skip
    label_rows(axes, [FAMILY_NAMES.get(name, name) for name in families])
    axes.set(xlabel="GMAE on shapes not trained on (%)", xlim=(0, 1.05 * bound.percent))
    axes.grid(visible=False, axis="y")
    axes.set_title("Kernel models", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=7.5, loc="lower right", bbox_to_anchor=(0.93, 0.0))


def _replay_bars(axes: Axes, errors: pd.DataFrame) -> None:
    traces = list(dict.fromkeys(errors["trace"]))
    for method, colour, shift in ((FULL, COLOURS[0], -0.2), (KERNEL_SUM, COLOURS[7], 0.2)):
        own = errors[errors["method"] == method].set_index("trace").reindex(traces)
        percent = 100 * own["mean_error"].to_numpy(float)
        where = np.arange(len(traces)) + shift
        axes.barh(where, percent, height=0.36, color=colour, label=method)
        for y, value in zip(where, percent, strict=True):
            axes.annotate(f"{value:.1f}", (value, y), (3, 0), "data", "offset points", va="center", fontsize=7.5)
    label_rows(axes, [name.replace("_", "\n", 1) for name in traces])
    axes.set(xlabel="mean error of an iteration's span (%)")
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_title("Steps of public traces, kernel times given", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=7.5, loc="center right")


def _passes(axes: Axes, passes: pd.DataFrame) -> None:
    equality(axes, passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6)
    for (gpu, own), colour, marker in zip(passes.groupby("gpu", sort=True), COLOURS, MARKERS, strict=False):
        error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean())
        axes.plot(own["measured_us"] / 1e6, own["predicted_us"] / 1e6, marker, color=colour, markersize=6,
                  label=f"{_short(str(gpu))}: mean error {error:.1f} %")  # fmt: skip
    axes.set(xlabel="measured (s)", ylabel="predicted (s)")


def _short(gpu: str) -> str:
    return gpu.replace("-PCIE-40GB", "").replace("-PCIE-80GB", " 80 GB")
