"""Tables of published steps: a row holds what was measured, the command that predicts it, and how far off that is.

The table of a page is the only place of these rows: it is read, predicted again and written (`evaluation/compare_published.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown, table_rows
from evaluation.published.published_steps import SHOWN_GPUS, TUNING_GPUS
from pipeline.errors import InputError

NOMINAL, BAND, LARGE = 0.8, (0.73, 0.87), 100
"""Share of rows that an interval should hold; what it may be with `LARGE` rows or more. Fewer rows take a binomial test."""

TUNED, SAME_GPU, UNTOUCHED = (
    "used for tuning",
    "GPUs used for other constants",
    "GPUs not used for tuning",
)
GROUPS = (UNTOUCHED, SAME_GPU, TUNED)
"""Groups of rows that are never pooled."""

TIMES = ("measured ms", "predicted ms", "p10 to p90", "error %")
HEAD = ("GPU", "step", "precision", "batch", *TIMES, "evidence", "command")
"""Columns of a table of steps. Those up to *measured ms*, and the command, are given; a prediction makes the others."""

SEEN = " (seen)"
"""Behind the GPU of a row that was used for tuning."""


def read_steps(text: str) -> pd.DataFrame:
    """The rows of a page's table of steps: `gpu`, `seen`, `step`, `precision`, `batch_size`, `measured_us`, `command`.

    Raises:
        InputError: the text has no such table.
    """
    rows = table_rows(text)
    try:
        return pd.DataFrame(
            {
                "gpu": [row["GPU"].removesuffix(SEEN) for row in rows],
                "seen": [row["GPU"].endswith(SEEN) for row in rows],
                "step": [row["step"] for row in rows],
                "precision": [row["precision"] for row in rows],
                "batch_size": [int(row["batch"]) for row in rows],
                "measured_us": [1e3 * float(row["measured ms"]) for row in rows],
                "command": [row["command"].strip("`") for row in rows],
            }
        )
    except (KeyError, ValueError) as error:
        raise InputError(f"a table of published steps: {error} is missing or no number") from None


def with_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `group`: one of `GROUPS`, by `seen` of the row, and whether anything of its GPU was used, here or elsewhere."""
    tuned = {*rows.loc[rows["seen"], "gpu"], *TUNING_GPUS, *SHOWN_GPUS}
    group = np.where(rows["seen"], TUNED, np.where(rows["gpu"].isin(tuned), SAME_GPU, UNTOUCHED))
    return rows.assign(group=group)


def holds(inside: int, rows: int) -> bool:
    """Whether a count of rows inside p10 to p90 agrees with 80 %: `BAND`, or a two-sided binomial test at 5 %."""
    from scipy.stats import binomtest

    if rows >= LARGE:
        return BAND[0] <= inside / rows <= BAND[1]
    return rows == 0 or bool(binomtest(inside, rows, NOMINAL).pvalue >= 0.05)


def counted(inside: pd.Series) -> str:
    """Rows inside p10 to p90 of all rows; marked where `holds` says no."""
    if not len(inside):
        return ""
    return (
        f"{inside.sum()} of {len(inside)}{'' if holds(int(inside.sum()), len(inside)) else ' (!)'}"
    )


def precisions(rows: pd.DataFrame) -> pd.Series:
    """The precision of each row as summaries state it: fp32 and TF32 are one, because pages call both fp32."""
    return rows["precision"].replace({"fp32": "fp32 or TF32", "tf32": "fp32 or TF32"})


def is_half(rows: pd.DataFrame) -> pd.Series:
    """Whether each row ran in half precision."""
    return rows["precision"].str.startswith(("fp16", "bf16"))


def half_names(rows: pd.DataFrame) -> str:
    """Names of the half precisions of rows."""
    asked = rows["precision"].str.slice(0, 4)
    return ", ".join(name for name in ("fp16", "bf16") if (asked == name).any()) or "fp16"


def summary(rows: pd.DataFrame) -> str:
    """Table by workload and precision: errors of each of `GROUPS`, with its number of rows."""
    rows = with_groups(rows)
    lines = []
    for (step, precision), part in rows.groupby(["step", precisions(rows)], sort=False):
        errors = [100 * part.loc[part["group"] == name, "error"] for name in GROUPS]
        cells = [
            f"{len(one)}: {one.mean():+.1f}, {one.abs().mean():.1f}, {one.abs().max():.1f}"
            if len(one)
            else ""
            for one in errors
        ]
        lines.append([str(step), str(precision), *cells, f"{_width(part):.2f}"])
    return markdown(
        [
            "step",
            "precision",
            *(f"{name}: rows: mean, mean absolute, worst error %" for name in GROUPS),
            "p90 over p10",
        ],
        lines,
    )


def _width(rows: pd.DataFrame) -> float:
    """Median of p90 over p10."""
    return float((rows["p90_us"] / rows["p10_us"]).median())


def mean_errors(rows: pd.DataFrame, what: str) -> str:
    """A sentence: mean absolute error by precision, for each of `GROUPS`, with its number of rows."""
    rows = with_groups(rows)
    parts = []
    for name in GROUPS:
        said = [
            f"{100 * error.mean():.1f} ({kind}, {len(error)} rows)"
            for kind, of in (("fp32, TF32", ~is_half(rows)), (half_names(rows), is_half(rows)))
            if len(error := rows.loc[(rows["group"] == name) & of, "error"].abs())
        ]
        parts += [f"{name} {', '.join(said)}"] if said else []
    return f"Mean absolute error of {what} in %: {'; '.join(parts)}."


def coverage(rows: pd.DataFrame) -> str:
    """Table of the rows inside p10 to p90, by precision, source (in parentheses behind a step), bound and evidence, by `GROUPS`."""
    rows = with_groups(rows)
    precision = is_half(rows).map({True: half_names(rows), False: "fp32 and TF32"})
    kinds: list[tuple[str, pd.Series]] = [("all", pd.Series(True, rows.index))]
    source = rows["step"].str.extract(r"\((.+)\)", expand=False)
    for by in (precision, source, rows["bound"] + "-bound", rows["evidence"]):
        kinds += [(str(kind), by == kind) for kind in sorted(set(by.dropna()))]
    lines = [
        [
            name,
            *(counted(rows.loc[of & (rows["group"] == group), "inside"]) for group in GROUPS),
            f"{_width(rows[of]):.2f}",
        ]
        for name, of in kinds
    ]
    return markdown(["inside p10 to p90", *GROUPS, "p90 over p10"], lines)


def times(row: Mapping[Hashable, Any]) -> list[str]:
    """Measured and predicted time in ms, p10 to p90, and the error in %: cells of the row of a step."""
    low, high = (f"{row[name] / 1e3:.4g}" for name in ("p10_us", "p90_us"))
    return [
        f"{row['measured_us'] / 1e3:.6g}",
        f"{row['predicted_us'] / 1e3:.4g}",
        f"{low} to {high}{'' if row['inside'] else ', outside'}",
        f"{100 * row['error']:+.1f}",
    ]


def table(rows: pd.DataFrame) -> str:
    """Table with one line per published step (`HEAD`)."""
    lines = [
        [
            f"{row['gpu']}{SEEN if row['seen'] else ''}",
            row["step"],
            row["precision"],
            str(row["batch_size"]),
            *times(row),
            row["evidence"],
            f"`{row['command']}`",
        ]
        for row in rows.to_dict("records")
    ]
    return markdown(HEAD, lines)
