"""Cross-GPU prediction as a picture: errors by origin and destination, per kernel family and per whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.report.figures.published import published
from pipeline.report.figures.style import footnote, in_order, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3


def error_matrix(errors: pd.DataFrame) -> Figure:
    """Mean error of kernels carried from each GPU to each other, a panel per family.

    Args:
        errors: columns family, origin, destination, mape (%), of one transfer method.
    """
    figure = _matrices(errors, "family")
    footnote(figure, "Mean |predicted / measured − 1| (%) above twice the latency floor; the destination was left out "
                     "of training.")  # fmt: skip
    return figure


def model_matrix(errors: pd.DataFrame) -> Figure:
    """Mean error of whole models carried from each GPU to each other, a panel per model.

    Args:
        errors: columns model, origin, destination, mape (%), of one transfer method.
    """
    figure = _matrices(errors, "model")
    habitat, method = published("transfer")[0], errors["method"].iloc[0]
    footnote(figure, f"Mean |predicted / measured − 1| of a pass (%), method {method}; the destination was left out of "
                     f"training. Published, other models and GPUs: {habitat.percent:g} % ({habitat.source}).")  # fmt: skip
    return figure


def _matrices(errors: pd.DataFrame, by: str) -> Figure:
    names = in_order(errors[by])
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure, panels = new_panels(columns, rows, width=max(3.4 * columns, 5.5), height=0.8 + 3.2 * rows, grid="y")
    worst = float(errors["mape"].max())
    for axes, name in zip(panels, names, strict=False):
        _matrix(axes, errors[errors[by] == name], worst)
        axes.set_title(str(name))
    for axes in panels[len(names) :]:
        axes.set_visible(False)
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
