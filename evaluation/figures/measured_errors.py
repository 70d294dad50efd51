"""Figures of errors: measured points, convolutional networks beside published errors, replayed traces, whole models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from evaluation.checks.error_parts import ACTIVE as ACTIVE_TIME
from evaluation.checks.error_parts import KERNEL_SUM, OWN_OVERHEADS, SHARED_OVERHEADS
from evaluation.checks.method_names import REPLAY_METHODS
from evaluation.published.published_errors import NETWORK_METHODS, published
from pipeline.palette import ACTIVE, SERIES, series_colours
from pipeline.readable import distinct, short_time
from pipeline.show.figures.board import (
    MARKERS,
    WIDE,
    Board,
    Page,
    equality,
    marks,
    plain_ticks,
    rows_height,
    spread,
    value_labels,
)
from pipeline.show.figures.step_times import step_bars, step_legend

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONVNETS = ("resnet50", "inception_v3")
"""Networks on which Lin et al. compare their method with Habitat and MLPredict."""

PART_COLOURS = {
    ACTIVE_TIME: "#56B4E9",
    OWN_OVERHEADS: "#0072B2",
    SHARED_OVERHEADS: "#073763",
    KERNEL_SUM: "#999999",
}
"""Colours of the parts of a step whose errors are drawn: what Steptime predicts is blue, the baseline grey."""

PUBLISHED_BAR: dict[str, Any] = {"facecolor": "white", "edgecolor": "#444444", "hatch": "///"}
"""Style of bars of published errors."""

MIN_DRAWN_PERCENT = 0.02
"""Smallest error that is drawn, in %. Smaller ones are drawn at this value, because a logarithmic axis has no zero."""

WITHIN = 0.1
"""Relative error that titles count, and the half-width of the grey bands."""


def predicted_against_measured(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted against measured steps on logarithmic axes, with the interval and a band of 10 % around equality.

    Args:
        steps: `steps` table; rows without `measured_us` are left out.
    """
    rows = steps[steps["measured_us"].notna()]
    board = Board([3.2], page, grid="both")
    (axes,) = board.panels
    equality(axes, rows[["measured_us", "predicted_us", "p10_us", "p90_us"]].to_numpy(float) / 1000)
    colours = series_colours(rows["gpu"])
    for (gpu, colour), marker in zip(colours.items(), MARKERS * 4, strict=False):
        measured, predicted, low, high = (
            rows.loc[rows["gpu"] == gpu, name].to_numpy(float) / 1000
            for name in ("measured_us", "predicted_us", "p10_us", "p90_us")
        )
        axes.errorbar(
            measured,
            predicted,
            yerr=spread(predicted, low, high),
            fmt=marker,
            color=colour,
            capsize=2,
            markeredgecolor="white",
            markeredgewidth=0.6,
            elinewidth=1,
        )
    board.names(axes, "measured step, unprofiled (ms)", "predicted step (ms)")
    board.headline(
        within_sentence(rows["predicted_us"] / rows["measured_us"] - 1, "measured steps", WITHIN)
    )
    board.legend(marks(colours.values()), list(colours))
    board.note("Line: equality; grey: within 10 %; whiskers: p10 to p90.")
    return board.figure


def within_sentence(errors: pd.Series, what: str, bound: float = WITHIN) -> str:
    """How many relative errors are within a bound: `3 of 4 measured steps are within 10 %`."""
    inside = int((errors.abs() <= bound).sum())
    if len(errors) == 1:
        error = 100 * float(errors.iloc[0])
        return (
            f"The {what.removesuffix('s')} is predicted {abs(error):.0f} % too"
            f" {'short' if error < 0 else 'long'}"
        )
    return f"{inside} of {len(errors)} {what} are within {100 * bound:.0f} %"


def step_error_parts(parts: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Signed error of every part of every measured point, with a panel per point and a bar per part.

    Args:
        parts: columns gpu, workload, part, predicted_us, measured_us; `part` is a name for the labels.
    """
    points = distinct(zip(parts["gpu"], parts["workload"], strict=True))
    tables = [
        parts[(parts["gpu"] == gpu) & (parts["workload"] == workload)] for gpu, workload in points
    ]
    board = Board([rows_height(list(table["part"]), page) for table in tables], page, columns=1)
    errors = [
        100 * (table["predicted_us"] / table["measured_us"] - 1).to_numpy(float) for table in tables
    ]
    widest = max(1.0, float(np.abs(np.concatenate(errors)).max()))
    room = (
        1.0 + 2.6 / page.width
    )  # for the numbers left of negative bars, which must not touch the labels
    for axes, (gpu, workload), table, error in zip(
        board.panels, points, tables, errors, strict=True
    ):
        axes.barh(
            np.arange(len(table)),
            error,
            height=0.62,
            color=[PART_COLOURS.get(part, ACTIVE) for part in table["part"]],
        )
        axes.axvline(0, color="black", linewidth=0.8)
        value_labels(axes, error, [f"{value:+.0f} %".replace("-", "−") for value in error])
        axes.set_xlim(-room * widest, room * widest)
        board.label_rows(axes, list(table["part"]))
        board.number_ticks(axes)
        board.names(axes, "predicted / measured − 1 (%)")
        board.title(axes, f"{workload} on {gpu}{_times(table[table['part'] != ACTIVE_TIME])}")
    return board.figure


def _times(steps: pd.DataFrame) -> str:
    """Predicted and measured time of a point, with its own overheads where they are known."""
    own_overheads = steps[steps["part"] == OWN_OVERHEADS]
    shown = own_overheads if len(own_overheads) else steps
    if shown.empty:
        return ""
    predicted, measured = (
        short_time(float(shown[name].iloc[0])) for name in ("predicted_us", "measured_us")
    )
    return f": {predicted} predicted, {measured} measured"


def error_by_part(errors: pd.DataFrame, theirs: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Geometric mean, mean and worst error of predictions, with published errors for comparison.

    Args:
        errors: columns method, points, gmae, mape, worst (fractions), one row per prediction method.
        theirs: published errors with the columns label, percent.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = [
        f"{row.method} ({row.points} {'point' if row.points == 1 else 'points'})"
        for row in errors.itertuples()
    ]
    labels = [*names, *theirs["label"]]
    board = Board([rows_height(labels, page)], page)
    (axes,) = board.panels
    where = np.arange(len(errors))
    axes.barh(where, 100 * errors["gmae"], color=ACTIVE, height=0.6)
    many = bool((errors["points"] > 1).any())
    if many:
        axes.plot(
            100 * errors["mape"], where, "|", color="black", markersize=11, markeredgewidth=1.5
        )
        axes.plot(100 * errors["worst"], where, ">", color="black", markersize=5)
    axes.barh(np.arange(len(theirs)) + len(errors), theirs["percent"], height=0.6, **PUBLISHED_BAR)
    ends = [*100 * errors[["gmae", "mape", "worst"]].max(axis=1), *theirs["percent"]]
    value_labels(
        axes,
        ends,
        [*(f"{100 * gmae:.1f}" for gmae in errors["gmae"]), *(f"{p:g}" for p in theirs["percent"])],
    )
    axes.set_xlim(left=0)
    board.label_rows(axes, labels)
    board.number_ticks(axes)
    board.names(axes, "|predicted / measured − 1| (%)")
    step = errors[errors["method"] == OWN_OVERHEADS]
    if len(step):
        what = (
            "The geometric mean error of predicted steps"
            if many
            else "The error of the predicted step"
        )
        board.headline(f"{what} is {100 * step['gmae'].iloc[0]:.1f} %")
    handles: list[Artist] = [Patch(color=ACTIVE)]
    shown = ["ours: geometric mean" if many else "ours"]
    if many:
        handles += [Line2D([], [], color="black", marker=mark, linestyle="none") for mark in "|>"]
        shown += ["ours: mean", "ours: worst"]
    board.legend([*handles, Patch(**PUBLISHED_BAR)], [*shown, "published, other data"])
    return board.figure


def convolutional_networks(steps: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Predicted steps of ResNet-50 and Inception v3, and errors: ours for measured steps, published means hatched.

    Args:
        steps: `steps` rows of these networks.
    """
    from matplotlib.patches import Patch

    rows = steps.reset_index(drop=True)
    labels = [f"{row.gpu}, {row.workload}" for row in rows.itertuples()]
    errors = _network_errors(rows)
    names = [name for name, _, _ in errors]
    board = Board([rows_height(labels, page), rows_height(names, page)], page, columns=1)
    above, below = board.panels
    board.label_rows(above, labels)
    step_bars(board, above, rows)
    board.title(above, "Predicted steps")
    for row, (_, percent, theirs) in enumerate(errors):
        below.barh(row, percent, height=0.62, **(PUBLISHED_BAR if theirs else {"color": ACTIVE}))
    value_labels(
        below, [percent for _, percent, _ in errors], [f"{percent:.1f}" for _, percent, _ in errors]
    )
    board.label_rows(below, names)
    board.names(below, "mean error of a step (%)")
    below.set_xlim(left=0)
    board.number_ticks(below)
    board.title(below, "Mean errors, published ones hatched")
    known = [percent for _, percent, theirs in errors if not theirs]
    best = min((percent, name) for name, percent, theirs in errors if theirs)
    ours = f"ours {np.mean(known):.1f} %" if known else "ours were not measured in this grid"
    board.headline(
        f"Errors of convolutional networks: {ours}; the best published mean is {best[0]:.1f} %"
        f" ({best[1]})"
    )
    handles, shown = step_legend(bool(rows["measured_us"].notna().any()))
    board.legend([*handles, Patch(**PUBLISHED_BAR)], [*shown, "published"])
    board.note(
        "Published: Lin et al., HiPC 2022; means over V100, TITAN Xp and P100 and batch 16, 32 and"
        " 64, on their hosts and software."
    )
    if missing := [network for network in _networks(rows) if not _measured(rows, network).any()]:
        board.note(f"No measured step in this grid: {', '.join(missing)}.")
    if short := [name for name, fits in zip(labels, rows["fits"], strict=True) if not fits]:
        board.note(f"More memory than the GPU has: {'; '.join(short)}.")
    return board.figure


def _networks(rows: pd.DataFrame) -> list[str]:
    have = set(rows["model_variant"].str.split().str[0])
    return [network for network in CONVNETS if network in have]


def _measured(rows: pd.DataFrame, network: str) -> pd.Series:
    return (rows["model_variant"].str.split().str[0] == network) & rows["measured_us"].notna()


def _network_errors(rows: pd.DataFrame) -> list[tuple[str, float, bool]]:
    """(name, error in %, whether published) of the networks of these rows."""
    errors: list[tuple[str, float, bool]] = []
    for network in _networks(rows):
        measured = rows[_measured(rows, network)]
        if len(measured):
            error = 100 * float(
                (measured["predicted_us"] / measured["measured_us"] - 1).abs().mean()
            )
            errors.append((f"ours, {network}", error, False))
        errors += [
            (f"{method}, {network}", published(f"{network} {method}")[0].percent, True)
            for method in NETWORK_METHODS.values()
        ]
    return errors


def replay_errors(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Mean absolute error of the span per public trace, with a mark per prediction method.

    Args:
        errors: `mean_errors` of `evaluation.figures.accuracy_data`.
    """
    traces = distinct(errors["trace"])
    one_each = errors.drop_duplicates("trace").set_index("trace")
    labels = [f"{name} ({one_each.loc[name, 'device'].removeprefix('NVIDIA ')})" for name in traces]
    board = Board([1.2 * rows_height(labels, page)], page)
    (axes,) = board.panels
    methods = [name for name in REPLAY_METHODS if (errors["method"] == name).any()]
    handles: list[Artist] = []
    for number, (method, colour, marker) in enumerate(zip(methods, SERIES, MARKERS, strict=False)):
        of_method = errors[errors["method"] == method]
        shift = 0.5 * (
            (number + 0.5) / len(methods) - 0.5
        )  # shifted, so that equal errors do not hide each other
        where = np.array([traces.index(name) for name in of_method["trace"]]) + shift
        percent = np.maximum(100 * of_method["mean_error"].to_numpy(float), MIN_DRAWN_PERCENT)
        handles += axes.plot(
            percent,
            where,
            marker,
            color=colour,
            markersize=7 if number == 0 else 5.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
        )
    for row in range(0, len(traces), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
    board.label_rows(axes, labels)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    board.names(axes, "mean |predicted / measured − 1| of an iteration's span (%)")
    ours = errors.loc[errors["method"] == methods[0], "mean_error"]
    board.headline(
        f"Replayed public traces: {100 * ours.mean():.1f} % mean error, {100 * ours.max():.1f} % at"
        " worst"
    )
    board.legend(handles, methods)
    board.note(
        "Kernel times given, host time and waiting predicted, from other iterations, ranks or"
        " machines."
    )
    return board.figure


def draw_passes(board: Board, axes: Axes, passes: pd.DataFrame) -> tuple[list[Artist], list[str]]:
    """Draw predicted against measured passes; returns a mark per GPU and its name with the mean error."""
    equality(axes, passes[["measured_us", "predicted_us"]].to_numpy(float) / 1e6)
    handles: list[Artist] = []
    names = []
    for (gpu, colour), marker in zip(
        series_colours(sorted(set(passes["gpu"]))).items(), MARKERS * 4, strict=False
    ):
        rows = passes[passes["gpu"] == gpu]
        error = 100 * float((rows["predicted_us"] / rows["measured_us"] - 1).abs().mean())
        handles += axes.plot(
            rows["measured_us"] / 1e6,
            rows["predicted_us"] / 1e6,
            marker,
            color=colour,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
        names.append(f"{short_gpu(gpu)}: mean error {error:.1f} %")
    board.names(axes, "measured (s)", "predicted (s)")
    return handles, names


def short_gpu(gpu: str) -> str:
    """Name of a GPU without its bus, for labels."""
    return gpu.replace("-PCIE-40GB", "").replace("-PCIE-80GB", " 80 GB")
