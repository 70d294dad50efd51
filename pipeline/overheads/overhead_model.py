"""Looks up overheads of a step to be predicted: by signature, then op, then normalised op, then over all ops (of its kind).

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
from itertools import count

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints, Texts

LEVELS = ("signature", "op", "global", "absent")
"""How closely a looked-up value matches: the same item, its op, all ops, or no value (0 µs)."""
SIGNATURE, OP, GLOBAL, ABSENT = range(4)

DEVICE_CONSTANTS_US = {"launch_latency": 6.0, "kernel_gap": 1.2, "sync_return": 5.0}
"""Used where no trace shows them: medians of the public V100 and A100 traces, rounded."""

_SEPARATOR = "\x1f"

_Index = dict[str, tuple[float, int]]
"""Mean in µs and row of the table by key: type, op, signature and API."""


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
        size = len(ops)
        value, level, row = np.zeros(size), np.full(size, ABSENT), np.full(size, -1)
        plain = [normalised(op) for op in ops]
        anyone, empty = [ANY_OP] * size, [""] * size
        in_place = [ANY_IN_PLACE if is_in_place(op) else ANY_OP for op in ops]
        levels = [SIGNATURE, *[OP] * len(signatures)]
        own, normal = self._own, self._plain
        tries: list[tuple[Sequence[str], Sequence[str | None], Sequence[str], int, _Index]] = [
            *((ops, s, apis, at, own) for s, at in zip(signatures, levels, strict=False)),
            *((plain, s, apis, OP, normal) for s in signatures),
            (ops, empty, apis, OP, own),
            (plain, empty, apis, OP, normal),
            *((in_place, s, apis, GLOBAL, own) for s in (*signatures, empty)),
            *((anyone, s, apis, GLOBAL, own) for s in (*signatures, empty)),
            (anyone, empty, empty, GLOBAL, own),
        ]
        waiting = list(range(size))
        for names, signature, api, at, index in tries:
            keys = [_SEPARATOR.join((kind, names[i], signature[i] or "", api[i])) for i in waiting]
            for i, key in zip(waiting, keys, strict=True):
                if key in index:
                    value[i], row[i], level[i] = *index[key], at
            waiting = [i for i, key in zip(waiting, keys, strict=True) if key not in index]
        return LookedUp(value * self.scale, level, row)

    def constant(self, kind: str, api: str = "") -> float:
        """One of `DEVICE_CONSTANTS_US`: its median, or the value there if it is unknown."""
        medians = self.table["median_us"].to_numpy(float)
        for key in (_SEPARATOR.join((kind, ANY_OP, "", one)) for one in (api, "")):
            if key in self._own:
                return float(medians[self._own[key][1]])
        rows = np.flatnonzero((self.table["type"] == kind).to_numpy(bool))
        if not len(rows):
            return DEVICE_CONSTANTS_US[kind]
        return float(medians[rows[int(np.argmax(self.table["count"].to_numpy(float)[rows]))]])

    @cached_property
    def _keys(self) -> list[tuple[str, ...]]:
        """Type, op, signature and API of each row of the table."""
        columns = self.table[["type", "op", "signature", "api"]].astype(object).fillna("")
        return list(columns.itertuples(index=False, name=None))

    @cached_property
    def _own(self) -> _Index:
        keys = map(_SEPARATOR.join, self._keys)
        entries = list(zip(keys, self.table["mean_us"].to_numpy(float), count(), strict=False))
        return {key: (mean, row) for key, mean, row in reversed(entries)}

    @cached_property
    def _plain(self) -> _Index:
        """Means per normalised op, weighted by count, with the first of its rows."""
        keys = [_SEPARATOR.join((kind, normalised(op), *rest)) for kind, op, *rest in self._keys]
        frame = pd.DataFrame({"key": pd.Series(keys, dtype=object), "row": np.arange(len(keys))})
        frame["count"] = self.table["count"].to_numpy(float)
        frame["time"] = self.table["mean_us"].to_numpy(float) * frame["count"]
        frame = frame[~self.table["op"].isin((ANY_OP, ANY_IN_PLACE)).to_numpy(bool)]
        how = {"time": "sum", "count": "sum", "row": "first"}
        grouped = frame.groupby("key", sort=False).agg(how)
        means = (grouped["time"] / grouped["count"]).tolist()
        return dict(zip(grouped.index, zip(means, grouped["row"], strict=True), strict=True))


HOST_TYPES = ("T1", "T2", "T3", "T4", "T5")
"""Kinds of host overhead: T1 between operators, T2 before, T3 after and T5 between launches, T4 in the runtime call."""

MAX_SIGNATURE = 1_000
"""Longest signature that is stored as text. In the overheads that ship, the longest has 491 characters."""

ANY_OP = "*"
"""Op name of statistics over all ops."""

ANY_IN_PLACE = "*_"
"""Op name of statistics inside all operators that change their input. They allocate no output: on six traced hosts they launch in a
fifth to three quarters of the time of all operators. For an unknown one of them, errors are a quarter to three quarters of those
of the mean over all. Gaps between operators (T1) are not shorter before them, where each is left out in turn."""

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


def is_in_place(op: str) -> bool:
    """Whether a name is that of a PyTorch operator that changes its input, such as `aten::add_`."""
    return op.startswith("aten::") and op.endswith("_")


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
