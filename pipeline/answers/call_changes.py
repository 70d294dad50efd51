"""The calls of a step that changed most between two answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.kernels.features import WINDOW_DEFAULTS
from pipeline.prediction import Prediction
from pipeline.readable import gibibytes
from pipeline.schemas import DIMS

MOST_CALLS = 10
"""Number of calls that a difference lists."""

SHORT = {
    "in_channels": "in", "out_channels": "out", "kernel_size": "k", "kernel_size_w": "kw",
    "input_size": "size", "input_size_w": "size_w",
}  # fmt: skip
"""Names of sizes that are shorter than their columns."""

HELPERS = ("trans_a", "trans_b", "inputs", "outputs")
"""Columns of sizes that say how operands lie or how many there are."""

GRADIENTS, GRADIENT = ("conv2d_backward_data", "conv2d_backward_weight"), "conv2d_backward"
"""Families of the two gradients of a convolution, and the name of both together."""

NOTHING_US = 1e-3
"""Largest change, µs, that is rounding."""

NODE, OPERATOR, NTH = ["node_id", "name", "family"], ["name", "family"], ["nth"]
"""Columns that tell nodes of a graph, operators, and the calls of either apart."""


@dataclass(frozen=True)
class CallChange:
    """Time in A and in B, µs, of all calls of one operator, kernel family and, where both steps have one graph, sizes."""

    operator: str
    family: str
    sizes: str
    calls: int
    a_us: float
    b_us: float

    @property
    def us(self) -> float:
        """How much longer they take in B."""
        return self.b_us - self.a_us

    @property
    def label(self) -> str:
        """Number of calls, operator and sizes, in words."""
        operator = self.operator.split(": ")[-1].removeprefix("aten::")
        if operator.endswith("Backward0"):
            what = self.family.partition("_backward_")[2]
            operator = f"{operator.removesuffix('Backward0')} backward {what}".rstrip()
        count = f"{self.calls} × " if self.calls > 1 else ""
        sized = self.sizes or f"({self.family})" * (operator != self.family)
        return f"{count}{operator} {sized}".rstrip()


def call_changes(a: Prediction, b: Prediction) -> Iterator[CallChange]:
    """The calls that changed most, the largest change first; none where a step has no calls.

    Where both steps have one graph, the calls of an operator are pairs, in their order by family, and are listed by the
    sizes of A. A traced step has no such graph: operators of one name and family are pairs in their order where both steps have
    as many. Else only sums by operator and family can be compared.
    """
    if a.calls is None or b.calls is None:
        return
    tables, keys = [_device_rows(a), _device_rows(b)], NODE + NTH
    if a.traced or b.traced:
        tables, keys = _operators_in_pairs(*map(_by_operator, tables)), OPERATOR + NTH
    elif not _nodes(a.calls).equals(_nodes(b.calls)):
        tables, keys = [table.assign(sizes="") for table in tables], OPERATOR
    left, right = (_sums(table, keys) for table in tables)
    both = left.merge(right, on=keys, how="outer", suffixes=("_a", "_b"))
    sizes = both["sizes_a"].replace("", None).fillna(both["sizes_b"]).fillna("")
    calls = both[["calls_a", "calls_b"]].max(axis=1)
    times = both.assign(sizes=sizes, calls=calls).fillna({"us_a": 0.0, "us_b": 0.0})
    by = [*OPERATOR, "sizes"]
    sums = times.groupby(by, sort=False)[["us_a", "us_b", "calls"]].sum().reset_index()
    change = (sums["us_b"] - sums["us_a"]).abs().sort_values(ascending=False, kind="stable")
    largest = sums.loc[change[change > NOTHING_US].index[:MOST_CALLS]]
    columns = [*by, "calls", "us_a", "us_b"]
    for operator, family, sized, count, a_us, b_us in largest[columns].to_numpy(object).tolist():
        yield CallChange(operator, family, sized, int(count), a_us, b_us)


def _nodes(calls: pd.DataFrame) -> pd.DataFrame:
    return calls[["node_id", "name"]].drop_duplicates(ignore_index=True)


def _sums(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Time and number of calls by these keys, with the sizes of the first."""
    found = {"us": "sum", "sizes": "first", "calls": "sum"}
    return rows.groupby(keys, sort=False).agg(found).reset_index()


def _device_rows(p: Prediction) -> pd.DataFrame:
    """A row per device call, in its order among those of its node and family."""
    assert p.calls is not None
    rows = p.calls[p.calls["kernel_us"].notna() & p.calls["device_end_us"].notna()]
    sizes = np.array([""] if p.drawn is None else sizes_of(p.drawn.calls), object)
    at = rows["call"].to_numpy(np.int64) if p.drawn is not None else np.zeros(len(rows), np.int64)
    table = rows[NODE].assign(us=rows["kernel_us"].to_numpy(float), sizes=sizes[at], calls=1)
    return table.assign(nth=table.groupby(["node_id", "family"]).cumcount())


def _by_operator(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per operator and family, in the order of the step; names of kernels do not tell gradients apart."""
    merged = rows.replace({"family": dict.fromkeys(GRADIENTS, GRADIENT)})
    return _sums(merged, NODE).assign(calls=1)


def _operators_in_pairs(left: pd.DataFrame, right: pd.DataFrame) -> list[pd.DataFrame]:
    """Tables of `_by_operator` with the place of each row among equal ones; 0 where the two steps have different numbers.

    Operators that only one of the steps has, because versions of PyTorch name them differently, have the name of their family.
    """
    both = set(left["name"]) & set(right["name"])
    tables = [
        table.assign(name=table["name"].where(table["name"].isin(both), table["family"]))
        for table in (left, right)
    ]
    counts = pd.concat([table.groupby(OPERATOR).size() for table in tables], axis=1)
    unequal = counts[counts[0] != counts[1]].index
    pairs = []
    for table in tables:
        alone = pd.MultiIndex.from_frame(table[OPERATOR]).isin(unequal)
        place = table.groupby(OPERATOR).cumcount().where(~alone, 0)
        pairs.append(table.assign(nth=place, sizes=table["sizes"].where(~alone, "")))
    return pairs


def sizes_of(calls: pd.DataFrame) -> list[str]:
    """Sizes of each call as short text, without usual values."""
    texts: list[list[str]] = [[] for _ in range(len(calls))]
    for name in (name for name in DIMS if name in calls and name not in HELPERS):
        usual, short = WINDOW_DEFAULTS.get(name.removesuffix("_w")), SHORT.get(name, name)
        values = calls[name].to_numpy(np.float64, na_value=np.nan)
        for row in np.flatnonzero(~np.isnan(values) & (values != usual)):
            value = float(values[row])
            texts[row].append(gibibytes(value) if name == "bytes" else f"{short}={value:.0f}")
    return [" ".join(text) for text in texts]
