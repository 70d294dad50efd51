"""Figures of measured points: predicted against measured, errors by part, and convolutional networks with published errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.answers.error_parts import ACTIVE as ACTIVE_TIME
from pipeline.answers.error_parts import KERNEL_SUM, OWN_OVERHEADS, SHARED_OVERHEADS
from pipeline.palette import ACTIVE, series_colours
from pipeline.readable import short_time
from pipeline.report.figures.layout import (
    WIDE,
    Page,
    board,
    finish,
    footnote,
    headline,
    label_rows,
    legend_of,
    page_of,
    panel_title,
    rows_height,
    value_label,
)
from pipeline.report.figures.published_errors import NETWORK_METHODS, published
from pipeline.report.figures.sentences import within_sentence
from pipeline.report.figures.step_times import step_bars, step_legend
from pipeline.report.figures.style import MARKERS, equality, number_ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

CONVNETS = ("resnet50", "inception_v3")
"""Networks on which Lin et al. compare their method with Habitat and MLPredict."""

PART_COLOURS = {ACTIVE_TIME: "#56B4E9", OWN_OVERHEADS: ACTIVE, SHARED_OVERHEADS: "#073763", KERNEL_SUM: "#999999"}
"""Colours of the parts of a step whose errors are drawn: what Steptime predicts is blue, the baseline grey."""

WITHIN = 0.1
"""Relative error that titles count, and the half-width of the grey bands."""


def predicted_against_measured(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured steps on logarithmic axes, with the interval and a band of 10 % around equality.

    Args:
        steps: `steps` table; rows without `measured_us` are left out.
        page: what the figure is drawn for.
    """
    from matplotlib.lines import Line2D

    rows = steps[steps["measured_us"].notna()]
    figure, (axes,) = board([3.2], page, grid="both")
    equality(axes, rows[["measured_us", "predicted_us", "p10_us", "p90_us"]].to_numpy(float) / 1000)
    handles: list[Artist] = []
    colours = series_colours(rows["gpu"])
    for (gpu, colour), marker in zip(colours.items(), MARKERS * 4, strict=False):
        part = rows[rows["gpu"] == gpu]
        measured, predicted = (part[name].to_numpy(float) / 1000 for name in ("measured_us", "predicted_us"))
        spread = np.maximum([predicted - part["p10_us"] / 1000, part["p90_us"] / 1000 - predicted], 0.0)
        axes.errorbar(measured, predicted, yerr=spread, fmt=marker, color=colour, capsize=2, markeredgecolor="white",
                      markeredgewidth=0.6, elinewidth=1)  # fmt: skip
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="none"))
    axes.set(xlabel="measured step, unprofiled (ms)", ylabel="predicted step (ms)")
    headline(figure, within_sentence(rows["predicted_us"] / rows["measured_us"] - 1, "measured steps", WITHIN))
    legend_of(figure, handles, list(colours))
    footnote(figure, "Line: equality; grey: within 10 %; whiskers: p10 to p90.")
    return finish(figure)


def step_error_parts(parts: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Signed error of every part of every measured point, with a panel per point and a bar per part.

    Args:
        parts: columns gpu, workload, part, predicted_us, measured_us; `part` is a name for the labels.
        page: what the figure is drawn for.
    """
    points = list(dict.fromkeys(zip(parts["gpu"], parts["workload"], strict=True)))
    tables = [parts[(parts["gpu"] == gpu) & (parts["workload"] == workload)] for gpu, workload in points]
    figure, panels = board([rows_height(list(table["part"]), page) for table in tables], page, columns=1)
    errors = [100 * (table["predicted_us"] / table["measured_us"] - 1).to_numpy(float) for table in tables]
    widest = max(1.0, float(np.abs(np.concatenate(errors)).max()))
    for axes, (gpu, workload), table, error in zip(panels, points, tables, errors, strict=True):
        where = np.arange(len(table))
        axes.barh(where, error, height=0.62, color=[PART_COLOURS.get(part, ACTIVE) for part in table["part"]])
        axes.axvline(0, color="black", linewidth=0.8)
        for y, value in enumerate(error):
            value_label(axes, float(value), y, f"{value:+.0f} %".replace("-", "−"), left=value < 0)
        axes.set_xlim(-widest, widest)
        axes.set_xlabel("predicted / measured − 1 (%)")
        number_ticks(axes.xaxis, 0.6 * page.width)
        label_rows(axes, list(table["part"]))
        step = table.loc[table["part"] != ACTIVE_TIME]
        shown = step.loc[step["part"] == OWN_OVERHEADS] if (step["part"] == OWN_OVERHEADS).any() else step
        said = "" if shown.empty else (f": {short_time(float(shown['predicted_us'].iloc[0]))} predicted, "
                                       f"{short_time(float(shown['measured_us'].iloc[0]))} measured")  # fmt: skip
        panel_title(axes, f"{workload} on {gpu}{said}")
    return finish(figure)


def error_by_part(errors: pd.DataFrame, theirs: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Geometric mean, mean and worst error of predictions, with published errors for comparison.

    Args:
        errors: columns method, points, gmae, mape, worst (fractions), one row per prediction method.
        theirs: published errors with the columns label, percent.
        page: what the figure is drawn for.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = [f"{row.method} ({row.points} {'point' if row.points == 1 else 'points'})" for row in errors.itertuples()]
    labels = [*names, *theirs["label"]]
    figure, (axes,) = board([rows_height(labels, page)], page)
    where = np.arange(len(errors))
    axes.barh(where, 100 * errors["gmae"], color=ACTIVE, height=0.6)
    many = bool((errors["points"] > 1).any())
    if many:
        axes.plot(100 * errors["mape"], where, "|", color="black", markersize=11, markeredgewidth=1.5)
        axes.plot(100 * errors["worst"], where, ">", color="black", markersize=5)
    ends = 100 * errors[["gmae", "mape", "worst"]].max(axis=1)
    for y, (end, value) in enumerate(zip(ends, 100 * errors["gmae"], strict=True)):
        value_label(axes, float(end), y, f"{value:.1f}")
    places = np.arange(len(theirs)) + len(errors)
    axes.barh(places, theirs["percent"], height=0.6, color="white", edgecolor="#444444", hatch="///")
    for place, value in zip(places, theirs["percent"], strict=True):
        value_label(axes, float(value), int(place), f"{value:g}")
    axes.set_xlabel("|predicted / measured − 1| (%)")
    axes.set_xlim(left=0)
    number_ticks(axes.xaxis, 0.5 * page.width)
    label_rows(axes, labels)
    step = errors[errors["method"] == OWN_OVERHEADS]
    if len(step):
        what = "The geometric mean error of predicted steps" if many else "The error of the predicted step"
        headline(figure, f"{what} is {100 * step['gmae'].iloc[0]:.1f} %")
    handles: list[Artist] = [Patch(color=ACTIVE)]
    shown = ["ours: geometric mean" if many else "ours"]
    if many:
        handles += [Line2D([], [], color="black", marker=mark, linestyle="none") for mark in "|>"]
        shown += ["ours: mean", "ours: worst"]
    legend_of(
        figure,
        [*handles, Patch(facecolor="white", edgecolor="#444444", hatch="///")],
        [*shown, "published, other data"],
    )
    return finish(figure)


def convolutional_networks(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted steps of ResNet-50 and Inception v3, and errors: ours for measured steps, published means hatched.

    Args:
        steps: `steps` rows of these networks.
        page: what the figure is drawn for.
    """
    from matplotlib.patches import Patch

    rows = steps.reset_index(drop=True)
    labels = [f"{row.gpu}, {row.workload}" for row in rows.itertuples()]
    errors = _network_errors(rows)
    names = [name for name, _, _ in errors]
    figure, (above, below) = board([rows_height(labels, page), rows_height(names, page)], page, columns=1)
    step_bars(above, rows)
    label_rows(above, labels)
    panel_title(above, "Predicted steps")
    for y, (_, percent, theirs) in enumerate(errors):
        below.barh(y, percent, height=0.62, color="white" if theirs else ACTIVE, edgecolor="#444444" if theirs else ACTIVE,
                   hatch="///" if theirs else None)  # fmt: skip
        value_label(below, percent, y, f"{percent:.1f}")
    label_rows(below, names)
    below.set(xlabel="mean error of a step (%)")
    below.set_xlim(left=0)
    number_ticks(below.xaxis, 0.5 * page.width)
    missing = [network for network in _networks(rows) if not _measured(rows, network).any()]
    panel_title(below, "Mean errors, published ones hatched")
    known = [percent for _, percent, theirs in errors if not theirs]
    best = min((percent, name) for name, percent, theirs in errors if theirs)
    ours = f"ours {np.mean(known):.1f} %" if known else "ours were not measured in this grid"
    headline(
        figure, f"Errors of convolutional networks: {ours}; the best published mean is {best[0]:.1f} % ({best[1]})"
    )
    handles, shown = step_legend(bool(rows["measured_us"].notna().any()))
    legend_of(figure, [*handles, Patch(facecolor="white", edgecolor="#444444", hatch="///")], [*shown, "published"])
    footnote(figure, "Published: Lin et al., HiPC 2022; means over V100, TITAN Xp and P100 and batch 16, 32 and 64, "
                     "on their hosts and software.")  # fmt: skip
    if missing:
        footnote(figure, f"No measured step in this grid: {', '.join(missing)}.")
    if (~rows["fits"].astype(bool)).any():
        short = [name for name, fits in zip(labels, rows["fits"], strict=True) if not fits]
        footnote(figure, f"More memory than the GPU has: {'; '.join(short)}.")
    return finish(figure)


def _networks(rows: pd.DataFrame) -> list[str]:
    have = set(rows["model_variant"].str.split().str[0])
    return [network for network in CONVNETS if network in have]


def _measured(rows: pd.DataFrame, network: str) -> pd.Series:
    return (rows["model_variant"].str.split().str[0] == network) & rows["measured_us"].notna()


def _network_errors(rows: pd.DataFrame) -> list[tuple[str, float, bool]]:
    """(name, error in %, whether published) of the networks of these rows."""
    errors: list[tuple[str, float, bool]] = []
    for network in _networks(rows):
        own = rows[_measured(rows, network)]
        if len(own):
            error = 100 * float((own["predicted_us"] / own["measured_us"] - 1).abs().mean())
            errors.append((f"ours, {network}", error, False))
        errors += [
            (f"{method}, {network}", published(f"{network} {method}")[0].percent, True)
            for method in NETWORK_METHODS.values()
        ]
    return errors


def published_networks(rows: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Absolute errors of steps of convolutional networks by GPU: ours and published ones, each with colour and mark.

    Args:
        rows: `predicted_cnn` of `evaluation.checks.lin2022_steps`.
        page: what the figure is drawn for.
    """
    from matplotlib.lines import Line2D

    gpus = list(dict.fromkeys(rows["gpu"]))
    steps = list(dict.fromkeys(zip(rows["model"], rows["batch_size"], strict=True)))
    rows = rows.assign(ours=rows["error"].abs())
    series = {"ours": "Steptime", **{name: f"{name} (published)" for name in NETWORK_METHODS.values()}}
    colours = series_colours(series)
    labels = [f"{model}, batch {batch}" for model, batch in steps]
    figure, panels = board([1.25 * rows_height(labels, page)] * len(gpus), page)
    for place, (axes, gpu) in enumerate(zip(panels, gpus, strict=True)):
        own = rows[rows["gpu"] == gpu]
        where = np.array([steps.index(step) for step in zip(own["model"], own["batch_size"], strict=True)], float)
        for number, (column, marker) in enumerate(zip(series, MARKERS, strict=False)):
            shift = 0.18 * (number - (len(series) - 1) / 2)  # shifted, so that equal errors do not hide each other
            axes.plot(100 * own[column], where + shift, marker, color=colours[column], markersize=6 if column == "ours" else 4.5,
                      markeredgecolor="black", markeredgewidth=0.5, clip_on=False)  # fmt: skip
        for row in range(0, len(steps), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
        label_rows(axes, labels if place == 0 or page_of(axes).columns == 1 else [""] * len(labels))
        axes.set_xlim(0, 105 * float(rows[list(series)].to_numpy().max()))
        axes.set_xlabel("|predicted / measured − 1| (%)")
        number_ticks(axes.xaxis, 0.5 * page.width / page.columns)
        panel_title(axes, str(gpu))
    handles: list[Artist] = [
        Line2D(
            [], [], color=colours[column], marker=marker, linestyle="none", markeredgecolor="black", markeredgewidth=0.5
        )
        for column, marker in zip(series, MARKERS, strict=False)
    ]
    legend_of(figure, handles, list(series.values()))
    footnote(figure, "Measured steps and published errors: Lin et al., HiPC 2022.")
    return finish(figure)
