"""Cross-GPU prediction as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pipeline.report.figures.style import footnote, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTE = "Mean |predicted / measured − 1| (%) above twice the latency floor; the destination was left out of training."


def error_matrix(errors: pd.DataFrame) -> Figure:
    """Mean error of kernels carried from each GPU to each other, a panel per family.

    Args:
        errors: columns family, origin, destination, mape (%), of one transfer method.
    """
    families = list(dict.fromkeys(errors["family"]))
    gpus = sorted(set(errors["origin"]) | set(errors["destination"]))
    columns = min(3, len(families))
    rows = -(-len(families) // columns)
    figure, panels = new_panels(columns, rows, width=max(3.4 * columns, 5.0), height=0.8 + 3.3 * rows, grid="y")
    worst = float(errors["mape"].max())
    for axes, family in zip(panels, families, strict=False):
        own = errors[errors["family"] == family]
        table = own.pivot_table(index="origin", columns="destination", values="mape").reindex(index=gpus, columns=gpus)
        axes.grid(visible=False)
        axes.imshow(table.to_numpy(float), cmap="cividis_r", vmin=0, vmax=worst)
        for y, x in ((y, x) for y in range(len(gpus)) for x in range(len(gpus))):
            value = table.iloc[y, x]
            if pd.notna(value):
                axes.text(
                    x, y, f"{value:.0f}", ha="center", va="center", color="white" if value > worst / 2 else "black"
                )
        axes.set_xticks(range(len(gpus)), gpus, rotation=35, ha="right", fontsize=7)
        axes.set_yticks(range(len(gpus)), gpus, fontsize=7)
        axes.set(xlabel="to", ylabel="from", title=family)
    for axes in panels[len(families) :]:
        axes.set_visible(False)
    footnote(
        figure,
        "Mean |predicted / measured − 1| (%) above twice the latency floor; the destination was left out of training.",
    )
    return figure
