"""Markdown tables of predicted steps beside published ones (rows of `published_step_errors.with_errors`)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluation.published.published_steps import NETWORKS


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
