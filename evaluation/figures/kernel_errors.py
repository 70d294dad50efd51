"""Held-out errors of kernel models: their table and their figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from evaluation.published.published_errors import BOUND_PERCENT, BOUND_SOURCE
from pipeline.arrays import Array
from pipeline.kernels.error_metrics import DECILES
from pipeline.palette import series_colours
from pipeline.readable import distinct
from pipeline.show.figures.board import (
    MARKERS,
    NOTE,
    WIDE,
    Board,
    Page,
    in_order,
    marks,
    rows_height,
    value_labels,
)
from pipeline.show.kernel_runs import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def family_errors(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Held-out error of every kernel model (geometric mean and mean), and the coverage of its intervals.

    Args:
        errors: `kernel_errors` table: gpu, family, gmae, mape, coverage.
    """
    from matplotlib.lines import Line2D

    families, gpus = in_order(errors["family"]), distinct(errors["gpu"])
    colours = series_colours(gpus)
    height = rows_height(families, page) * max(1.0, 0.45 * len(gpus))
    board = Board([height, height], page, columns=2)
    left, right = board.panels
    groups = errors.sort_values("family", key=lambda f: f.map(families.index)).groupby("gpu")
    for number, (gpu, marker) in enumerate(zip(gpus, MARKERS * 4, strict=False)):
        rows = groups.get_group(gpu)
        where = rows["family"].map(families.index).to_numpy(float)
        where = where + 0.8 / len(gpus) * (number - (len(gpus) - 1) / 2)
        _errors_of_gpu(left, rows, where, marker, colours[gpu], labelled=len(gpus) == 1)
        right.plot(100 * rows["coverage"], where, marker, color=colours[gpu], markersize=6)
    left.axvline(BOUND_PERCENT, color="black", linestyle="--", linewidth=1, zorder=1)
    left.set_xlim(left=0)
    right.axvline(80, color="black", linewidth=1, linestyle="--", zorder=1)
    right.set_xlim(min(60.0, 100 * float(errors["coverage"].min()) - 2), 101)
    for axes in (left, right):
        board.label_rows(axes, families, once=True)
        board.number_ticks(axes)
    board.names(left, "error on shapes not trained on (%)")
    board.names(right, "calls inside p10 to p90 (%)")
    worst = errors.iloc[int(errors["gmae"].to_numpy().argmax())]
    every = "Every" if (errors["gmae"] < BOUND_PERCENT / 100).all() else "Not every"
    least_exact = f"{worst['family']} on {worst['gpu']} is least exact, {100 * worst['gmae']:.1f} %"
    board.headline(f"{every} kernel model errs by less than {BOUND_PERCENT:g} %; {least_exact}")
    board.title(left, "Error")
    board.title(right, "Coverage, target 80 %")
    hollow = Line2D([], [], color="black", marker="o", linestyle="none", markerfacecolor="white")
    board.legend([*marks(colours.values()), hollow], [*gpus, "hollow: arithmetic mean"])
    board.note(
        "Filled: GMAE, the geometric mean of the errors. Dashed: the published bound of every"
        f" family ({BOUND_SOURCE}), and the target of the intervals."
    )
    return board.figure


def _errors_of_gpu(
    axes: Axes, rows: pd.DataFrame, where: Array, marker: str, colour: str, labelled: bool
) -> None:
    """The errors of one GPU's models: the geometric mean with a line from zero, and a hollow arithmetic mean."""
    gmae, mape = 100 * rows["gmae"], 100 * rows["mape"]
    axes.hlines(where, 0, gmae, color=colour, linewidth=1.2)
    axes.plot(gmae, where, marker, color=colour, markersize=6)
    axes.plot(mape, where, marker, color=colour, markerfacecolor="white", markersize=5)
    if not labelled:
        return
    value_labels(axes, mape, [f"{percent:.1f}" for percent in mape])
    above: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "va": "bottom",
        "fontsize": NOTE,
    }
    for percent, row in zip(gmae, where, strict=True):
        axes.annotate(f"{percent:.1f}", (percent, row), (0, 4), color=colour, **above)


def kernel_errors(folders: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """Held-out errors of fitted kernel models.

    Args:
        folders: (GPU, model folder) pairs; folders without a fitted model are skipped.

    Returns:
        A table of these columns.
        Model: gpu, family, variant, evidence, split, measured_on, samples.
        Errors, as fractions: gmae, mape, bias, coverage, above_floor_gmae.
        The GMAE of each tenth of the calls by size (`DECILES`), missing if a model does not store it.
    """
    rows = []
    for gpu, folder in folders:
        file = folder / "family.json"
        if not file.is_file():
            continue
        facts = json.loads(file.read_text(encoding="utf-8"))
        metrics = dict(facts.get("metrics") or {})
        if (folder / METRICS).is_file():
            metrics = json.loads((folder / METRICS).read_text(encoding="utf-8")) | metrics
        if "gmae" in metrics:
            rows.append(_errors_row(gpu, facts, metrics))
    columns = [*_MODEL_COLUMNS, *_ERROR_COLUMNS]
    return pd.DataFrame(rows, columns=columns).sort_values(
        ["family", "gpu"], kind="stable", ignore_index=True
    )


_MODEL_COLUMNS = (
    "gpu", "family", "variant", "evidence", "split", "measured_on", "samples",
)  # fmt: skip
_ERROR_COLUMNS = ("gmae", "mape", "bias", "coverage", "above_floor_gmae", *DECILES)


def _errors_row(gpu: str, facts: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    measured_on = facts.get("measured_on") or []
    return {
        **{name: facts.get(name) for name in _MODEL_COLUMNS},
        **{name: metrics.get(name) for name in _ERROR_COLUMNS},
        "gpu": gpu,
        "measured_on": ", ".join(measured_on) if isinstance(measured_on, list) else measured_on,
    }
