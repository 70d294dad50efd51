"""Error figures of kernel predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.kernels.work import Array

SMALLEST_ERROR = 1e-6
"""Errors are clipped below, so that one exact hit does not make a geometric mean zero (DESIGN section 13)."""


def gmae(predicted: Array, measured: Array) -> float:
    """Geometric mean of |predicted - measured| / measured, as a fraction."""
    return float(np.exp(np.mean(np.log(np.maximum(np.abs(predicted / measured - 1.0), SMALLEST_ERROR)))))


def mape(predicted: Array, measured: Array) -> float:
    """Arithmetic mean of |predicted - measured| / measured, as a fraction."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def metrics(test: pd.DataFrame) -> dict[str, float]:
    """Figures of a table with `latency_us`, `predicted_us`, `p10_us`, `p90_us` (of the latency) and `floor_us`.

    Returns:
        gmae, mape, bias (geometric), coverage, and gmae and rows of samples above twice the floor.
    """
    measured, predicted = (test[name].to_numpy(dtype=np.float64) for name in ("latency_us", "predicted_us"))
    inside = (test["p10_us"] <= test["latency_us"]) & (test["latency_us"] <= test["p90_us"])
    above = measured > 2.0 * test["floor_us"].to_numpy(dtype=np.float64)
    found = {
        "gmae": gmae(predicted, measured),
        "mape": mape(predicted, measured),
        "bias": float(np.exp(np.mean(np.log(predicted / measured))) - 1.0),
        "coverage": float(inside.mean()),
        "rows": float(len(test)),
        "above_floor_rows": float(above.sum()),
    }
    if above.any():
        found["above_floor_gmae"] = gmae(predicted[above], measured[above])
    return found
