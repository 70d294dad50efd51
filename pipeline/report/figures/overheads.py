"""Host overheads as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pipeline.report.figures.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overhead_types(observations: pd.DataFrame, title: str) -> Figure:
    """Box per overhead type (T1 to T5) on a logarithmic axis; whiskers from the 5th to the 95th percentile."""
    figure, axes = new_figure()
    types = [name for name in ("T1", "T2", "T3", "T4", "T5") if (observations["type"] == name).any()]
    values = [observations.loc[observations["type"] == name, "value_us"].clip(lower=0.05).to_numpy() for name in types]
    if types:
        boxes = axes.boxplot(values, whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6)
        for patch, colour in zip(boxes["boxes"], COLOURS, strict=False):
            patch.set(facecolor=colour, alpha=0.7)
        for line in boxes["medians"]:
            line.set_color("black")
        axes.set_xticks(range(1, len(types) + 1), [f"{n}\n{len(v):,} seen" for n, v in zip(types, values, strict=True)])
    axes.set_yscale("log")
    axes.set_ylabel("time (µs), as profiled")
    axes.set_title(f"Host overheads, {title}", loc="left")
    return figure
