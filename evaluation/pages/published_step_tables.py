"""Errors of predicted steps against published ones, and their Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown
from evaluation.published.published_steps import SHOWN_GPUS, TUNING_GPUS
from pipeline.kernels.estimate import EXTRAPOLATED
from pipeline.prediction import Prediction

NOMINAL, BAND, LARGE = 0.8, (0.73, 0.87), 100
"""Share of rows that an interval should hold; what it may be with `LARGE` rows or more. Fewer rows take a binomial test."""

TUNED, SAME_GPU, UNTOUCHED = (
    "used for tuning",
    "GPUs used for other constants",
    "GPUs not used for tuning",
)
GROUPS = (UNTOUCHED, SAME_GPU, TUNED)
"""Groups of rows that are never pooled."""

PYTORCH_2_GPUS = ("B200",)
"""GPUs that ran PyTorch 2. The others ran 1.13: its optimizers update one parameter at a time, and it fills gradients with
zeros, whereas later versions drop them."""


def with_errors(
    rows: pd.DataFrame, found: Sequence[Prediction], predicted_us: Sequence[float]
) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error`, `inside` (of p10 to p90), `evidence` and `fits`.

    Args:
        rows: published steps with `measured_us`.
        found: Steptime's prediction of each.
        predicted_us: step times without parts that did not run there; p10 and p90 shrink in proportion.
    """
    rows = rows.assign(predicted_us=predicted_us)
    measured = rows["measured_us"].to_numpy()
    kept = rows["predicted_us"].to_numpy() / np.array([one.predicted_us for one in found])
    low, high = (
        kept * np.array([getattr(one, end) for one in found]) for end in ("p10_us", "p90_us")
    )
    main = [main_evidence(one.evidence) for one in found]
    inside = (low <= measured) & (measured <= high)
    fits = [one.fits for one in found]
    off = rows["predicted_us"] / measured - 1.0
    bounds = [one.bound for one in found]
    return rows.assign(
        error=off, inside=inside, p10_us=low, p90_us=high, evidence=main, fits=fits, bound=bounds
    )


def main_evidence(shares: Mapping[str, float]) -> str:
    """The kind of evidence of the largest part of device time, inside and outside the range of the samples."""
    parts = pd.Series(shares).groupby(lambda name: str(name).removesuffix(EXTRAPOLATED)).sum()
    return str(parts.idxmax())


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


def summary(rows: pd.DataFrame) -> str:
    """Table by workload and precision: errors of each of `GROUPS`, with its number of rows."""
    rows = with_groups(rows)
    lines = []
    for (model, mode, dtype), part in rows.groupby(["model", "mode", "dtype_of_table"], sort=False):
        cells = [f"{model}, {mode}", str(dtype)]
        for name in GROUPS:
            error = 100 * part.loc[part["group"] == name, "error"]
            cells.append(
                f"{len(error)}: {error.mean():+.1f}, {error.abs().mean():.1f},"
                f" {error.abs().max():.1f}"
                if len(error)
                else ""
            )
        lines.append([*cells, f"{_width(part):.2f}"])
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
        by_precision = [
            (kind, rows.loc[(rows["group"] == name) & of, "error"].abs())
            for kind, of in (
                ("fp32, TF32", rows["dtype"] != "fp16"),
                ("fp16", rows["dtype"] == "fp16"),
            )
        ]
        said = [
            f"{100 * error.mean():.1f} ({kind}, {len(error)} rows)"
            for kind, error in by_precision
            if len(error)
        ]
        parts += [f"{name} {', '.join(said)}"] if said else []
    return f"Mean absolute error of {what} in %: {'; '.join(parts)}."


def coverage(rows: pd.DataFrame) -> str:
    """Table of the rows inside p10 to p90, by precision, bound and main evidence of the step, for each of `GROUPS`."""
    rows = with_groups(rows)
    precision = pd.Series(np.where(rows["dtype"] == "fp16", "fp16", "fp32 and TF32"), rows.index)
    kinds: list[tuple[str, pd.Series]] = [("all", pd.Series(True, rows.index))]
    for by in (precision, rows["bound"].map(lambda bound: f"{bound}-bound"), rows["evidence"]):
        kinds += [(str(kind), by == kind) for kind in sorted(set(by))]
    lines = [
        [
            name,
            *(counted(rows.loc[of & (rows["group"] == group), "inside"]) for group in GROUPS),
            f"{_width(rows[of]):.2f}",
        ]
        for name, of in kinds
    ]
    return markdown(["inside p10 to p90", *GROUPS, "p90 over p10"], lines)


def table(rows: pd.DataFrame) -> list[str]:
    """Table with one line per published step."""
    lines = [
        (
            "| GPU | step | precision | batch | measured ms | predicted ms | p10 to p90 | error % |"
            " evidence |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.to_dict("records"):
        mark = " (seen)" if row["seen"] else ""
        layout = ", NHWC" if row["memory_format"] == "channels_last" else ""
        lines.append(
            f"| {row['gpu']}{mark} | {row['model']}, {row['mode']} | {row['dtype']}{layout} |"
            f" {row['batch_size']} | {row['measured_us'] / 1e3:.1f} |"
            f" {row['predicted_us'] / 1e3:.1f} | {row['p10_us'] / 1e3:.1f} to"
            f" {row['p90_us'] / 1e3:.1f}{'' if row['inside'] else ', outside'} |"
            f" {100 * row['error']:+.1f} | {row['evidence']} |"
        )
    return lines
