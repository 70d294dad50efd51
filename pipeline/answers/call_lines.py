"""Device calls of a step at many batch sizes, from its calls at a few of them.

Sizes, FLOPs and bytes of an operator lie on a straight line over the batch size. A step's calls are mapped at a few batch
sizes, the knots. Between two knots, a step has the calls that it has at both, with numbers on the line between. Calls that
it has at one of them only are left out, such as the second kernel of a product that is split at small batches. What is
summed over the calls of a line is therefore a lower bound of the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.kernel_predictor import MODEL_COLUMNS, TEXT_COLUMNS, distinct_calls
from pipeline.graph.batch_line import NotOnALineError, text_between
from pipeline.schemas import DIMS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LISTED = 3
"""Number of batch sizes up to which each of them is a knot."""

KNOT_RATIO = 4
"""Largest ratio of two neighbouring knots, where batch sizes allow it. In the middle between two such knots, the calls that
they share had at least 97 % of the device time of four workloads on two GPUs; with a ratio of 16, at least 92 %."""

NUMBERS = tuple(name for name in MODEL_COLUMNS if name not in TEXT_COLUMNS)
"""Columns of calls that depend on the batch size."""


def knots(batch_sizes: Sequence[int]) -> list[int]:
    """Batch sizes at which calls are mapped: the least and the largest, and others in steps of `KNOT_RATIO`.

    Args:
        batch_sizes: distinct, in ascending order.
    """
    if len(batch_sizes) <= LISTED:
        return list(batch_sizes)
    found = [batch_sizes[0]]
    for size, following in pairwise(batch_sizes):
        if size > found[-1] and following > KNOT_RATIO * found[-1]:
            found.append(size)
    return [*found, batch_sizes[-1]]


@dataclass(frozen=True)
class CallLine:
    """Distinct calls that a step has at each of two batch sizes, with numbers on straight lines between."""

    low: int
    high: int
    texts: dict[str, npt.NDArray[np.object_]]
    """Columns of text at `low`, shape (rows,)."""
    moving: dict[int, tuple[str, str]]
    """Attributes that depend on the batch size, at `low` and at `high`, by row."""
    numbers: dict[str, tuple[Floats, Floats]]
    """Columns of numbers at `low` and at `high`, shape (rows,)."""
    count: Floats
    """How many calls of the step are alike, shape (rows,)."""
    at_low: Ints
    """The row of each call of the step at `low`; -1 for calls that are left out."""
    at_high: Ints
    """The same at `high`."""

    @classmethod
    def of(cls, calls: pd.DataFrame, batch_size: int) -> CallLine:
        """All calls at a single batch size (`calls` schema)."""
        return cls._of(calls, calls, (batch_size, batch_size), np.arange(len(calls)), np.arange(len(calls)))

    @classmethod
    def between(cls, low: pd.DataFrame, high: pd.DataFrame, sizes: tuple[int, int]) -> CallLine:
        """The calls that two tables (`calls` schema) at two batch sizes have in common."""
        keys = [_keys(each) for each in (low, high)]
        if keys[0] == keys[1]:
            same = np.arange(len(low))
            return cls._of(low, high, sizes, same, same)
        places = {key: place for place, key in enumerate(keys[1])}
        pairs = [(place, places[key]) for place, key in enumerate(keys[0]) if key in places]
        first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return cls._of(low, high, sizes, first, second)

    @classmethod
    def _of(cls, low: pd.DataFrame, high: pd.DataFrame, sizes: tuple[int, int], first: Ints, second: Ints) -> CallLine:
        """From two tables and the places of the calls that they have in common."""
        on_line = _on_line(_attributes(low)[first], _attributes(high)[second], sizes)
        first, second = first[on_line], second[on_line]
        names = [name for name in NUMBERS if name in low]
        paired = low[[name for name in TEXT_COLUMNS if name in low]].iloc[first].reset_index(drop=True)
        paired["attributes"] = pd.Series(_attributes(low)[first], dtype=object)
        paired["attributes at high"] = pd.Series(_attributes(high)[second], dtype=object)
        ends = [
            table[names].iloc[rows].astype("float64").to_numpy(float) for table, rows in ((low, first), (high, second))
        ]
        for place, name in enumerate(names):
            for end, values in zip(("low", "high"), ends, strict=True):
                paired[f"{name} at {end}"] = values[:, place]
        distinct, which = distinct_calls(paired)
        kept = distinct.index.to_numpy()
        texts = {name: distinct[name].to_numpy(object) for name in TEXT_COLUMNS if name in distinct}
        others = distinct["attributes at high"].to_numpy(object)
        moving = {row: (one, two) for row, (one, two) in enumerate(zip(texts["attributes"], others, strict=True))
                  if one != two}  # fmt: skip
        numbers = {
            name: (ends[0][kept, place], ends[1][kept, place])
            for place, name in enumerate(names)
            if not np.isnan(ends[0][kept, place]).all()
        }
        at_low, at_high = np.full(len(low), -1, np.int64), np.full(len(high), -1, np.int64)
        at_low[first], at_high[second] = which, which
        count = np.bincount(which, minlength=len(distinct)).astype(float)
        return cls(*sizes, texts, moving, numbers, count, at_low, at_high)

    @property
    def update(self) -> npt.NDArray[np.bool_]:
        """Whether each row belongs to the update of the weights."""
        return np.asarray(self.texts["phase"] == "optimizer", dtype=bool)

    def number(self, name: str, batch_sizes: Ints) -> Floats:
        """A column of numbers at batch sizes between the two, shape (batch sizes, rows); 0 where the calls lack it."""
        if name not in self.numbers:
            return np.zeros((len(batch_sizes), len(self.count)))
        return np.nan_to_num(self._between(name, batch_sizes))

    def table(self, batch_sizes: Ints) -> pd.DataFrame:
        """All rows at the first batch size, then at the next: what kernel models read."""
        found: dict[str, npt.NDArray[np.generic]] = {}
        for name, texts in self.texts.items():
            found[name] = np.tile(texts, len(batch_sizes))
        for row, (one, two) in self.moving.items():
            found["attributes"][row :: len(self.count)] = [
                text_between(one, two, (self.low, self.high), int(size)) for size in batch_sizes
            ]
        for name in self.numbers:
            found[name] = self._between(name, batch_sizes).ravel()
        return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in found.items()})

    def _between(self, name: str, batch_sizes: Ints) -> Floats:
        low, high = self.numbers[name]
        share = (batch_sizes - self.low) / max(self.high - self.low, 1)
        found = low + (high - low) * share[:, None]
        return np.rint(found) if name in DIMS else found


def _keys(calls: pd.DataFrame) -> list[tuple[object, ...]]:
    """What identifies each call of a step at every batch size: its operator, what it launches, and its number among equals.

    Numbers in attributes count as equal.
    """
    plain = [calls[name].to_numpy(object) for name in ("node_id", "api", "family", "op", "phase", "dtype")]
    shapes = [None if text is None else re.sub(r"\d+", "#", text) for text in _attributes(calls)]
    seen: dict[tuple[object, ...], int] = {}
    found = []
    for key in zip(*plain, shapes, strict=True):
        seen[key] = seen.get(key, 0) + 1
        found.append((*key, seen[key]))
    return found


def _attributes(calls: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Attributes of calls; None where there are none."""
    return calls["attributes"].astype(object).where(calls["attributes"].notna(), None).to_numpy(object)


def _on_line(
    low: npt.NDArray[np.object_], high: npt.NDArray[np.object_], sizes: tuple[int, int]
) -> npt.NDArray[np.bool_]:
    """Whether attributes at two batch sizes are equal, or have numbers on a line between, shape (calls,)."""
    found = np.ones(len(low), dtype=bool)
    for place in np.flatnonzero(low != high):
        try:
            text_between(low[place], high[place], sizes, sizes[0])
        except NotOnALineError:
            found[place] = False
    return found
