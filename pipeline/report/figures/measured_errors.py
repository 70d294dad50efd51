"""Errors of measured points: by part of the prediction, and of convolutional networks beside published errors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.evaluation.error_parts import ACTIVE as ACTIVE_TIME
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.step_times import step_bars
from pipeline.report.figures.style import (
    ACTIVE,
    COLOURS,
    MEASURED,
    bar_height,
    footnote,
    label_rows,
    new_figure,
    new_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLD = 24
"""Letters of a point's name that fit below its bars."""

CONVNETS = ("resnet50", "inception_v3")
"""Networks by which Lin et al. compare with Habitat and MLPredict."""


def step_error_parts(parts: pd.DataFrame) -> Figure:
    """Signed error of every part of every measured point as bars, the measured step on a second axis.

    Args:
        parts: columns gpu, workload, part, predicted_us, measured_us; `part` as a legend names it.
    """
    points = list(dict.fromkeys(parts["gpu"] + " " + parts["workload"]))
    kinds = list(dict.fromkeys(parts["part"]))
    figure, axes = new_figure(max(6.5, 1.6 + 1.5 * len(points)), 4.4)
    width = 0.8 / len(kinds)
    for number, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        own = parts[parts["part"] == kind]
        where = np.array([points.index(label) for label in own["gpu"] + " " + own["workload"]], float)
        error = 100 * (own["predicted_us"] / own["measured_us"] - 1).to_numpy(float)
        axes.bar(where + width * (number - (len(kinds) - 1) / 2), error, 0.9 * width, color=colour, label=kind)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(points)), [_folded(label) for label in points], fontsize=8)
    axes.set_ylabel("predicted / measured − 1 (%)")
    whole = parts[parts["part"] != ACTIVE_TIME]
    steps = (
        whole.assign(point=whole["gpu"] + " " + whole["workload"]).groupby("point", sort=False)["measured_us"].first()
    )
    second = axes.twinx()
    second.plot([points.index(label) for label in steps.index], steps / 1000, "D", color=MEASURED, markersize=7,
                markeredgecolor="white", label="measured step (right axis)")  # fmt: skip
    second.set(ylabel="measured step, unprofiled (ms)", ylim=(0, 1.25 * float(steps.max()) / 1000))
    second.spines["top"].set_visible(False)
    handles, names = (a + b for a, b in zip(axes.get_legend_handles_labels(), second.get_legend_handles_labels(),
                                            strict=True))  # fmt: skip
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def _folded(name: str) -> str:
    """A point's name on several lines: GPU, then the rest, broken behind blanks and underscores."""
    gpu, _, rest = name.partition(" ")
    return "\n".join([gpu, *(line.replace("_ ", "_") for line in textwrap.wrap(rest.replace("_", "_ "), FOLD))])


def convolutional_networks(steps: pd.DataFrame) -> Figure:
    """Predicted steps of ResNet-50 and Inception v3, and errors: ours where measured, the published mean hatched.

    Args:
        steps: `steps` rows of these networks.
    """
    figure, panels = new_panels(2, width=9.5, height=bar_height(1.1 * len(steps)) + 0.6, share_y=False)
    labels = [f"{row.gpu} {row.workload}" for row in steps.itertuples()]
    step_bars(panels[0], steps, np.arange(len(steps)))
    panels[0].set_xlim(left=0)
    label_rows(panels[0], labels)
    _errors(panels[1], steps)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False, fontsize=8)
    footnote(figure, "The published mean is over five networks, these two among them; Habitat's figures for single "
                     "networks, and MLPredict's, are not known here.")  # fmt: skip
    return figure


def _errors(axes: Axes, steps: pd.DataFrame) -> None:
    rows: list[tuple[str, float, str]] = []
    for network in CONVNETS:
        own = steps[(steps["model_variant"].str.split().str[0] == network) & steps["measured_us"].notna()]
        error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean()) if len(own) else np.nan
        rows.append((f"ours, {network}", error, "no measured step in this grid" if not len(own) else ""))
    habitat = published("transfer")[0]
    rows.append(("Habitat, mean of five networks\n(published)", habitat.percent, ""))
    rows.append(("MLPredict\n(published)", np.nan, "no figure known here"))
    for y, (name, percent, remark) in enumerate(rows):
        theirs = "published" in name
        if np.isfinite(percent):
            axes.barh(y, percent, height=0.6, color="white" if theirs else ACTIVE, edgecolor="black" if theirs else None,
                      hatch="//" if theirs else None)  # fmt: skip
            axes.annotate(f"{percent:.1f}", (percent, y), (4, 0), "data", "offset points", va="center", fontsize=8)
        else:
            axes.annotate(remark, (0, y), (4, 0), "data", "offset points", va="center", fontsize=8, color="#555555")
    label_rows(axes, [name for name, _, _ in rows])
    axes.set(xlabel="mean error of a step (%)")
    axes.set_xlim(0, max(15.0, 1.2 * max((p for _, p, _ in rows if np.isfinite(p)), default=15.0)))
