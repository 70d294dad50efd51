"""Markdown tables of the steps that Lin et al. (HiPC 2022) measured, beside our predictions and the published ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown
from evaluation.pages.step_tables import TIMES, counted, times
from evaluation.published.published_errors import NETWORK_METHODS, published
from evaluation.published.published_lin2022 import DLRM_READING_MS
from pipeline.kernels.error_metrics import gmae, mape

OURS, PROFILED = "Steptime", "Lin et al., overheads profiled on those hosts"

READINGS = 10_000
"""Drawn sets of readings of the paper's figure: the deciles of the error over them are stable to 0.1 %."""


def dlrm_summary(rows: pd.DataFrame) -> str:
    """A line per prediction over all DLRM steps, and how much of it the reading of the figure leaves open."""
    lines = []
    for name, column, own in (
        (OURS, "error", counted(rows["inside"])),
        (PROFILED, "published_error", ""),
    ):
        error = rows[column]
        size = 100 * error.abs()
        off = gmae(1 + error.to_numpy(), np.ones(len(error)))
        means = f"{100 * off:.2f}", f"{size.mean():.1f}", f"{100 * error.mean():+.1f}"
        lines.append([name, *means, f"{size.max():.1f}", own])
    head = [
        f"{len(rows)} DLRM steps, predicted by",
        "GMAE %",
        "mean absolute %",
        "mean error %",
        "worst %",
        "inside p10-p90",
    ]
    return f"{markdown(head, lines)}\n\n{reading(rows)}"


def reading(rows: pd.DataFrame) -> str:
    """Errors if the measured steps differ from the readings by up to `DLRM_READING_MS`, drawn uniformly."""
    shape = (READINGS, len(rows))
    measured = rows["measured_us"].to_numpy() + 1e3 * DLRM_READING_MS * np.random.default_rng(
        0
    ).uniform(-1, 1, shape)
    predicted = rows["predicted_us"].to_numpy()
    errors = [[100 * figure(predicted, drawn) for drawn in measured] for figure in (gmae, mape)]
    (low, high), (lowest, highest) = (np.quantile(each, (0.1, 0.9)) for each in errors)
    return (
        f"The measured steps are read off a figure, to {DLRM_READING_MS:g} ms. With uniform errors"
        f" up to that size, 80 % of the draws give a GMAE\nof {low:.1f} to {high:.1f} % and a mean"
        f" of {lowest:.1f} to {highest:.1f} %. The paper's abstract states a GMAE of"
        f" {published('step')[0].percent:g} %."
    )


def cnn_summary(rows: pd.DataFrame) -> str:
    """A line per prediction: mean absolute error over all steps of convolutional networks, by GPU and by network."""
    parts = [
        rows.index,
        *(
            rows.index[rows[column] == value]
            for column in ("gpu", "model")
            for value in dict.fromkeys(rows[column])
        ),
    ]
    sizes = {OURS: rows["error"].abs(), **{name: rows[name] for name in NETWORK_METHODS.values()}}
    lines = [
        [name, *(f"{100 * size[part].mean():.1f}" for part in parts), f"{100 * size.max():.1f}"]
        for name, size in sizes.items()
    ]
    head = [
        f"{len(rows)} steps, mean absolute error %",
        "all",
        *dict.fromkeys(rows["gpu"]),
        *dict.fromkeys(rows["model"]),
    ]
    inside = f"{counted(rows['inside'])} measured steps lie inside p10 to p90."
    return f"{markdown([*head, 'worst'], lines)}\n\n{inside}"


def table(rows: pd.DataFrame) -> str:
    """A line per step, with published errors and the command that predicts it."""
    theirs = {"published_error": "Lin et al. %"} if "published_error" in rows else {}
    theirs |= {name: f"{name} %" for name in NETWORK_METHODS.values() if name in rows}
    signed = "+" if "published_error" in theirs else ""
    lines = [
        [
            row["gpu"],
            row["model"],
            str(row["batch_size"]),
            *times(row),
            *(f"{100 * row[name]:{signed}.1f}" for name in theirs),
            f"`{row['command']}`",
        ]
        for row in rows.to_dict("records")
    ]
    head = ["GPU", "model", "batch", *TIMES, *theirs.values(), "command"]
    return markdown(head, lines)


def busy(rows: pd.DataFrame) -> pd.Series:
    """Predicted busy share of each step, a fraction."""
    return rows["active_us"] / rows["predicted_us"]


def busy_summary(rows: pd.DataFrame, shares: Mapping[str, pd.Series]) -> str:
    """A line per prediction of busy shares: mean, mean absolute and worst difference in percentage points."""
    lines = []
    for name, share in shares.items():
        off = 100 * (share - rows["busy"])
        lines.append(
            [name, f"{off.mean():+.1f}", f"{off.abs().mean():.1f}", f"{off.abs().max():.0f}"]
        )
    return markdown(["busy share predicted by", "mean difference", "mean absolute", "worst"], lines)


def busy_tables(rows: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> str:
    """Busy shares in their loop and in `others` by name; then measured and predicted shares in %, by GPU and model."""
    shares = {
        PROFILED: rows["published_busy"],
        f"{OURS}, their loop": busy(rows),
        **{f"{OURS}, {name}": busy(other) for name, other in others.items()},
    }
    pairs = [
        f"{100 * measured:.0f} → {100 * predicted:.0f}"
        for measured, predicted in zip(rows["busy"], busy(rows), strict=True)
    ]
    batches = sorted(rows["batch_size"].unique())
    lines = [
        [
            str(gpu),
            str(model),
            *group.set_index("batch_size")["pair"].reindex(batches, fill_value=""),
        ]
        for (gpu, model), group in rows.assign(pair=pairs).groupby(["gpu", "model"], sort=False)
    ]
    head = ["GPU", "model", *(f"batch {size}" for size in batches)]
    return f"{busy_summary(rows, shares)}\n\n{markdown(head, lines)}"
