"""Error figures of kernel predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Array

MIN_RELATIVE_ERROR = 1e-6
"""Lower bound of a relative error, so that one exact prediction does not make the geometric mean zero."""

DECILES = tuple(f"gmae_size_{tenth}0" for tenth in range(1, 11))
"""Names of the GMAE of each tenth of the calls by traffic in bytes: `gmae_size_10` (smallest) to `gmae_size_100`."""

MIN_ROWS_BY_SIZE = 100
"""Smallest number of rows for errors by size: each tenth then has ten rows, and fewer would be too noisy."""


def gmae(predicted: Array, measured: Array) -> float:
    """Geometric mean of |predicted - measured| / measured, as a fraction."""
    return float(
        np.exp(np.mean(np.log(np.maximum(np.abs(predicted / measured - 1.0), MIN_RELATIVE_ERROR))))
    )


def mape(predicted: Array, measured: Array) -> float:
    """Arithmetic mean of |predicted - measured| / measured, as a fraction."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def metrics(test: pd.DataFrame) -> dict[str, float]:
    """Error figures of a table with `latency_us`, `predicted_us`, `p10_us`, `p90_us` (of the latency) and `floor_us`.

    Returns:
        gmae, mape, bias (geometric), coverage, and gmae and rows of samples above twice the floor.
    """
    measured, predicted = (
        test[name].to_numpy(dtype=float) for name in ("latency_us", "predicted_us")
    )
    inside = (test["p10_us"] <= test["latency_us"]) & (test["latency_us"] <= test["p90_us"])
    above = measured > 2.0 * test["floor_us"].to_numpy(dtype=float)
    figures = {
        "gmae": gmae(predicted, measured),
        "mape": mape(predicted, measured),
        "bias": float(np.exp(np.mean(np.log(predicted / measured))) - 1.0),
        "coverage": float(inside.mean()),
        "rows": float(len(test)),
        "above_floor_rows": float(above.sum()),
    }
    if above.any():
        figures["above_floor_gmae"] = gmae(predicted[above], measured[above])
    return figures


def gmae_by_size(test: pd.DataFrame, size: Array) -> dict[str, float]:
    """GMAE of each tenth of the calls by size, named as in `DECILES`; empty with fewer than `MIN_ROWS_BY_SIZE` rows.

    Args:
        test: table with `latency_us` and `predicted_us`.
        size: bytes that each call moves, shape (rows,).
    """
    if len(test) < MIN_ROWS_BY_SIZE:
        return {}
    measured, predicted = (
        test[name].to_numpy(dtype=float) for name in ("latency_us", "predicted_us")
    )
    tenths = np.array_split(np.argsort(size, kind="stable"), len(DECILES))
    return {
        name: gmae(predicted[rows], measured[rows])
        for name, rows in zip(DECILES, tenths, strict=True)
    }
