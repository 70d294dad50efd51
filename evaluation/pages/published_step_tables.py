"""Errors of predicted steps against published ones, and their Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from evaluation.published.published_steps import NETWORKS
from pipeline.kernels.estimate import EXTRAPOLATED
from pipeline.prediction import Prediction

PYTORCH_2_GPUS = ("B200",)
"""GPUs that ran PyTorch 2. The others ran 1.13: its optimizers update one parameter at a time, and it fills gradients with
zeros, whereas later versions drop them."""


def with_errors(rows: pd.DataFrame, found: Sequence[Prediction], predicted_us: Sequence[float]) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error`, `inside` (of p10 to p90), `evidence` and `fits`.

    Args:
        rows: published steps with `measured_us`.
        found: Steptime's prediction of each.
        predicted_us: step times without parts that did not run there; p10 and p90 shrink in proportion.
    """
    rows = rows.assign(predicted_us=predicted_us)
    measured = rows["measured_us"].to_numpy()
    kept = rows["predicted_us"].to_numpy() / np.array([one.predicted_us for one in found])
    low, high = (kept * np.array([getattr(one, end) for one in found]) for end in ("p10_us", "p90_us"))
    main = [main_evidence(one.evidence) for one in found]
    inside = (low <= measured) & (measured <= high)
    fits = [one.fits for one in found]
    off = rows["predicted_us"] / measured - 1.0
    return rows.assign(error=off, inside=inside, p10_us=low, p90_us=high, evidence=main, fits=fits)


def main_evidence(shares: Mapping[str, float]) -> str:
    """The kind of evidence of the largest part of device time, inside and outside the range of the samples."""
    parts = pd.Series(shares).groupby(lambda name: str(name).removesuffix(EXTRAPOLATED)).sum()
    return str(parts.idxmax())


def summary(rows: pd.DataFrame) -> list[str]:
    """Table by workload and precision: rows, mean and mean absolute error, worst error, coverage, median p90 over p10."""
    lines = [
        "| step | precision | rows | mean error % | mean absolute error % | unseen: mean absolute error % | worst % "
        "| inside p10-p90 % | unseen: inside p10-p90 % | p90 over p10 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    named = rows.assign(model=rows["model"].where(rows["source"] != "timm", f"{len(NETWORKS)} networks for images"))
    for (model, mode, dtype), group in named.groupby(["model", "mode", "dtype_of_table"], sort=False):
        size, unseen = 100 * group["error"].abs(), group[~group["seen"]]
        of_unseen = f"{100 * unseen['error'].abs().mean():.1f}" if len(unseen) else ""
        held = f"{100 * unseen['inside'].mean():.0f}" if len(unseen) else ""
        lines.append(
            f"| {model}, {mode} | {dtype} | {len(group)} | {100 * group['error'].mean():+.1f} | {size.mean():.1f} | "
            f"{of_unseen} | {size.max():.1f} | {100 * group['inside'].mean():.0f} | {held} | {_width(group):.2f} |"
        )
    return lines


def _width(rows: pd.DataFrame) -> float:
    """Median of p90 over p10."""
    return float((rows["p90_us"] / rows["p10_us"]).median())


def coverage(rows: pd.DataFrame) -> str:
    """Number of unseen rows inside p10 to p90, by precision and by the main evidence of the step."""
    unseen = rows[~rows["seen"]]
    precision = np.where(unseen["dtype"] == "fp16", "fp16", "fp32 and TF32")
    parts = [("all", unseen), *unseen.groupby(precision), *unseen.groupby("evidence")]
    said = [f"{name} {part['inside'].sum()} of {len(part)} ({_width(part):.2f})" for name, part in parts]
    return f"Unseen rows inside p10-p90, and the median p90 over p10: {'; '.join(said)}."


def table(rows: pd.DataFrame) -> list[str]:
    """Table with one line per published step."""
    lines = [
        "| GPU | step | precision | batch | measured ms | predicted ms | p10 to p90 | error % | evidence |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.to_dict("records"):
        mark = " (seen)" if row["seen"] else ""
        layout = ", NHWC" if row["memory_format"] == "channels_last" else ""
        lines.append(
            f"| {row['gpu']}{mark} | {row['model']}, {row['mode']} | {row['dtype']}{layout} | {row['batch_size']} | "
            f"{row['measured_us'] / 1e3:.1f} | {row['predicted_us'] / 1e3:.1f} | "
            f"{row['p10_us'] / 1e3:.1f} to {row['p90_us'] / 1e3:.1f}{'' if row['inside'] else ', outside'} | "
            f"{100 * row['error']:+.1f} | {row['evidence']} |"
        )
    return lines
