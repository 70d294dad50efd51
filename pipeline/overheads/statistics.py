"""Statistics of overhead observations, at every level at which a prediction may look them up.

Levels, most specific first: full signature of an item; op and number of device calls; op; all ops. The estimator is
chosen by name. The default is the mean of clipped values, which keeps real tails. The published estimator removes them
(docs/replay.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array, Ints, Texts
from pipeline.errors import UnknownNameError
from pipeline.overheads.overhead_model import (
    ABSENT,
    ANY_IN_PLACE,
    ANY_OP,
    GLOBAL,
    HOST_TYPES,
    OverheadModel,
    calls_signature,
    is_in_place,
)

CLIP_QUANTILE = 0.99
"""Quantile at which the values of a key are clipped. Real tails stay, and single outliers do not dominate."""

IQR_FACTOR = 1.5
"""Distance from the quartiles, in interquartile ranges, beyond which the published estimator drops values."""

ESTIMATORS = ("clipped_mean", "trimmed_mean", "mean", "median")

COLUMNS = [
    "type",
    "op",
    "mean_us",
    "std_us",
    "median_us",
    "count",
    "workloads",
    "api",
    "signature",
    "evidence",
]

_TAIL = re.compile(r"\|(\d+)(?:@\d+)?$")


@dataclass(frozen=True)
class ProfilerCost:
    """The profiler's cost on the host, subtracted from observations to predict unprofiled steps.

    Attributes:
        event_us: cost per recorded host event. Half lies before and half after an op's own timestamps. T1 and T2/T3
            therefore each lose one event's cost in total, and an item loses one per nested op.
        launch_us: cost per recorded launch, part of T4.
    """

    event_us: float = 2.0
    launch_us: float = 4.0

    @classmethod
    def none(cls) -> ProfilerCost:
        """No correction, for replay, which predicts the profiled trace itself."""
        return cls(0.0, 0.0)


def corrected(samples: pd.DataFrame, cost: ProfilerCost) -> pd.DataFrame:
    """Observations minus the profiler's cost.

    Single values may be below zero, because the cost of an event varies. A floor for each would cut one side of the noise,
    and add to every mean; `group_statistics` keeps means at zero or above.
    """
    if cost == ProfilerCost.none():
        return samples
    kind = samples["type"].to_numpy(object)
    events = np.where(np.isin(kind, ("T1", "loading")), 1.0, 0.0)
    calls, nested = _nested_counts(samples)
    # an item with n actions has n + 1 segments, in which its nested ops lie
    events = np.where(np.isin(kind, ("T2", "T3", "T5")), nested / (calls + 1), events)
    loss = events * cost.event_us + np.where(kind == "T4", cost.launch_us, 0.0)
    return samples.assign(value_us=samples["value_us"].to_numpy(float) - loss)


def _nested_counts(samples: pd.DataFrame) -> tuple[Array, Array]:
    """Number of actions and of nested ops of the item of each observation, from its signature."""
    signature = samples["signature"].astype("object").where(samples["signature"].notna(), "")
    nested = _apply_to_distinct(
        signature, lambda text: float(m[1]) if (m := _TAIL.search(text)) else 0.0
    )
    return _apply_to_distinct(signature, _count_calls).astype(float), nested.astype(float)


def _apply_to_distinct(texts: pd.Series, of: Callable[[str], object]) -> Texts:
    """Apply `of` to every text. It is computed once per distinct text, because there are few of these."""
    code, distinct = pd.factorize(texts)
    return np.array([of(text) for text in distinct], object)[code]


def _count_calls(signature: str) -> int:
    """Number of actions named in a full signature (`api,api|shapes|children`)."""
    apis = signature.partition("|")[0]
    return apis.count(",") + 1 if apis else 0


def summarise(
    samples: pd.DataFrame,
    estimator: str = "clipped_mean",
    cost: ProfilerCost | None = None,
    evidence: str | None = None,
    signatures: bool = True,
) -> pd.DataFrame:
    """Statistics of observations as an `overheads` table.

    Args:
        samples: `overhead_samples`, of one or of several workloads.
        estimator: estimator of the mean, one of `ESTIMATORS`; `trimmed_mean` is the published one.
        cost: the profiler's cost to subtract; none by default.
        evidence: where the observations come from (`measured`, `shared`, `transferred`), kept with each row.
        signatures: whether to keep statistics per full signature (large, and useful for the same workload only).

    Raises:
        UnknownNameError: the estimator does not exist.
    """
    if estimator not in ESTIMATORS:
        raise UnknownNameError("estimator", estimator, list(ESTIMATORS))
    if samples.empty:
        return pd.DataFrame(
            {name: pd.Series(dtype=float if name.endswith("_us") else object) for name in COLUMNS}
        )
    frame = corrected(samples, cost or ProfilerCost.none())
    frame = frame.assign(
        api=frame["api"].astype(object).where(frame["api"].notna(), ""),
        signature=frame["signature"].astype(object).where(frame["signature"].notna(), ""),
    )
    parts = [_level(level, estimator) for level in _levels(frame, signatures)]
    out = pd.concat([part for part in parts if len(part)], ignore_index=True)
    out = out.drop_duplicates(["type", "op", "api", "signature"], ignore_index=True)
    for column in ("api", "signature"):
        out[column] = out[column].where(out[column] != "", None)
    out["evidence"] = evidence
    return out[COLUMNS]


def _levels(frame: pd.DataFrame, signatures: bool) -> list[pd.DataFrame]:
    """The observations keyed at each level."""
    kind = frame["type"].to_numpy(object)
    gap, item = np.isin(kind, ("T1", "loading")), np.isin(kind, ("T2", "T3", "T5"))
    api, device = kind == "T4", np.isin(kind, ("launch_latency", "kernel_gap", "sync_return"))
    switch = _apply_to_distinct(frame["signature"], lambda text: text.partition("|")[0])
    counts = _apply_to_distinct(
        frame["signature"], lambda text: calls_signature(_count_calls(text))
    )
    changes = item & _apply_to_distinct(frame["op"], is_in_place).astype(bool)
    levels = [frame[device], frame[device].assign(signature="")]
    if signatures:
        levels += [frame[gap | item | api]]
    levels += [
        frame[gap].assign(signature=switch[gap]),
        frame[gap].assign(signature=switch[gap], op=ANY_OP),
        frame[gap].assign(signature="", op=ANY_OP),
        frame[item].assign(signature=counts[item]),
        frame[item].assign(signature=""),
        frame[item].assign(signature=counts[item], op=ANY_OP),
        frame[item].assign(signature="", op=ANY_OP),
        frame[changes].assign(signature=counts[changes], op=ANY_IN_PLACE),
        frame[changes].assign(signature="", op=ANY_IN_PLACE),
        frame[api].assign(signature=""),
        frame[api].assign(signature="", op=ANY_OP),
        frame[api].assign(signature="", op=ANY_OP, api=""),
    ]
    return levels


def _level(level: pd.DataFrame, estimator: str) -> pd.DataFrame:
    if level.empty:
        return level
    keys = ["type", "op", "api", "signature"]
    group = level.groupby(keys, sort=False, observed=True).ngroup().to_numpy().astype(np.int64)
    stats = group_statistics(level["value_us"].to_numpy(float), group, estimator)
    pairs = (
        level[["workload"]].assign(group=group).drop_duplicates().sort_values(["group", "workload"])
    )
    names = np.split(
        pairs["workload"].to_numpy(object), np.flatnonzero(np.diff(pairs["group"])) + 1
    )
    first = np.unique(group, return_index=True)[1]
    return level[keys].iloc[first].assign(**stats, workloads=[",".join(each) for each in names])


def group_statistics(
    value: Array, group: Ints, estimator: str
) -> dict[str, npt.NDArray[np.generic]]:
    """Mean by the estimator, standard deviation, median and count of each group (groups numbered from 0).

    Means and medians are at least zero.
    """
    order = np.lexsort((value, group))
    value, group = value[order], group[order]
    count = np.bincount(group)
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    total = np.add.reduceat(value, first)
    mean = total / count
    spread = np.sqrt(np.maximum(np.add.reduceat(value**2, first) / count - mean**2, 0.0))
    median = _quantile(value, first, count, 0.5)
    if estimator == "clipped_mean":
        top = _quantile(value, first, count, CLIP_QUANTILE)
        mean = np.add.reduceat(np.minimum(value, top[group]), first) / count
    elif estimator == "trimmed_mean":
        low, high = _quantile(value, first, count, 0.25), _quantile(value, first, count, 0.75)
        reach = IQR_FACTOR * (high - low)
        keep = (value >= (low - reach)[group]) & (value <= (high + reach)[group])
        mean = np.add.reduceat(np.where(keep, value, 0.0), first) / np.maximum(
            np.add.reduceat(keep, first, dtype=int), 1
        )
    elif estimator == "median":
        mean = median
    return {
        "mean_us": np.maximum(mean, 0.0),
        "std_us": spread,
        "median_us": np.maximum(median, 0.0),
        "count": count.astype(np.int64),
    }


def _quantile(value: Array, first: Ints, count: Ints, q: float) -> Array:
    """Quantile of each group of sorted values, with linear interpolation."""
    position = q * (count - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, count - 1)
    out: Array = value[first + below] + (position - below) * (
        value[first + above] - value[first + below]
    )
    return out


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
    table = table[table["type"].isin(HOST_TYPES) & ~table["op"].isin((ANY_OP, ANY_IN_PLACE))]
    signature = table["signature"].astype(object).where(table["signature"].notna(), "")
    keyed = np.where(
        table["type"] == "T4", signature == "", signature != ""
    )  # one level per observation
    table, signature = table[keyed], signature[keyed]
    ours, theirs, known, matched = 0.0, 0.0, 0.0, 0
    for kind in HOST_TYPES:
        rows = (table["type"] == kind).to_numpy()
        if not rows.any():
            continue
        apis = list(table.loc[rows, "api"].fillna("")) if kind == "T4" else None
        looked_up = donor.find(kind, list(table.loc[rows, "op"]), [list(signature[rows])], apis)
        count = table.loc[rows, "count"].to_numpy(float)
        time = table.loc[rows, "mean_us"].to_numpy(float) * count
        answered = looked_up.level != ABSENT
        ours += float(time[answered].sum())
        theirs += float((looked_up.value_us * count)[answered].sum())
        of_own_op = looked_up.level < GLOBAL
        known, matched = known + float(time[of_own_op].sum()), matched + int(of_own_op.sum())
    if matched < MIN_COMMON or theirs <= 0.0:
        return Calibration(1.0, matched, known / ours if ours else 0.0)
    return Calibration(ours / theirs, matched, known / ours)
