"""Figures of measured points: errors by part of the prediction, and convolutional networks with published errors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.evaluation.error_parts import ACTIVE as ACTIVE_TIME
from pipeline.evaluation.published_lin2022 import METHODS
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.step_times import step_bars
from pipeline.report.figures.style import (
    ACTIVE,
    COLOURS,
    MARKERS,
    MEASURED,
    bar_height,
    footnote,
    label_rows,
    legend_above,
    new_figure,
    new_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABEL_LINE = 24
"""Longest line of a point's name, in characters, that fits below its bars."""

CONVNETS = ("resnet50", "inception_v3")
"""Networks on which Lin et al. compare their method with Habitat and MLPredict."""


def step_error_parts(parts: pd.DataFrame) -> Figure:
    """Signed error of every part of every measured point as bars, with the measured step on a second axis.

    Args:
        parts: columns gpu, workload, part, predicted_us, measured_us; `part` is a name for the legend.
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
    """A point's name on several lines: the GPU, then the rest, with line breaks after spaces and underscores."""
    gpu, _, rest = name.partition(" ")
    return "\n".join(
        [gpu, *(line.replace("_ ", "_") for line in textwrap.wrap(rest.replace("_", "_ "), MAX_LABEL_LINE))]
    )


def convolutional_networks(steps: pd.DataFrame) -> Figure:
    """Predicted steps of ResNet-50 and Inception v3, and errors: ours for measured steps, published means hatched.

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
    footnote(figure, "Published: Lin et al., HiPC 2022; means over V100, TITAN Xp and P100 and batch 16, 32 and 64, "
                     "on their hosts and software.")  # fmt: skip
    return figure


def _errors(axes: Axes, steps: pd.DataFrame) -> None:
    rows: list[tuple[str, float, str]] = []
    for network in CONVNETS:
        own = steps[(steps["model_variant"].str.split().str[0] == network) & steps["measured_us"].notna()]
        error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean()) if len(own) else np.nan
        rows.append((f"ours, {network}", error, "no measured step in this grid" if not len(own) else ""))
        for method in METHODS.values():
            rows.append((f"{method}, {network} (published)", published(f"{network} {method}")[0].percent, ""))
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


def published_networks(rows: pd.DataFrame) -> Figure:
    """Absolute errors of steps of convolutional networks by GPU: ours and published ones, each with colour and mark.

    Args:
        rows: `predicted_cnn` of `pipeline.evaluation.lin2022_steps`.
    """
    gpus = list(dict.fromkeys(rows["gpu"]))
    steps = list(dict.fromkeys(zip(rows["model"], rows["batch_size"], strict=True)))
    rows = rows.assign(ours=rows["error"].abs())
    series = {"ours": "Steptime", **{name: f"{name} (published)" for name in METHODS.values()}}
    figure, panels = new_panels(len(gpus), width=9.0, height=bar_height(len(steps)) + 0.6)
    for axes, gpu in zip(panels, gpus, strict=True):
        own = rows[rows["gpu"] == gpu]
        where = np.array([steps.index(step) for step in zip(own["model"], own["batch_size"], strict=True)], float)
        for place, ((column, label), colour, marker) in enumerate(zip(series.items(), COLOURS, MARKERS, strict=False)):
            shift = 0.18 * (place - (len(series) - 1) / 2)  # shifted, so that equal errors do not hide each other
            axes.plot(100 * own[column], where + shift, marker, color=colour, markersize=7 if column == "ours" else 5,
                      markeredgecolor="black", markeredgewidth=0.5, label=label, clip_on=False)  # fmt: skip
        for row in range(0, len(steps), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
        axes.tick_params(axis="y", length=0)
        axes.set_title(gpu, loc="left", fontsize=10)
        axes.set_xlim(0, 105 * float(rows[list(series)].to_numpy().max()))
        axes.set_xlabel("|predicted / measured − 1| (%)")
    label_rows(panels[0], [f"{model}, batch {batch}" for model, batch in steps])
    legend_above(figure, panels[0])
    footnote(figure, "Measured steps and published errors: Lin et al., HiPC 2022.")
    return figure
