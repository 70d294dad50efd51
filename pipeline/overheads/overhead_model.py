"""Looks up overheads of a step to be predicted: by signature, then op, then normalised op, then over all ops.

Statistics of several workloads on one host are used for workloads that were never profiled there. On another host, all
host times are approximately a multiple of the donor's. One factor removes most of the error (docs/replay.md). It comes
from a few iterations of the target: the ratio of its host time to that of the donor's statistics for the same ops
(`statistics.calibrate`).

Overheads are stored and looked up under names that an op has both in a trace and in a graph (`normalised`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints, Texts

LEVELS = ("signature", "op", "global", "absent")
"""How closely a looked-up value matches: the same item, its op, all ops, or no value (0 µs)."""
SIGNATURE, OP, GLOBAL, ABSENT = range(4)

DEVICE_CONSTANTS_US = {"launch_latency": 6.0, "kernel_gap": 1.2, "sync_return": 5.0}
"""Used where no trace shows them: medians of the public V100 and A100 traces, rounded."""

_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class LookedUp:
    """Values of a look-up and their sources.

    Attributes:
        value_us: the overheads.
        level: index into `LEVELS`.
        row: row of the table that the value comes from, -1 where there is none.
    """

    value_us: Array
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
        items = list(
            zip(ops, *signatures, apis if apis is not None else [""] * len(ops), strict=True)
        )
        distinct = {item: place for place, item in enumerate(dict.fromkeys(items))}
        which = np.fromiter((distinct[item] for item in items), np.int64, len(items))
        names, *texts = (
            zip(*distinct, strict=True) if distinct else ((), *([()] * (len(signatures) + 1)))
        )
        of_distinct = self._find(kind, names, texts[:-1], texts[-1])
        return LookedUp(
            of_distinct.value_us[which], of_distinct.level[which], of_distinct.row[which]
        )

    def _find(
        self,
        kind: str,
        ops: Sequence[str],
        signatures: Sequence[Sequence[str | None]],
        apis: Sequence[str],
    ) -> LookedUp:
        """As `find`, for distinct items."""
        count = len(ops)
        value, level, row = (
            np.zeros(count),
            np.full(count, ABSENT, np.int64),
            np.full(count, -1, np.int64),
        )
        plain = [normalised(op) for op in ops]
        anyone, empty = [ANY_OP] * count, [""] * count
        tries: list[tuple[Sequence[str], Sequence[str | None], Sequence[str], int, bool]] = []
        tries += [
            (ops, s, apis, SIGNATURE if i == 0 else OP, False) for i, s in enumerate(signatures)
        ]
        tries += [(plain, s, apis, OP, True) for s in signatures]
        tries += [(ops, empty, apis, OP, False), (plain, empty, apis, OP, True)]
        tries += [(anyone, s, apis, GLOBAL, False) for s in signatures]
        tries += [(anyone, empty, apis, GLOBAL, False), (anyone, empty, empty, GLOBAL, False)]
        for names, signature, api, at, is_plain in tries:
            open_rows = np.flatnonzero(level == ABSENT)
            if not len(open_rows):
                break
            index = self._plain if is_plain else self._lookup
            keys = (
                _SEPARATOR.join((kind, names[i], signature[i] or "", api[i]))
                for i in open_rows.tolist()
            )
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

    def constant(self, kind: str, api: str = "") -> float:
        """One of `DEVICE_CONSTANTS_US`: its median, or the value there if it is unknown."""
        for key in (_SEPARATOR.join((kind, ANY_OP, "", one)) for one in (api, "")):
            if key in self._lookup:
                return float(self._medians[self._lookup[key]])
        rows = np.flatnonzero((self.table["type"] == kind).to_numpy(bool))
        if not len(rows):
            return DEVICE_CONSTANTS_US[kind]
        return float(self._medians[rows[int(np.argmax(self.table["count"].to_numpy(float)[rows]))]])

    @cached_property
    def _medians(self) -> Array:
        return self.table["median_us"].to_numpy(float)

    @cached_property
    def _means(self) -> Array:
        return self.table["mean_us"].to_numpy(float)

    @cached_property
    def _keys(self) -> list[str]:
        columns = [
            self.table[c].astype(object).where(self.table[c].notna(), "")
            for c in ("op", "signature", "api")
        ]
        return [_SEPARATOR.join(key) for key in zip(self.table["type"], *columns, strict=True)]

    @cached_property
    def _lookup(self) -> dict[str, int]:
        return {key: row for row, key in reversed(list(enumerate(self._keys)))}

    @cached_property
    def _by_plain(self) -> pd.DataFrame:
        """Means per normalised op, weighted by count."""
        columns = [
            self.table[c].astype(object).where(self.table[c].notna(), "")
            for c in ("op", "signature", "api")
        ]
        keys = [
            _SEPARATOR.join((kind, normalised(op), signature, api))
            for kind, op, signature, api in zip(self.table["type"], *columns, strict=True)
        ]
        frame = pd.DataFrame(
            {"key": pd.Series(keys, dtype=object), "row": np.arange(len(keys)), "mean": self._means}
        )
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
    def _plain_means(self) -> Array:
        return self._by_plain["mean"].to_numpy(float)

    @cached_property
    def _plain_rows(self) -> Ints:
        return self._by_plain["row"].to_numpy(np.int64)


HOST_TYPES = ("T1", "T2", "T3", "T4", "T5")
"""Kinds of host overhead: T1 between operators, T2 before, T3 after and T5 between launches, T4 in the runtime call."""

MAX_SIGNATURE = 1_000
"""Longest signature that is stored as text. In the overheads that ship, the longest has 491 characters."""

ANY_OP = "*"
"""Op name of statistics over all ops."""

_ALIASES = {
    "_reshape_alias": "view",
    "_unsafe_view": "view",
    "reshape_alias": "view",
    "_index_put_impl": "index_put",
    "cudnn_convolution": "convolution",
    "_convolution": "convolution",
    "convolution_overrideable": "convolution",
    "cudnn_batch_norm": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "miopen_batch_norm": "native_batch_norm",
    "concat": "cat",
    "concatenate": "cat",
}
_NODE_ALIASES = {
    "reshapealias": "view",
    "unsafeview": "view",
    "cudnnconvolution": "convolution",
    "cudnnbatchnorm": "nativebatchnorm",
    "miopenbatchnorm": "nativebatchnorm",
    "batchnorm": "nativebatchnorm",
}
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function:\s*")
_NODE = re.compile(r"^(?P<stem>\w+?)Backward\d*$")
_LOOKUP = re.compile(
    r"(split_embedding_codegen_lookup_|\bSplitLookupFunction_)(?!Dense_)\w+?(_function|_Op)\b"
)
"""FBGEMM's lookups with an optimizer in their backward pass. The optimizer is a part of the name."""


@lru_cache(maxsize=65536)
def normalised(name: str) -> str:
    """A single name per op: without in-place underscore, overload, autograd wrapper or version-dependent alias.

    Equal names:

    - `aten::add_` and `aten::add`.
    - `autograd::engine::evaluate_function: AddmmBackward0` and `AddmmBackward0`.
    - `Optimizer.step#SGD.step` for any optimizer class.
    - FBGEMM's lookups for any optimizer. It changes their last kernel and not what the host does.
    """
    if name.startswith("Optimizer."):
        return name.partition("#")[0]
    text = _LOOKUP.sub(r"\1any\2", _BACKWARD.sub("", name))
    if "::" not in text and (node := _NODE.match(text)):
        stem = node["stem"].lower()
        return f"backward:{_NODE_ALIASES.get(stem, stem)}"
    space, mark, op = text.rpartition("::")
    op = op.split(".")[0]
    stripped = op.rstrip("_") or op
    stripped = _ALIASES.get(stripped, stripped)
    return f"{space}{mark}{stripped}"


def full_signature(apis: Iterable[str], shapes: str, children: int) -> str:
    """Signature of one item: its actions, input shapes and number of nested ops.

    Every action of an item has the item's signature in its key. An optimizer's item over 40,000 tensors has a text of
    MBs and thousands of actions, so a long text is replaced by its hash.
    """
    text = f"{','.join(apis)}|{shapes}|{children}"
    return text if len(text) <= MAX_SIGNATURE else hashlib.sha256(text.encode()).hexdigest()


def calls_signature(count: int) -> str:
    """Signature of all items of an op that make the same number of device calls."""
    return f"calls={count}"


@lru_cache(maxsize=256)
def switch_signature(before: int, after: int) -> str:
    """Signature of a gap (T1) by the threads on its two sides."""
    return f"thread {min(before, 2)}>{min(after, 2)}"
