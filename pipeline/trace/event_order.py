"""Sorts events independently of their order in the file: by start, then longer first, then by contents."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from pipeline.trace.argument_columns import Positions
from pipeline.trace.event_columns import Columns
from pipeline.trace.kineto_fields import MISSING, TEXT_ARGS, base_api_name
from pipeline.trace.lazy_columns import LazyColumns
from pipeline.trace.text_codes import Texts, in_text_order

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def in_order(columns: dict[str, Ints], raw: Columns) -> tuple[LazyColumns[Ints], LazyColumns[Texts]]:
    """The columns of events by start (ties: longer first, then contents), and the vocabularies in text order.

    Columns that order and link events are written in place, because the system would have to clear memory for others
    first. The columns of other arguments are made when they are first read.
    """
    none = np.array([], object)
    vocabulary: dict[str, Texts] = {name: none for name in TEXT_ARGS if name not in raw.texts}
    names, categories = (raw.vocabulary[key].texts if key in raw.vocabulary else none for key in ("name", "cat"))
    names[:] = [base_api_name(name) for name in names]
    vocabulary |= {"name": _recoded(columns["name"], names), "category": _recoded(columns["category"], categories)}
    order = _order(columns)
    for values in columns.values():
        if values.strides != (0,):
            values[:] = values.take(order)
    place: Positions = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    later = {name: partial(argument.column, place) for name, argument in (raw.integers | raw.texts).items()}
    later_texts = {name: partial(argument.texts, place) for name, argument in raw.texts.items()}
    return LazyColumns(columns, later), LazyColumns(vocabulary, later_texts)


def _recoded(codes: Ints, texts: Texts) -> Texts:
    """The texts of a column that events have, in order. Their new codes are written into the column."""
    if len(texts):
        used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))  # unnamed API calls have got other names
        ordered, new = in_text_order(texts[used])
        rank = np.full(len(texts), -1, np.int32)
        rank[used] = new[:-1]
        codes[:] = rank.take(codes)
        return ordered
    return texts


def _order(columns: dict[str, Ints]) -> Ints:
    """Order by start, then longer first. Only rows with the same start are compared by anything else.

    With timestamps in whole microseconds, an op and its nested op may be equal. Ids then give the order of their
    begins.
    """
    order = np.argsort(columns["ts_ns"], kind="stable")
    start = columns["ts_ns"].take(order)
    tied = tied_rows(start[1:] == start[:-1])
    rows, start = order[tied], start[tied]
    by_length = np.lexsort((-columns["dur_ns"][rows], start))
    order[tied] = rows = rows[by_length]
    duration = columns["dur_ns"][rows]
    again = tied_rows((start[1:] == start[:-1]) & (duration[1:] == duration[:-1]))
    rows = rows[again]
    keys = [columns[key][rows] for key in ("correlation", "stream", "name", "external_id", "tid", "pid", "category")]
    order[tied[again]] = rows[np.lexsort((*keys, -duration[again], start[again]))]
    return order


def tied_rows(same: Flags) -> Ints:
    """Rows that are the same as the row before or after them, from a flag of each row but the first."""
    return np.flatnonzero(np.append(same, False) | np.append(False, same)) if len(same) else np.empty(0, np.int64)


def without_duplicates(columns: LazyColumns[Ints]) -> tuple[LazyColumns[Ints], int]:
    """Sorted columns without duplicate events, and the number of duplicates.

    A file that was joined with itself contains every event twice, and therefore twice the work. With timestamps in
    whole microseconds, two different short calls may also look equal. Equal events therefore count as duplicates only
    if there are calls with the same correlation id that are equal in all columns.
    """
    start, duration = columns["ts_ns"], columns["dur_ns"]
    rows = 1 + np.flatnonzero((start[1:] == start[:-1]) & (duration[1:] == duration[:-1]))
    for some in ([*columns.made], [*columns]):  # those that are still to be made only if the others are equal
        for values in map(columns.__getitem__, some):
            rows = rows[values[rows] == values[rows - 1]]
        if not (columns["correlation"][rows] != MISSING).any():
            return columns, 0
    keep = np.ones(len(start), bool)
    keep[rows] = False
    return LazyColumns({name: values[keep] for name, values in columns.items()}, {}), len(rows)
