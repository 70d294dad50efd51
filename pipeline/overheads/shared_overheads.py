"""Shares overheads across workloads and hosts: merges statistics, and fits one factor for a host of another speed.

Statistics of several workloads on one host are used for workloads that were never profiled there. On another host, all
host times are approximately a multiple of the donor's. One factor removes most of the error (docs/replay.md). It comes
from a few iterations of the target: the ratio of its host time to that of the donor's statistics for the same ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.overheads.op_names import ANY_OP, HOST_TYPES, normalised
from pipeline.overheads.overhead_model import ABSENT, GLOBAL, OverheadModel
from pipeline.overheads.statistics import summarise

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MIN_COMMON = 8
"""Smallest number of common keys for a factor. With fewer keys the factor would be unreliable, and it stays 1."""


@dataclass(frozen=True)
class Calibration:
    """One factor between two hosts.

    Attributes:
        scale: host time on the target divided by host time on the donor.
        common: number of (type, op, calls) keys of the target that the donor's statistics contain.
        coverage: share of the target's host time in those keys.
    """

    scale: float
    common: int
    coverage: float


def merged(samples: pd.DataFrame, estimator: str = "clipped_mean") -> pd.DataFrame:
    """Shared statistics of several workloads of one host, per op, because shapes differ between workloads."""
    return summarise(samples, estimator, evidence="shared", signatures=False)


def calibrate(donor: OverheadModel, target: pd.DataFrame) -> Calibration:
    """The factor from the donor's host to the target's: observed host time divided by the donor's host time.

    Every (type, op, number of calls) of the target is weighted by its time, so ops with much time in the step dominate.
    For ops without donor statistics, the donor's mean over all ops is used.

    Args:
        donor: statistics of the host that overheads come from.
        target: `overhead_samples` of a few iterations on the host to predict.
    """
    table = summarise(target, signatures=False)
    table = table[table["type"].isin(HOST_TYPES) & (table["op"] != ANY_OP)]
    signature = table["signature"].astype(object).where(table["signature"].notna(), "")
    keyed = np.where(table["type"] == "T4", signature == "", signature != "")  # one level per observation
    table, signature = table[keyed], signature[keyed]
    ours, theirs, known, matched = 0.0, 0.0, 0.0, 0
    for kind in HOST_TYPES:
        rows = (table["type"] == kind).to_numpy()
        if not rows.any():
            continue
        apis = list(table.loc[rows, "api"].fillna("")) if kind == "T4" else None
        found = donor.find(kind, list(table.loc[rows, "op"]), [list(signature[rows])], apis)
        count = table.loc[rows, "count"].to_numpy(float)
        time = table.loc[rows, "mean_us"].to_numpy(float) * count
        answered = found.level != ABSENT
        ours += float(time[answered].sum())
        theirs += float((found.value_us * count)[answered].sum())
        own = found.level < GLOBAL
        known, matched = known + float(time[own].sum()), matched + int(own.sum())
    if matched < MIN_COMMON or theirs <= 0.0:
        return Calibration(1.0, matched, known / ours if ours else 0.0)
    return Calibration(ours / theirs, matched, known / ours)


def coverage(samples: pd.DataFrame, table: pd.DataFrame) -> dict[str, float]:
    """Share of a workload's host time whose (type, op) a table of statistics contains, per type and for `all`."""
    frame = samples[samples["type"].isin(HOST_TYPES)]
    known = {(kind, normalised(op)) for kind, op in zip(table["type"], table["op"], strict=True)}
    hit = np.array([(kind, normalised(op)) in known for kind, op in zip(frame["type"], frame["op"], strict=True)], bool)
    value = frame["value_us"].to_numpy(float)
    kinds = frame["type"].to_numpy(object)
    shares = {str(kind): _share(value, hit, kinds == kind) for kind in sorted(set(kinds))}
    return {**shares, "all": _share(value, hit, np.ones(len(value), bool))}


def _share(value: Floats, hit: Flags, rows: Flags) -> float:
    total = float(value[rows].sum())
    return float(value[rows & hit].sum()) / total if total else 0.0
