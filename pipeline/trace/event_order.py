"""Sorts events independently of their order in the file: by start, then longer first, then by contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pipeline.arrays import Flags, Texts
from pipeline.trace.event_columns import Ints, Vocabulary
from pipeline.trace.kineto_fields import MISSING, TEXT_ARGS, base_api_name, current_category

_RENAMED: dict[str, Callable[[str], str]] = {"name": base_api_name, "category": current_category}
"""Columns of text of which several spellings mean the same."""


def in_order(
    columns: dict[str, Ints], vocabularies: Mapping[str, Vocabulary]
) -> tuple[dict[str, Ints], dict[str, Texts]]:
    """The columns of events by start (ties: longer first, then contents), and the vocabularies in text order."""
    texts = {}
    for name in ("name", "category", *TEXT_ARGS):
        used = vocabularies[name].texts if name in vocabularies else np.array([], object)
        if name in _RENAMED:
            used[:] = [_RENAMED[name](text) for text in used]
        texts[name], columns[name] = _in_text_order(used, columns[name])
    order = _order(columns)
    for name in columns:
        columns[name] = columns[name].take(order)
    return columns, texts


def _in_text_order(texts: Texts, codes: Ints) -> tuple[Texts, Ints]:
    """The distinct texts that occur, in order, and the codes of a column for them."""
    occurs = np.flatnonzero(
        np.bincount(codes[codes >= 0], minlength=len(texts))
    )  # names of API calls have changed
    ordered, rank = np.unique(texts[occurs], return_inverse=True)
    new_codes = np.full(len(texts) + 1, -1, np.int32)  # the last, which -1 refers to, stays -1
    new_codes[occurs] = rank
    return ordered, new_codes.take(codes)


def _order(columns: dict[str, Ints]) -> Ints:
    """Order by start, then longer first. Only rows with the same start are compared by anything else.

    With timestamps in whole microseconds, an op and its nested op may be equal. Ids then give the order of their
    begins.
    """
    order = np.argsort(columns["ts_ns"], kind="stable")
    start = columns["ts_ns"].take(order)
    tied = tied_rows(start[1:] == start[:-1])
    rows = order[tied]
    keys = ("correlation", "stream", "name", "external_id", "tid", "pid", "category")
    values = [*(columns[key][rows] for key in keys), -columns["dur_ns"][rows], start[tied]]
    order[tied] = rows[np.lexsort(values)]
    return order


def tied_rows(same: Flags) -> Ints:
    """Rows that are the same as the row before or after them, from a flag of each row but the first."""
    return (
        np.flatnonzero(np.append(same, False) | np.append(False, same))
        if len(same)
        else np.empty(0, np.int64)
    )


def without_duplicates(columns: dict[str, Ints]) -> tuple[dict[str, Ints], int]:
    """Sorted columns without duplicate events, and the number of duplicates.

    A file that was joined with itself contains every event twice, and therefore twice the work. With timestamps in
    whole microseconds, two different short calls may also look equal. Equal events therefore count as duplicates only
    if there are calls with the same correlation id that are equal in all columns.
    """
    start, duration = columns["ts_ns"], columns["dur_ns"]
    rows = 1 + np.flatnonzero((start[1:] == start[:-1]) & (duration[1:] == duration[:-1]))
    for values in columns.values():
        rows = rows[values[rows] == values[rows - 1]]
    if not (columns["correlation"][rows] != MISSING).any():
        return columns, 0
    keep = np.ones(len(start), bool)
    keep[rows] = False
    return {name: values[keep] for name, values in columns.items()}, len(rows)
