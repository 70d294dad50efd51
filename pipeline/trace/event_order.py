"""Sorts events independently of their order in the file: by start, then longer first, then by contents."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.trace.event_columns import Columns
from pipeline.trace.kineto_fields import MISSING, TEXT_ARGS, base_api_name

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def sort_events(columns: dict[str, Ints], raw: Columns) -> dict[str, npt.NDArray[np.object_]]:
    """Sort columns by start (ties: longer first, then contents). Returns the vocabularies as arrays in text order.

    Columns are written in place, because the system would have to clear memory for others first. A column that no event
    has stays as it is.
    """
    vocabulary: dict[str, npt.NDArray[np.object_]] = {}
    for column in ("name", "category", *TEXT_ARGS):
        known = raw.vocabulary.get("cat" if column == "category" else column)
        texts = np.array(known.texts if known else [], object)
        if column == "name":
            texts[:] = [base_api_name(text) for text in texts]
        vocabulary[column], rank = np.unique(texts, return_inverse=True)
        if len(texts):
            columns[column][:] = np.append(rank, -1)[columns[column]]
    order = _order(columns)
    for values in columns.values():
        if values.strides != (0,):
            values[:] = values[order]
    return vocabulary


def _order(columns: dict[str, Ints]) -> Ints:
    """Order by start, then longer first. Only rows with the same start are compared by anything else.

    With timestamps in whole microseconds, an op and its nested op may be equal. Ids then give the order of their
    begins.
    """
    start, longest = columns["ts_ns"], -columns["dur_ns"]
    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    tied = np.flatnonzero(np.append(same, False) | np.append([False], same)) if len(order) else order
    rows = order[tied]
    keys = [columns[key][rows] for key in ("correlation", "stream", "name", "external_id", "tid", "pid", "category")]
    order[tied] = rows[np.lexsort((*keys, longest[rows], start[rows]))]
    return order


def without_duplicates(columns: dict[str, Ints]) -> tuple[dict[str, Ints], int]:
    """Sorted columns without duplicate events, and the number of duplicates.

    A file that was joined with itself contains every event twice, and therefore twice the work. With timestamps in
    whole microseconds, two different short calls may also look equal. Equal events therefore count as duplicates only
    if there are calls with the same correlation id that are equal in all columns.
    """
    same: Flags = np.zeros(len(columns["ts_ns"]), bool)
    if len(same):
        same[1:] = (columns["ts_ns"][1:] == columns["ts_ns"][:-1]) & (columns["dur_ns"][1:] == columns["dur_ns"][:-1])
    rows = np.flatnonzero(same)
    for values in columns.values():
        rows = rows[values[rows] == values[rows - 1]]
    if not (columns["correlation"][rows] != MISSING).any():
        return columns, 0
    keep = np.ones(len(same), bool)
    keep[rows] = False
    return {name: values[keep] for name, values in columns.items()}, len(rows)
