"""Where the time of a step goes, by module of the model: time, parameters, arithmetic and bytes of each.

The time of the device is counted once: where calls of several streams overlap, the moment belongs to the call that began first,
and what collectives hide behind no call is a row of its own. So the rows without a row above them add up to the active time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.arithmetic import product_flops
from pipeline.arrays import Array, Flags
from pipeline.errors import InputError
from pipeline.hardware.rank_layout import COMMUNICATION
from pipeline.prediction import Prediction

OUTSIDE = "outside modules"
"""Row of operators that belong to no module; collectives have one of their own (`COMMUNICATION`)."""

COLUMNS = (
    "module", "depth", "parameters", "forward_us", "backward_us", "active_us", "share", "flops",
    "peak_share", "bytes", "kept_bytes", "evidence", "kernels",
)  # fmt: skip
"""Columns of `module_table`."""


def module_table(prediction: Prediction) -> pd.DataFrame:
    """A row per module with everything in it, in the order in which the step runs them; a model before its parts.

    Returns:
        `module` (path), `depth` (0: no row above), `parameters`.
        `forward_us` and `backward_us`, device time of each pass, and `active_us`, their sum (for `inputs`, `loss` and
        `optimizer` too); `share` of the step time.
        `flops` that products execute; `peak_share`, these over the time and the GPU's datasheet peak for their dtype, null
        without products.
        `bytes` read and written; `kept_bytes`, what its forward pass makes and keeps for the backward pass.
        `evidence`, share of the device time by kind of evidence; `kernels`, number of device calls.
        `active_us` of the rows with depth 0 adds up to the prediction's.

    Raises:
        InputError: the prediction has no device calls by module.
    """
    p = prediction
    if p.calls is None or p.calls["module"].isna().all():
        raise InputError(
            "no modules: the step was traced, read from a table, or uses none; ask predict() about"
            " a model"
        )
    calls = p.calls[p.calls["device_end_us"].notna()]
    peaks = dict(p.arithmetic.peaks_tflop_per_s) if p.arithmetic else {}
    flops = product_flops(calls)
    sums = pd.DataFrame(
        {
            "module": np.where(
                calls["family"] == "collective",
                COMMUNICATION,
                calls["module"].fillna(OUTSIDE).to_numpy(object),
            ),
            "us": alone_us(calls),
            "back": calls["phase"].to_numpy() == "backward",
            "flops": flops,
            "ideal_us": flops / calls["dtype"].map(peaks).fillna(1.0).to_numpy(np.float64) / 1e6,
            "bytes": (calls["bytes_read"] + calls["bytes_written"]).to_numpy(np.float64),
            "evidence": calls["evidence"].to_numpy(object),
        }
    )
    rows = [
        _row(path, sums[_within(sums["module"], path)], p)
        for path in _in_order(sums["module"], p.parameters)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def alone_us(calls: pd.DataFrame) -> Array:
    """Time of each call without what an earlier one covers, µs; of collectives, without all other calls."""
    moving = (calls["family"] == "collective").to_numpy()
    begin, end = (calls[f"device_{at}_us"].to_numpy(np.float64) for at in ("start", "end"))
    us = np.zeros(len(calls))
    us[~moving] = _first_us(begin[~moving], end[~moving])
    if moving.any():
        exposed = _first_us(begin, end).sum() - us.sum()
        lasted = (end - begin)[moving]
        us[moving] = exposed * lasted / max(lasted.sum(), 1e-12)
    return us


def _first_us(begin: Array, end: Array) -> Array:
    """Time of each interval that none of those that begin before it covers."""
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(np.append(-np.inf, end[order]))[:-1]
    us = np.zeros(len(begin))
    us[order] = np.maximum(end[order] - np.maximum(begin[order], reached), 0.0)
    return us


def _in_order(modules: pd.Series, parameters: Mapping[str, int]) -> list[str]:
    """Every path with calls or parameters, after those above it, in the order of the first call."""
    below: dict[str, dict[str, None]] = {}
    for path in [*modules.unique(), *(path for path, count in parameters.items() if count)]:
        parts = path.split(".")
        for depth in range(len(parts)):
            below.setdefault(".".join(parts[:depth]), {})[".".join(parts[: depth + 1])] = None

    def listed(path: str) -> list[str]:
        return [one for child in below.get(path, ()) for one in (child, *listed(child))]

    return listed("")


def _within(modules: pd.Series, path: str) -> Flags:
    inside: Flags = ((modules == path) | modules.str.startswith(f"{path}.")).to_numpy(bool)
    return inside


def _sum_within(of: Mapping[str, int], path: str) -> int:
    """Sum of what is known of a module and those in it, by path."""
    return sum(value for name, value in of.items() if name == path or name.startswith(f"{path}."))


def _row(path: str, calls: pd.DataFrame, p: Prediction) -> dict[str, Any]:
    us, back = calls["us"].to_numpy(), calls["back"].to_numpy(bool)
    total, ideal = float(us.sum()), float(calls["ideal_us"].sum())
    evidence = calls.groupby("evidence", sort=False)["us"].sum().sort_values(ascending=False)
    return {
        "module": path,
        "depth": path.count("."),
        "parameters": _sum_within(p.parameters, path),
        "forward_us": float(us[~back].sum()),
        "backward_us": float(us[back].sum()),
        "active_us": total,
        "share": total / p.predicted_us,
        "flops": float(calls["flops"].sum()),
        "peak_share": ideal / total if ideal and total else None,
        "bytes": float(calls["bytes"].sum()),
        "kept_bytes": _sum_within(p.kept_bytes, path),
        "kernels": len(calls),
        "evidence": (
            {str(kind): float(value) / total for kind, value in evidence.items()} if total else {}
        ),
    }
