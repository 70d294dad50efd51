"""Figures of predicted steps: the parts of their time, their intervals, and comparisons with measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.report.figures.style import (
    ACTIVE,
    COLOURS,
    IDLE,
    MEASURED,
    bar_height,
    equality,
    footnote,
    label_rows,
    legend_above,
    new_figure,
    same_scale,
    tiled_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED_FAMILIES = 7
"""Number of kernel families with their own colour; the palette has no more distinguishable colours."""


def utilisation(steps: pd.DataFrame) -> Figure:
    """Active and idle share of the GPU in a step, with a panel per GPU and a bar per workload and batch size.

    Args:
        steps: `steps` table of `pipeline.report.figures.figure_data`.
    """
    figure, panels, labels = _panel_per_gpu(steps)
    for axes, (gpu, rows) in zip(panels, steps.groupby("gpu", sort=False), strict=True):
        where = [labels.index(label) for label in rows["workload"]]
        active = 100 * (rows["active_us"] / rows["predicted_us"]).to_numpy(float)
        axes.barh(where, active, color=ACTIVE, height=0.7, label="active: a kernel runs")
        axes.barh(where, 100 - active, left=active, color=IDLE, height=0.7, label="idle: the device waits")
        for y, share in zip(where, active, strict=True):
            axes.text(min(share, 97) - 1.5, y, f"{share:.0f}", va="center", ha="right", color="white", fontsize=7)
        axes.set(xlim=(0, 100), xlabel="share of the predicted step (%)", title=str(gpu))
        label_rows(axes, labels)
    legend_above(figure, panels[0])
    return figure


def breakdown(families: pd.DataFrame) -> Figure:
    """Device time by kernel family, with a panel per GPU and a stacked bar per workload and batch size.

    Args:
        families: columns gpu, workload, family, device_us.
    """
    figure, panels, labels = _panel_per_gpu(families)
    largest = families.groupby("family")["device_us"].sum().sort_values(ascending=False, kind="stable").index
    named = list(largest[:NAMED_FAMILIES])
    shown = families.assign(family=families["family"].where(families["family"].isin(named), "other families"))
    order = [*named, *(["other families"] if len(largest) > len(named) else [])]
    colours = dict(zip(order, (*COLOURS[:NAMED_FAMILIES], COLOURS[7]), strict=False))
    for axes, (gpu, rows) in zip(panels, shown.groupby("gpu", sort=False), strict=True):
        table = rows.pivot_table(index="workload", columns="family", values="device_us", aggfunc="sum", fill_value=0.0)
        share = 100 * table.div(table.sum(axis=1), axis=0)
        where, left = np.array([labels.index(label) for label in share.index]), np.zeros(len(share))
        for family in order:
            width = share[family].to_numpy(float) if family in share else np.zeros(len(share))
            axes.barh(where, width, left=left, color=colours[family], height=0.7, label=family)
            left += width
        axes.set(xlim=(0, 100), xlabel="share of device time (%)", title=str(gpu))
        label_rows(axes, labels)
    legend_above(figure, panels[0])
    return figure


def step_times(steps: pd.DataFrame) -> Figure:
    """Predicted step with its p10 to p90 interval, the sum of kernel times, and the measured step if there is one."""
    figure, panels, labels = _panel_per_gpu(steps)
    for axes, (gpu, rows) in zip(panels, steps.groupby("gpu", sort=False), strict=True):
        where = np.array([labels.index(label) for label in rows["workload"]])
        step_bars(axes, rows, where)
        kernels = rows["kernels_us"].to_numpy(float) / 1000
        axes.plot(kernels, where, "|", color="white", markeredgewidth=2, markersize=9)
        axes.plot(kernels, where, "|", color="black", markeredgewidth=1, markersize=9, label="sum of its kernels")
        axes.set_title(str(gpu))
        label_rows(axes, labels)
    same_scale(figure, panels)
    legend_above(figure, next((a for a in panels if len(a.get_legend_handles_labels()[1]) > 3), panels[0]))
    return figure


def step_bars(axes: Axes, rows: pd.DataFrame, where: npt.NDArray[np.int64]) -> None:
    """A bar per step with its p10 to p90 interval, and the measured step if there is one; row `i` is at `where[i]`."""
    step, low, high, measured = (
        rows[name].to_numpy(float) / 1000 for name in ("predicted_us", "p10_us", "p90_us", "measured_us")
    )
    axes.barh(where, step, color=ACTIVE, height=0.6, alpha=0.75, label="predicted step")
    spread = np.maximum([step - low, high - step], 0.0)
    axes.errorbar(step, where, xerr=spread, fmt="none", ecolor="black", elinewidth=1, capsize=2.5, label="p10 to p90")
    if np.isfinite(measured).any():
        axes.plot(measured, where, "D", color=MEASURED, markersize=5, zorder=3, label="measured, unprofiled")
    axes.set_xlabel("time of one step (ms)")


def predicted_against_measured(steps: pd.DataFrame) -> Figure:
    """Predicted against measured steps on logarithmic axes, with the interval and a band of 10 % around equality.

    Args:
        steps: `steps` table; rows without `measured_us` are left out.
    """
    rows = steps[steps["measured_us"].notna()]
    figure, axes = new_figure(5.5, 5.0, grid="both")
    equality(axes, rows[["measured_us", "p10_us", "p90_us"]].to_numpy(float) / 1000)
    for colour, (gpu, part) in zip(COLOURS * 3, rows.groupby("gpu", sort=False), strict=False):
        measured, predicted = (part[name].to_numpy(float) / 1000 for name in ("measured_us", "predicted_us"))
        spread = np.maximum([predicted - part["p10_us"] / 1000, part["p90_us"] / 1000 - predicted], 0.0)
        axes.errorbar(measured, predicted, yerr=spread, fmt="o", color=colour, capsize=2, label=str(gpu))
    axes.set(xlabel="measured step, unprofiled (ms)", ylabel="predicted step (ms), p10 to p90")
    axes.legend(frameon=False)
    return figure


def error_by_part(errors: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Geometric mean, mean and worst error of predictions, with published errors for comparison.

    Args:
        errors: columns method, points, gmae, mape, worst (fractions), one row per prediction method.
        published: columns label, percent.
    """
    figure, axes = new_figure(8.0, 1.9 + 0.55 * (len(errors) + len(published)), grid="x")
    y = np.arange(len(errors))
    axes.barh(y, 100 * errors["gmae"], color=ACTIVE, height=0.6, label="geometric mean, ours")
    axes.plot(100 * errors["mape"], y, "|", color="black", markersize=12, markeredgewidth=1.5, label="mean, ours")
    axes.plot(100 * errors["worst"], y, ">", color="black", markersize=5, label="worst, ours")
    names = [f"{row.method} ({row.points} points)" for row in errors.itertuples()]
    theirs = np.arange(len(published)) + len(errors)
    axes.barh(
        theirs,
        published["percent"],
        height=0.6,
        color="white",
        edgecolor="black",
        hatch="//",
        label="published, other data",
    )
    label_rows(axes, [*names, *published["label"]])
    axes.set_xlabel("|predicted / measured − 1| (%)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def throughput(steps: pd.DataFrame) -> Figure:
    """Samples per second by batch size: a panel per model, a line per GPU, hollow marks where memory is too small.

    A model with only one batch size gets a bar per GPU.
    """
    models = list(dict.fromkeys(steps["model_variant"]))
    bars = bool((steps.groupby("model_variant")["batch_size"].nunique() == 1).all())
    tall = bar_height(steps["gpu"].nunique()) if bars else 2.9
    figure, panels = tiled_panels(len(models), (3.6, tall), margin=(0.0, 0.9), grid="x" if bars else "y")
    for axes, model in zip(panels, models, strict=True):
        (_throughput_bars if bars else _throughput_lines)(axes, steps, model)
    if not steps["fits"].all():
        footnote(figure, "Hollow: the step needs more memory than the GPU has.")
    return figure


def _colours(steps: pd.DataFrame) -> dict[Any, str]:
    return dict(zip(dict.fromkeys(steps["gpu"]), COLOURS * 4, strict=False))


def _throughput_bars(axes: Axes, steps: pd.DataFrame, model: str) -> None:
    colours, own = _colours(steps), steps[steps["model_variant"] == model]
    gpus = list(colours)
    for gpu, speed, fits in zip(own["gpu"], own["samples_per_s"], own["fits"], strict=True):
        y = gpus.index(gpu)
        axes.barh(y, speed, height=0.6, color=colours[gpu] if fits else "white", edgecolor=colours[gpu])
        axes.annotate(f"{speed:,.0f}", (speed, y), (3, 0), "data", "offset points", va="center", fontsize=7.5)
    axes.margins(x=0.18)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel="throughput (samples/s)", title=f"{model}, batch {own['batch_size'].iloc[0]:,}")
    label_rows(axes, gpus)


def _throughput_lines(axes: Axes, steps: pd.DataFrame, model: str) -> None:
    colours = _colours(steps)
    for gpu, part in steps[steps["model_variant"] == model].groupby("gpu", sort=False):
        line = part.sort_values("batch_size")
        axes.plot(line["batch_size"], line["samples_per_s"], "-", color=colours[gpu], linewidth=1.2)
        for fits, face in ((True, colours[gpu]), (False, "white")):
            some = line[line["fits"] == fits]
            axes.plot(some["batch_size"], some["samples_per_s"], "o", color=colours[gpu], markerfacecolor=face)
        axes.plot([], [], "-o", color=colours[gpu], label=str(gpu))
    sizes = sorted(set(steps.loc[steps["model_variant"] == model, "batch_size"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel="batch size (samples)", ylabel="throughput (samples/s)", title=model)
    axes.legend(frameon=False, fontsize=8)


def _panel_per_gpu(table: pd.DataFrame) -> tuple[Figure, list[Axes], list[str]]:
    """Panels, one per GPU, with the same rows of workloads."""
    labels = list(dict.fromkeys(table["workload"]))
    size = (2.7, bar_height(len(labels)) + 0.2)
    return *tiled_panels(table["gpu"].nunique(), size, margin=(2.6, 0.2), least=7.0), labels
