"""Data of the figures of errors: small tables made from artifacts, written as CSV beside each figure."""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluation.checks import error_parts as parts
from evaluation.checks.method_names import REPLAY_METHODS, TRACKER_METHOD
from evaluation.published.published_lin2022 import read_mean_errors
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.summary_rows import predictions_of


def error_parts(summary: pd.DataFrame, computed_parts: pd.DataFrame | None = None) -> pd.DataFrame:
    """Error parts of all measured points: the computed ones, else the parts that the summary gives.

    Args:
        summary: `summary` table.
        computed_parts: rows of `evaluation.checks.error_parts.error_parts`, for some points or none.
    """
    computed = (
        pd.DataFrame(columns=parts.COLUMNS)
        if computed_parts is None or computed_parts.empty
        else computed_parts
    )
    done = set(zip(computed["gpu"], computed["workload"], strict=True))
    rest = [parts.error_parts(p) for p in predictions_of(summary) if (p.gpu, p.label) not in done]
    tables = [table for table in (computed, *rest) if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else computed


def errors_by_part(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors over all measured points of an `error_parts` table, with a row per part.

    Returns:
        method, points, gmae, mape, worst (fractions).
    """
    errors = []
    for part in (name for name in parts.PARTS if (rows["part"] == name).any()):
        of_part = rows[rows["part"] == part]
        predicted, measured = (
            of_part["predicted_us"].to_numpy(float),
            of_part["measured_us"].to_numpy(float),
        )
        errors.append(
            {
                "method": part,
                "points": len(of_part),
                "gmae": gmae(predicted, measured),
                "mape": mape(predicted, measured),
                "worst": float(np.abs(predicted / measured - 1).max()),
            }
        )
    return pd.DataFrame(errors, columns=["method", "points", "gmae", "mape", "worst"])


def mean_errors(spans: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute error (a fraction) per trace and method, with the number of evaluated iterations.

    Returns:
        trace, device, method, evaluated, mean_error, mean_measured_us.
    """
    spans = spans.assign(error=(spans["predicted_us"] / spans["measured_us"] - 1).abs())
    groups = spans.groupby(["trace", "device", "method"], sort=False)
    table = groups.agg(
        evaluated=("error", "size"),
        mean_error=("error", "mean"),
        mean_measured_us=("measured_us", "mean"),
    )
    order = {method: rank for rank, method in enumerate(REPLAY_METHODS)}
    traces = {trace: rank for rank, trace in enumerate(dict.fromkeys(spans["trace"]))}
    return table.reset_index().sort_values(
        ["trace", "method"],
        key=lambda c: c.map(order if c.name == "method" else traces),
        ignore_index=True,
    )


def model_transfer(errors: pd.DataFrame) -> pd.DataFrame:
    """Mean error of whole models between GPUs by the tracker's method.

    Args:
        errors: table of `evaluation.checks.surfer_pairs.paper_surfer`, with model, origin, destination, method and
            error (fraction).

    Returns:
        model, origin, destination, method, mape (%), passes.
    """
    tracked = errors[errors["method"] == TRACKER_METHOD].assign(
        mape=lambda t: 100 * t["error"].abs()
    )
    groups = tracked.groupby(["model", "origin", "destination", "method"], sort=True)["mape"]
    return groups.agg(mape="mean", passes="size").reset_index()


OWN, SHARED, OURS = (
    "Lin et al., own overheads",
    "Lin et al., shared overheads",
    "Steptime, other hosts",
)

STEPS_OF_GPU = 12
"""DLRM steps of each GPU in the paper of Lin et al.: three models, four batch sizes."""


def published_means(dlrm: pd.DataFrame, steps: int = STEPS_OF_GPU) -> pd.DataFrame:
    """GMAE of DLRM steps in %, over all and by GPU; only GPUs of which every published step is there.

    Args:
        dlrm: `predicted_dlrm` of `evaluation.checks.lin2022_steps`.
        steps: number of steps of each GPU.

    Returns:
        GPU, `OWN`, `SHARED`, `OURS`; first the row `all`, if no GPU is missing.
    """
    theirs = read_mean_errors().pivot_table(index="gpu", columns="what", values="gmae_pct")
    parts = {gpu: part for gpu, part in dlrm.groupby("gpu", sort=False) if len(part) == steps}
    if len(parts) == len(theirs) - 1:
        parts = {"all": dlrm, **parts}
    ours = [
        100 * gmae(part["predicted_us"].to_numpy(float), part["measured_us"].to_numpy(float))
        for part in parts.values()
    ]
    means = theirs.reindex(list(parts)).rename(columns={"step": OWN, "step_shared": SHARED})[
        [OWN, SHARED]
    ]
    return means.assign(**{OURS: ours}).rename_axis("GPU").reset_index()


METHODS = {"wave": "wave scaling", "mlp": "networks (MLP)", "auto": "Steptime"}
"""Methods of `pair_errors` that are compared, with their names."""


def methods_by_family(errors: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute error of kernels on another GPU in %: family, and a column per method; empty if a method is missing.

    Args:
        errors: `evaluation.training.left_out_gpu.pair_errors`.
    """
    if not set(METHODS) <= set(errors["method"]):
        return pd.DataFrame()
    shown = errors[errors["method"].isin(METHODS)].pivot_table(
        index="family", columns="method", values="mape"
    )
    return shown[list(METHODS)].rename(columns=METHODS).reset_index()
