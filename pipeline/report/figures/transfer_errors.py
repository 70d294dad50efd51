"""Figures of cross-GPU prediction: errors by origin and destination, per kernel family and per whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import COLOURS, MARKERS, equality, footnote, in_order, tiled_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def error_matrix(errors: pd.DataFrame) -> Figure:
    """Mean error of kernels scaled from each GPU to each other GPU, with a panel per family.

    Args:
        errors: columns family, origin, destination, mape (%), of one transfer method.
    """
    figure = _matrices(errors, "family")
    footnote(figure, "Mean |predicted / measured − 1| (%) above twice the latency floor; the destination was left out "
                     "of training.")  # fmt: skip
    return figure


def model_matrix(errors: pd.DataFrame) -> Figure:
    """Mean error of whole models scaled from each GPU to each other GPU, with a panel per model.

    Args:
        errors: columns model, origin, destination, mape (%), of one transfer method.
    """
    figure = _matrices(errors, "model")
    habitat, method = published("transfer")[0], errors["method"].iloc[0]
    footnote(figure, f"Mean |predicted / measured − 1| of a pass (%), method {method}; the destination was left out of "
                     f"training. Published, other models and GPUs: {habitat.percent:g} % ({habitat.source}).")  # fmt: skip
    return figure


def steps_moved(passes: pd.DataFrame) -> Figure:
    """Predicted against measured time of whole models, with a panel per origin GPU and a mark per destination.

    Args:
        passes: `passes_moved` of `pipeline.report.figures.figure_data`.
    """
    origins, gpus = sorted(set(passes["origin"])), sorted(set(passes["destination"]))
    figure, panels = tiled_panels(len(origins), (3.6, 3.4), least=5.5, grid="both")
    times = passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6
    for axes, origin in zip(panels, origins, strict=True):
        equality(axes, times, label=None)
        for gpu, colour, marker in zip(gpus, COLOURS, MARKERS, strict=False):
            own = passes[(passes["origin"] == origin) & (passes["destination"] == gpu)]
            error = (own["predicted_us"] / own["measured_us"] - 1).abs().mean()
            if len(own):
                axes.plot(own["measured_us"] / 1e6, own["predicted_us"] / 1e6, marker, color=colour, markersize=5,
                          label=f"to {gpu.partition('-')[0]}: {100 * error:.0f} %")  # fmt: skip
        axes.set(xlabel="measured (s)", ylabel="predicted (s)", title=f"from {origin}")
        axes.margins(x=0)
        axes.set_ylim(axes.get_xlim())
        axes.legend(frameon=False, fontsize=8, title="mean error", title_fontsize=8, loc="upper left")
    error, waves = (100 * float((passes[name] / passes["measured_us"] - 1).abs().mean())
                    for name in ("predicted_us", "wave_us"))  # fmt: skip
    habitat = published("transfer")[0]
    footnote(figure, f"Passes of language models; the destination was left out of training. Mean error {error:.1f} %, of "
                     f"wave scaling alone {waves:.1f} %; published, other models and GPUs: {habitat.percent:g} % "
                     f"({habitat.source}). Grey: within 10 %.")  # fmt: skip
    return figure


def _matrices(errors: pd.DataFrame, by: str) -> Figure:
    names = in_order(errors[by])
    figure, panels = tiled_panels(len(names), (3.4, 3.2), least=5.5, grid="y")
    worst = float(errors["mape"].max())
    for axes, name in zip(panels, names, strict=True):
        _matrix(axes, errors[errors[by] == name], worst)
        axes.set_title(str(name))
    return figure


def _matrix(axes: Axes, errors: pd.DataFrame, worst: float) -> None:
    gpus = sorted(set(errors["origin"]) | set(errors["destination"]))
    table = errors.pivot_table(index="origin", columns="destination", values="mape").reindex(index=gpus, columns=gpus)
    axes.grid(visible=False)
    axes.imshow(table.to_numpy(float), cmap="cividis_r", vmin=0, vmax=worst, aspect="auto")
    values = table.to_numpy(float)
    for y, x in np.argwhere(np.isfinite(values)).tolist():
        dark = values[y, x] > worst / 2
        axes.text(x, y, f"{values[y, x]:.0f}", ha="center", va="center", color="white" if dark else "black")
    short = [gpu.replace("-PCIE-", "\n") for gpu in gpus]
    axes.set_xticks(range(len(gpus)), short, fontsize=7)
    axes.set_yticks(range(len(gpus)), short, fontsize=7)
    axes.tick_params(length=0)
    axes.set(xlabel="to", ylabel="from")
