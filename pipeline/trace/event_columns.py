"""Converts raw events to typed columns, batch by batch. No other module reads the dictionaries of a trace.

Numbers become int64 arrays, with `MISSING` for absent values. Text becomes codes into a vocabulary per column.
Timestamps become exact integer nanoseconds, for whole microseconds, three decimals, and values too large for a float.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import TraceError
from pipeline.trace.argument_columns import IntegerArgument, Positions, TextArgument
from pipeline.trace.file_scan import Batch
from pipeline.trace.growing_column import GrowingColumn
from pipeline.trace.kineto_fields import (
    CATEGORY_ALIASES,
    COLUMNS_OF,
    INTEGER_ARGS,
    MISSING,
    TEXT_ARGS,
    UNNAMED_API,
    api_name,
)
from pipeline.trace.text_codes import Vocabulary
from pipeline.trace.typed_events import EventDecoder, argument_values

Ints = npt.NDArray[np.int64]
_EXACT_TS = re.compile(rb'"ts"\s*:\s*(-?\d+)(?:\.(\d+))?\s*[,}]')
_FLOAT_LIMIT_US = 2.0**42
"""Timestamp in µs above which a float64 no longer resolves nanoseconds."""
RECORDS_AT_ONCE = 3072
"""Records from which columns are made: many share the cost of a call of NumPy, and 3,072 take 3 MB."""

_LIMITS_US = {"ts": (-1e15, 4e15), "dur": (-1e15, 1e15)}
"""Range of timestamps (to the year 2096) and durations (31 years), in µs. The sum of two and a base fits int64 in
ns."""
_NO_ARGS: dict[str, Any] = {}
_DEFAULTS: dict[str, Any] = {"ts": None, "dur": 0, "name": None, "cat": "", "pid": 0, "tid": 0, "args": None}
_GET_ALL = itemgetter(*_DEFAULTS)
_TEXTS = frozenset({"name", "cat", *TEXT_ARGS})

LINKING_ARGS = ("stream", "device", "correlation", "external_id")
"""Arguments that are needed to order and link events. The columns of the others are made later."""


@dataclass
class Columns:
    """Columns of all complete (`ph` X) events of a file, in file order.

    Attributes:
        path: the file, for messages.
        decoder: parsed the batches.
        columns: the columns by which events are ordered and linked, if any event so far has them.
        integers: other arguments that any event so far has.
        texts: the same of text.
        rows: number of complete events so far.
        vocabulary: per text column its vocabulary.
        seen: number of elements in the event array, of any kind.
        clamped: number of events with a negative duration, read as 0.
        unlinked: number of ids that do not fit into 64 bits, read as absent.
        ignored: number of begin and end events, which profilers do not write.
    """

    path: Path
    decoder: EventDecoder = field(default_factory=EventDecoder)
    columns: dict[str, GrowingColumn] = field(default_factory=dict)
    integers: defaultdict[str, IntegerArgument] = field(default_factory=lambda: defaultdict(IntegerArgument))
    texts: defaultdict[str, TextArgument] = field(default_factory=lambda: defaultdict(TextArgument))
    vocabulary: dict[str, Vocabulary] = field(default_factory=dict)
    rows: int = 0
    seen: int = 0
    clamped: int = 0
    unlinked: int = 0
    ignored: int = 0
    _held: list[Batch] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Append one batch.

        Raises:
            TraceError: an element is not an object, or misses or mistypes a field that every event needs.
        """
        if batch.events and self.decoder.is_record(batch.events[0]):
            self._held.append(batch)
            if sum(len(held.events) for held in self._held) >= RECORDS_AT_ONCE:
                self.add_held()
        else:
            self.add_held()
            self._add_dictionaries(batch)

    def add_held(self) -> None:
        """Append the records that wait for more.

        Raises:
            TraceError: as `add`.
        """
        held, self._held = self._held, []
        if held:
            events = list(chain.from_iterable(batch.events for batch in held))
            self._add_records(Batch(events, [part for batch in held for part in batch.parts], held[0].first))

    def _add_records(self, batch: Batch) -> None:
        self.seen += len(batch.events)
        fields = self.decoder.fields(batch.events)
        if fields is None:
            return
        self._append("ts_ns", self._stamps(batch, fields.ts, None if self.decoder.decimals else {int}))
        self._append("dur_ns", self._durations(batch, fields.dur, {float} if self.decoder.decimals else {int}))
        number = len(fields.name)
        self._append("name", self._names(fields.name, fields.args))
        for column in ("pid", "tid"):
            ids = getattr(fields, column)
            self._append(column, self._process(batch, ids, column, None if self.decoder.text_ids else {int}))
        categories, kinds = self.decoder.categories(), np.flatnonzero(np.bincount(fields.kind)).tolist()
        codes = np.zeros(len(categories), np.int64)
        codes[kinds] = self._encode("cat", [categories[kind] for kind in kinds], len(kinds))
        self._append("cat", codes[fields.kind])
        for kind in kinds:
            rows = np.flatnonzero(fields.kind == kind)
            own = itemgetter(*rows.tolist(), 0)(fields.args)[:-1]  # a tuple also of one row
            newest = ""
            for column, values in argument_values(categories[kind], own):
                if column in TEXT_ARGS:
                    self.texts[column].add_json(self._positions(rows), values)
                    continue
                try:
                    found = np.fromiter(values, np.int64, len(values))
                except OverflowError:
                    found = self._integers([None if value == MISSING else value for value in values])
                if column == newest and column in LINKING_ARGS:
                    newer = self._new_rows(column, number)[rows]
                    found = np.where(newer == MISSING, found, newer)
                self._add_integers(column, rows, number, found)
                newest = column
        self.rows += number

    def _names(self, names: Sequence[str], args: Sequence[Any]) -> Ints:
        """Codes of names. Those of API calls that Kineto could not name are looked at one by one."""
        codes = self._encode("name", names, len(names))
        for row in np.flatnonzero(codes == self._vocabulary("name").codes.get(UNNAMED_API, -1)).tolist():
            name = api_name(UNNAMED_API, {"cbid": getattr(args[row], "cbid", MISSING)})
            codes[row] = self._vocabulary("name").codes[name]
        return codes

    def _add_integers(self, column: str, rows: Ints, number: int, values: Ints) -> None:
        """Add the values of some of the `number` events of a batch."""
        if column in LINKING_ARGS:
            self._new_rows(column, number)[rows] = values
        else:
            self.integers[column].add(self._positions(rows), values)

    def _positions(self, rows: Ints) -> Positions:
        """Positions in the file of some rows of the current batch."""
        return (self.rows + rows).astype(np.int32)

    def _add_dictionaries(self, batch: Batch) -> None:
        try:
            kinds = [event.get("ph") for event in batch.events]
        except AttributeError:
            raise self._wrong(batch, lambda e: not isinstance(e, dict), "is not an object") from None
        self.seen += len(batch.events)
        events = [event for event, kind in zip(batch.events, kinds, strict=True) if kind == "X"]
        self.ignored += kinds.count("B") + kinds.count("E")
        if not events:
            return
        fields = _fields(events)
        self._append("ts_ns", self._stamps(batch, fields["ts"]))
        self._append("dur_ns", self._durations(batch, fields["dur"]))
        if UNNAMED_API in fields["name"]:
            fields["name"] = [api_name(*pair) for pair in zip(fields["name"], fields["args"], strict=True)]
        for column in ("name", "cat"):
            self._text(batch, fields[column], column)
        for column in ("pid", "tid"):
            self._append(column, self._process(batch, fields[column], column))
        self._arguments(batch, fields["args"])
        self.rows += len(events)

    def finish(self) -> dict[str, Ints]:
        """One array per column, without those of `integers` and `texts`.

        Raises:
            TraceError: as `add`.
        """
        self.add_held()
        out: dict[str, Ints] = {}
        for name in ("ts_ns", "dur_ns", "name", "cat", "pid", "tid", *INTEGER_ARGS, *TEXT_ARGS):
            if name in self.columns:
                out[name] = self.columns.pop(name).finish(self.rows)
            elif name not in self.integers and name not in self.texts:  # no event has it: one value represents all
                out[name] = np.broadcast_to(_absent(name), self.rows)
        return out

    def _new_rows(self, column: str, number: int) -> Ints:
        """The rows of the current batch in a column, which are absent at first."""
        return self._column(column).at(self.rows, number)

    def _append(self, column: str, values: Ints) -> None:
        self._column(column).append(values)

    def _column(self, name: str) -> GrowingColumn:
        if name not in self.columns:
            self.columns[name] = GrowingColumn(_absent(name))
        return self.columns[name]

    def _encode(self, column: str, values: Iterable[str | bytes], number: int) -> Ints:
        return self._vocabulary(column).encode(values, number)

    def _vocabulary(self, column: str) -> Vocabulary:
        if column not in self.vocabulary:
            self.vocabulary[column] = Vocabulary()
        return self.vocabulary[column]

    def _stamps(self, batch: Batch, values: Sequence[Any], kinds: set[type] | None = None) -> Ints:
        stamps = self._numbers(batch, values, "ts", kinds)
        if stamps.dtype == np.int64:
            whole: Ints = stamps * 1000
            return whole
        if np.abs(stamps).max() >= _FLOAT_LIMIT_US:
            return self._exact_stamps(batch, stamps)
        return np.rint(stamps * 1000.0).astype(np.int64)

    def _exact_stamps(self, batch: Batch, stamps: npt.NDArray[np.float64]) -> Ints:
        """Timestamps from the digits of the file, where a float would round them to a quarter of a microsecond.

        Uses the floats if the text does not contain one timestamp per event (`ts` used as a key elsewhere).
        """
        found = _EXACT_TS.findall(batch.text)
        events = batch.dictionaries()
        is_event = [isinstance(e, dict) and "ts" in e for e in events]
        if len(found) != sum(is_event):
            return np.rint(stamps).astype(np.int64) * 1000 + np.rint((stamps - np.rint(stamps)) * 1000).astype(np.int64)
        keep = [e.get("ph") == "X" for e, stamped in zip(events, is_event, strict=True) if stamped]
        digits = [
            whole + fraction[:3].ljust(3, b"0") for (whole, fraction), kept in zip(found, keep, strict=True) if kept
        ]
        return np.array(digits, "S").astype(np.int64)

    def _durations(self, batch: Batch, values: Sequence[Any], kinds: set[type] | None = None) -> Ints:
        durations = self._numbers(batch, values, "dur", kinds) * 1000
        whole: Ints = np.rint(durations).astype(np.int64) if durations.dtype == np.float64 else durations
        self.clamped += int((whole < 0).sum())
        return np.maximum(whole, 0)

    def _numbers(self, batch: Batch, values: Sequence[Any], key: str, kinds: set[type] | None) -> npt.NDArray[Any]:
        """Times in µs as integers, or as floats if one of them is a float; `kinds` are their types if these are known."""
        kinds = kinds or set(map(type, values))
        if not kinds <= {int, float}:
            raise self._wrong(batch, lambda e: type(e.get(key, 0 if key == "dur" else None)) not in (int, float),
                              f"has a {key} that is not a number")  # fmt: skip
        low, high = _LIMITS_US[key]
        with suppress(OverflowError):
            found: npt.NDArray[Any] = np.fromiter(values, np.int64 if kinds == {int} else np.float64, len(values))
            if low <= found.min() and found.max() <= high:  # false if there is a nan
                return found
        raise self._wrong(
            batch, lambda e: not low <= e.get(key, 0) <= high, f"has a {key} that is not a time in microseconds"
        )

    def _text(self, batch: Batch, values: Sequence[Any], key: str) -> None:
        absent = _DEFAULTS[key]
        if set(map(type, values)) != {str}:
            raise self._wrong(batch, lambda e: type(e.get(key, absent)) is not str, f"has a {key} that is not text")
        if key == "cat":
            plain = CATEGORY_ALIASES.keys().isdisjoint(values)
            values = values if plain else [CATEGORY_ALIASES.get(value, value) for value in values]
        self._append(key, self._encode(key, values, len(values)))

    def _process(self, batch: Batch, values: Sequence[Any], key: str, kinds: set[type] | None = None) -> Ints:
        """Process or thread ids. Text ids (`Spans`) become negative numbers below any real id."""
        try:
            if (kinds or set(map(type, values))) == {int}:
                return np.fromiter(values, np.int64, len(values))
        except OverflowError:
            pass
        out = np.empty(len(values), np.int64)
        for i, value in enumerate(values):
            if type(value) is int and abs(value) < 2**62:
                out[i] = value
            elif isinstance(value, str | int | float) and not isinstance(value, bool):
                text = str(value)
                number = int(text) if text.lstrip("-").isdigit() and len(text) < 18 else None
                out[i] = number if number is not None else -(2**62) - int(self._encode("process", [text], 1)[0])
            else:
                raise self._wrong(
                    batch, lambda e: not isinstance(e.get(key, 0), str | int | float), f"has an invalid {key}"
                )
        return out

    def _arguments(self, batch: Batch, values: Sequence[Any]) -> None:
        """Columns from the arguments, category by category. A column that no event has takes no memory."""
        args = values if set(map(type, values)) == {dict} else [value or _NO_ARGS for value in values]
        if args is not values and set(map(type, args)) != {dict}:
            raise self._wrong(batch, lambda e: type(e.get("args") or {}) is not dict, "has args that are not an object")
        category = self._new_rows("cat", len(values))
        names = list(self.vocabulary["cat"].codes)
        for code in np.flatnonzero(np.bincount(category)):
            wanted = COLUMNS_OF.get(str(names[code]), ())
            if not wanted:
                continue
            rows = np.flatnonzero(category == code)
            chosen = list(map(args.__getitem__, rows.tolist()))
            present = set().union(*chosen)
            for column in wanted:
                integer = column in INTEGER_ARGS
                keys = [key for key in (INTEGER_ARGS if integer else TEXT_ARGS)[column] if key in present]
                if not keys:
                    continue
                picked = _pick(chosen, keys)
                if integer:
                    self._add_integers(column, rows, len(args), self._integers(picked))
                else:
                    codes = self.texts[column].vocabulary.encode_values(picked)
                    self.texts[column].add(self._positions(rows), codes)

    def _integers(self, values: list[Any]) -> Ints:
        kinds = set(map(type, values))
        try:
            if kinds == {int}:
                return np.fromiter(values, np.int64, len(values))
            if kinds == {int, NoneType}:
                return np.array([MISSING if value is None else value for value in values], np.int64)
        except OverflowError:
            pass
        return np.fromiter((self._integer(value) for value in values), np.int64, len(values))

    def _integer(self, value: Any) -> int:
        """One id as an integer. Digits in text are read, unsigned 64-bit values wrap (they stay distinct), other values
        are absent.
        """
        if isinstance(value, str) and len(value) < 21 and value.lstrip("-").isdecimal() and value.isascii():
            value = int(value) if value.count("-") == value.startswith("-") else None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if type(value) is int and -(2**63) < value < 2**64:
            return value if value < 2**63 else value - 2**64
        self.unlinked += value is not None
        return int(MISSING)

    def _wrong(self, batch: Batch, test: Callable[[Any], bool], what: str) -> TraceError:
        for i, event in enumerate(batch.dictionaries()):
            if not isinstance(event, dict):
                return TraceError(f"{self.path}: traceEvents[{batch.first + i}] is not an object")
            if event.get("ph") == "X" and test(event):
                return TraceError(f"{self.path}: traceEvents[{batch.first + i}] {what}")
        return TraceError(f"{self.path}: an event after traceEvents[{batch.first}] {what}")


def _absent(column: str) -> Ints:
    """The value of a column for events that do not have it, as an array of one element of the type of the column."""
    return np.array([-1], np.int32) if column in _TEXTS else np.array([MISSING])


def _fields(events: list[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """The fields that every event has, one sequence each. Absent fields have their default."""
    try:
        return dict(zip(_DEFAULTS, zip(*map(_GET_ALL, events), strict=True), strict=True))
    except KeyError:
        return {key: [event.get(key, default) for event in events] for key, default in _DEFAULTS.items()}


def _pick(args: list[dict[str, Any]], keys: list[str]) -> list[Any]:
    """Per event, the value of the first of some keys that exists; None if none exists."""
    try:
        return list(map(itemgetter(keys[0]), args))  # the common case, at twice the speed of `get`
    except KeyError:
        values = [arg.get(keys[0]) for arg in args]
    for key in keys[1:]:
        values = [arg.get(key) if value is None else value for value, arg in zip(values, args, strict=True)]
    return values
