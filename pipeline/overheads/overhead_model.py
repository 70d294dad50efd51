"""Looks up overheads of a step to be predicted: by signature, then op, then normalised op, then over all ops.

Statistics of several workloads on one host are used for workloads that were never profiled there. On another host, all
host times are approximately a multiple of the donor's. One factor removes most of the error (docs/replay.md). It comes
from a few iterations of the target: the ratio of its host time to that of the donor's statistics for the same ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.overheads.op_names import ANY_OP, HOST_TYPES, normalised
from pipeline.overheads.statistics import summarise

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Texts = npt.NDArray[np.object_]
Flags = npt.NDArray[np.bool_]

LEVELS = ("signature", "op", "global", "absent")
"""How closely a looked-up value matches: the same item, its op, all ops, or no value (0 µs)."""
SIGNATURE, OP, GLOBAL, ABSENT = range(4)

_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class LookedUp:
    """Values of a look-up and their sources.

    Attributes:
        value_us: the overheads.
        level: index into `LEVELS`.
        row: row of the table that the value comes from, -1 where there is none.
    """

    value_us: Floats
    level: Ints
    row: Ints


class OverheadModel:
    """Vectorised look-up in an `overheads` table.

    Args:
        table: statistics as `summarise` makes them.
        scale: factor on all host times (not on device constants), for a host that is slower or faster than the measured
            one.
    """

    def __init__(self, table: pd.DataFrame, scale: float = 1.0) -> None:
        self.table = table.reset_index(drop=True)
        self.scale = scale

    def equals(self, other: OverheadModel) -> bool:
        """Whether another model has the same statistics and the same factor."""
        return self.scale == other.scale and self.table.equals(other.table)

    def scaled(self, scale: float) -> OverheadModel:
        """The same statistics with host times multiplied by a factor."""
        return OverheadModel(self.table, self.scale * scale)

    def find(
        self,
        kind: str,
        ops: Sequence[str],
        signatures: Sequence[Sequence[str | None] | Texts],
        apis: Sequence[str] | None = None,
    ) -> LookedUp:
        """Values of one type for many items.

        Args:
            kind: T1 to T5, loading.
            ops: op name of each item.
            signatures: candidate signatures, most specific first; each a sequence with one entry per item.
            apis: API of each item (T4 only).
        """
        # the layers of a step repeat: each distinct item is looked up once
        items = list(zip(ops, *signatures, apis if apis is not None else [""] * len(ops), strict=True))
        distinct = {item: place for place, item in enumerate(dict.fromkeys(items))}
        which = np.fromiter((distinct[item] for item in items), np.int64, len(items))
        names, *texts = zip(*distinct, strict=True) if distinct else ((), *([()] * (len(signatures) + 1)))
        of_distinct = self._find(kind, names, texts[:-1], texts[-1])
        return LookedUp(of_distinct.value_us[which], of_distinct.level[which], of_distinct.row[which])

    def _find(
        self, kind: str, ops: Sequence[str], signatures: Sequence[Sequence[str | None]], apis: Sequence[str]
    ) -> LookedUp:
        """As `find`, for distinct items."""
        count = len(ops)
        value, level, row = np.zeros(count), np.full(count, ABSENT, np.int64), np.full(count, -1, np.int64)
        plain = [normalised(op) for op in ops]
        anyone, empty = [ANY_OP] * count, [""] * count
        tries: list[tuple[Sequence[str], Sequence[str | None], Sequence[str], int, bool]] = []
        tries += [(ops, s, apis, SIGNATURE if i == 0 else OP, False) for i, s in enumerate(signatures)]
        tries += [(plain, s, apis, OP, True) for s in signatures]
        tries += [(ops, empty, apis, OP, False), (plain, empty, apis, OP, True)]
        tries += [(anyone, s, apis, GLOBAL, False) for s in signatures]
        tries += [(anyone, empty, apis, GLOBAL, False), (anyone, empty, empty, GLOBAL, False)]
        for names, signature, api, at, is_plain in tries:
            open_rows = np.flatnonzero(level == ABSENT)
            if not len(open_rows):
                break
            index = self._plain if is_plain else self._lookup
            keys = (_SEPARATOR.join((kind, names[i], signature[i] or "", api[i])) for i in open_rows.tolist())
            hit = np.fromiter((index.get(key, -1) for key in keys), np.int64, len(open_rows))
            is_hit = hit >= 0
            rows = open_rows[is_hit]
            if is_plain:
                value[rows] = self._plain_means[hit[is_hit]]
                row[rows] = self._plain_rows[hit[is_hit]]
            else:
                value[rows] = self._means[hit[is_hit]]
                row[rows] = hit[is_hit]
            level[rows] = at
        return LookedUp(value * self.scale, level, row)

    def constant(self, kind: str, default_us: float, api: str = "") -> float:
        """A constant of the device (launch_latency, kernel_gap, sync_return): its median, or the default if it is
        unknown.
        """
        for key in (_SEPARATOR.join((kind, ANY_OP, "", one)) for one in (api, "")):
            if key in self._lookup:
                return float(self._medians[self._lookup[key]])
        rows = np.flatnonzero((self.table["type"] == kind).to_numpy(bool))
        if not len(rows):
            return default_us
        return float(self._medians[rows[int(np.argmax(self.table["count"].to_numpy(float)[rows]))]])

    @cached_property
    def _medians(self) -> Floats:
        return self.table["median_us"].to_numpy(float)

    @cached_property
    def _means(self) -> Floats:
        return self.table["mean_us"].to_numpy(float)

    @cached_property
    def _keys(self) -> list[str]:
        columns = [self.table[c].astype(object).where(self.table[c].notna(), "") for c in ("op", "signature", "api")]
        return [_SEPARATOR.join(key) for key in zip(self.table["type"], *columns, strict=True)]

    @cached_property
    def _lookup(self) -> dict[str, int]:
        return {key: row for row, key in reversed(list(enumerate(self._keys)))}

    @cached_property
    def _by_plain(self) -> pd.DataFrame:
        """Means per normalised op, weighted by count."""
        columns = [self.table[c].astype(object).where(self.table[c].notna(), "") for c in ("op", "signature", "api")]
        keys = [
            _SEPARATOR.join((kind, normalised(op), signature, api))
            for kind, op, signature, api in zip(self.table["type"], *columns, strict=True)
        ]
        frame = pd.DataFrame({"key": pd.Series(keys, dtype=object), "row": np.arange(len(keys)), "mean": self._means})
        frame["count"] = self.table["count"].to_numpy(float)
        frame = frame[(self.table["op"] != ANY_OP).to_numpy(bool)]
        frame["weighted"] = frame["mean"] * frame["count"]
        grouped = frame.groupby("key", sort=False).agg(
            weighted=("weighted", "sum"), count=("count", "sum"), row=("row", "first")
        )
        grouped["mean"] = grouped["weighted"] / grouped["count"]
        return grouped

    @cached_property
    def _plain(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self._by_plain.index)}

    @cached_property
    def _plain_means(self) -> Floats:
        return self._by_plain["mean"].to_numpy(float)

    @cached_property
    def _plain_rows(self) -> Ints:
        return self._by_plain["row"].to_numpy(np.int64)


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
