"""Converts events to typed columns, batch by batch.

Numbers become int64 arrays, with `MISSING` for absent values. Text becomes int32 codes into a vocabulary per column, -1 for
none. Timestamps become exact integer nanoseconds, for whole microseconds, three decimals, and values too large for a float.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from operator import attrgetter, iadd
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from pipeline.arrays import Texts
from pipeline.errors import TraceError
from pipeline.trace.event_records import ATTRIBUTES, NO_ARGUMENTS, NO_TEXT, Event, stamps
from pipeline.trace.file_scan import Batch
from pipeline.trace.kineto_fields import (
    COLUMNS_OF,
    INTEGER_ARGS,
    MISSING,
    TEXT_ARGS,
    UNNAMED_API,
    api_name,
    current_category,
)

Ints = npt.NDArray[Any]
"""int64, or int32 for codes of texts."""

_FLOAT_LIMIT_US = 2.0**42
"""Timestamp in µs above which a float64 no longer resolves nanoseconds."""

_LIMITS_US = {"ts": (-1e15, 4e15), "dur": (-1e15, 1e15)}
"""Range of timestamps (to the year 2096) and durations (31 years), in µs. The sum of two and a base fits int64 in
ns."""


class Vocabulary:
    """Texts read so far, by code; code -1 means absent."""

    def __init__(self) -> None:
        self.codes: defaultdict[str, int] = defaultdict(count().__next__)
        self._json_codes = _JsonCodes(self.codes)

    @property
    def texts(self) -> Texts:
        """The texts in the order of their codes."""
        return np.array(list(self.codes), object)

    def encode(self, texts: Sequence[str]) -> Ints:
        """Codes of some texts. A new text gets the next code."""
        return np.fromiter(map(self.codes.__getitem__, texts), np.int32, len(texts))

    def encode_json(self, texts: Sequence[msgspec.Raw]) -> Ints:
        """Codes of values of any type from their JSON text, -1 for null and for no text."""
        separate = b"\0".join(texts).split(
            b"\0"
        )  # JSON has no zero byte; twice as fast as to convert each text
        return np.fromiter(map(self._json_codes.__getitem__, separate), np.int32, len(texts))


class _JsonCodes(dict[bytes, int]):
    """Code of each JSON text in a vocabulary, found when it is first needed."""

    def __init__(self, codes: dict[str, int]) -> None:
        self.codes = codes

    def __missing__(self, json_text: bytes) -> int:
        text = _text_of(json_text)
        code = self[json_text] = -1 if text is None else self.codes[text]
        return code


def _text_of(json_text: bytes) -> str | None:
    """A text as it is, any other value as JSON text without spaces; None for null."""
    if not json_text:
        return None
    try:
        value = json.loads(json_text)
    except ValueError:  # an integer beyond Python's digit limit
        return json_text.decode()
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


class Fields:
    """The values of each field of some records of one type, in one list: much faster than to ask each record."""

    def __init__(self, records: Sequence[msgspec.Struct]) -> None:
        self._values: list[Any] = reduce(iadd, map(astuple, records), [])
        self._places = {name: place for place, name in enumerate(records[0].__struct_fields__)}

    def __getitem__(self, name: str) -> list[Any]:
        return self._values[self._places[name] :: len(self._places)]


@dataclass
class Columns:
    """Columns of all complete (`ph` X) events of a file, in file order.

    Attributes:
        path: the file, for messages.
        parts: per column the positions of some events in the file, and their values.
        vocabulary: per text column its vocabulary.
        rows: number of complete events so far.
        clamped: number of events with a negative duration, read as 0.
        unlinked: number of ids that do not fit into 64 bits, read as absent.
        ignored: number of begin and end events, which profilers do not write.
    """

    path: Path
    parts: defaultdict[str, list[tuple[Ints, Ints]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    vocabulary: defaultdict[str, Vocabulary] = field(
        default_factory=lambda: defaultdict(Vocabulary)
    )
    rows: int = 0
    clamped: int = 0
    unlinked: int = 0
    ignored: int = 0

    def add(self, batch: Batch) -> None:
        """Append one batch.

        Raises:
            TraceError: an event misses or mistypes a field that every event needs.
        """
        events = [event for event in batch.events if event.ph == "X"]
        if len(events) < len(batch.events):
            self.ignored += sum(event.ph in ("B", "E") for event in batch.events)
        if not events:
            return
        rows = np.arange(self.rows, self.rows + len(events), dtype=np.int32)
        fields = Fields(events)
        names, categories = self._texts(batch, fields, "name"), self._texts(batch, fields, "cat")
        args = [given or NO_ARGUMENTS for given in fields["args"]]
        if UNNAMED_API in names:
            names = [
                api_name(name, {"cbid": each.cbid}) if name == UNNAMED_API else name
                for name, each in zip(names, args, strict=True)
            ]
        category = self.vocabulary["category"].encode(categories)
        for column, values in (
            ("ts_ns", self._stamps(batch, fields)),
            ("dur_ns", self._durations(batch, fields)),
            ("name", self.vocabulary["name"].encode(names)),
            ("category", category),
            ("pid", self._process(batch, fields, "pid")),
            ("tid", self._process(batch, fields, "tid")),
        ):
            self.parts[column].append((rows, values))
        self._arguments(rows, args, category)
        self.rows += len(events)

    def finish(self) -> dict[str, Ints]:
        """One array per column."""
        columns = {}
        texts = ("name", "category", *TEXT_ARGS)
        for name in ("ts_ns", "dur_ns", "pid", "tid", *texts, *INTEGER_ARGS):
            column = (
                np.full(self.rows, -1, np.int32) if name in texts else np.full(self.rows, MISSING)
            )
            for rows, values in self.parts.pop(name, ()):
                column[rows] = values
            columns[name] = column
        return columns

    def _values(
        self, batch: Batch, fields: Fields, key: str, types: set[type], what: str
    ) -> list[Any]:
        """The values of a field, which must be of some types; `what` says what is wrong with others."""
        values = fields[key]
        if not set(map(type, values)) <= types:
            raise self._wrong(batch, lambda event: type(getattr(event, key)) not in types, what)
        return values

    def _texts(self, batch: Batch, fields: Fields, key: str) -> list[str]:
        return self._values(batch, fields, key, {str}, f"has a {key} that is not text")

    def _stamps(self, batch: Batch, fields: Fields) -> Ints:
        times = self._numbers(batch, fields, "ts")
        if times.dtype == np.int64:
            times = times * 1000
        elif np.abs(times).max() < _FLOAT_LIMIT_US:
            times = np.rint(times * 1000)
        else:  # from the digits of the file
            parts = [stamp.partition(b".") for text in batch.texts for stamp in stamps(text)]
            if not any(b"e" in digits.lower() for part in parts for digits in part):
                times = np.array(
                    [whole + decimals[:3].ljust(3, b"0") for whole, _, decimals in parts], "S"
                )
            else:
                times = np.rint(times).astype(np.int64) * 1000 + np.rint(
                    (times - np.rint(times)) * 1000
                ).astype(np.int64)
        return times.astype(np.int64)

    def _durations(self, batch: Batch, fields: Fields) -> Ints:
        times = self._numbers(batch, fields, "dur") * 1000
        durations: Ints = times if times.dtype == np.int64 else np.rint(times).astype(np.int64)
        self.clamped += int((durations < 0).sum())
        return np.maximum(durations, 0)

    def _numbers(self, batch: Batch, fields: Fields, key: str) -> npt.NDArray[Any]:
        """Times in µs as integers, or as floats if one of them is a float."""
        problem = f"has a {key} that is not a number"
        values = self._values(batch, fields, key, {int, float}, problem)
        whole = set(map(type, values)) == {int}
        low, high = _LIMITS_US[key]
        with suppress(OverflowError):
            times: npt.NDArray[Any] = np.fromiter(values, np.int64 if whole else float, len(values))
            if low <= times.min() and times.max() <= high:
                return times
        raise self._wrong(
            batch,
            lambda event: not low <= getattr(event, key) <= high,
            f"has a {key} that is not a time in microseconds",
        )

    def _process(self, batch: Batch, fields: Fields, key: str) -> Ints:
        """Process or thread ids. Text ids (`Spans`) become negative numbers below any real id."""
        values = self._values(batch, fields, key, {int, float, str}, f"has an invalid {key}")
        with suppress(OverflowError):
            if set(map(type, values)) == {int}:
                return np.fromiter(values, np.int64, len(values))
        return np.array([self._process_number(value) for value in values], np.int64)

    def _process_number(self, value: int | float | str) -> int:
        if type(value) is int and abs(value) < 2**62:
            return value
        text = str(value)
        if text.lstrip("-").isdigit() and len(text) < 18:
            return int(text)
        return -(2**62) - self.vocabulary["process"].codes[text]

    def _arguments(self, rows: Ints, args: Sequence[Any], category: Ints) -> None:
        """Add the values of the arguments that the events have, category by category."""
        names = [current_category(name) for name in self.vocabulary["category"].codes]
        for code in np.flatnonzero(np.bincount(category)):
            of_category = np.flatnonzero(category == code)
            chosen = list(map(args.__getitem__, of_category.tolist()))
            for column in COLUMNS_OF.get(names[code], ()):
                absent = MISSING if column in INTEGER_ARGS else NO_TEXT
                values = _first_given(
                    [map(attrgetter(name), chosen) for name in ATTRIBUTES[column]], absent
                )
                if values[0] is absent and values.count(absent) == len(values):
                    continue
                encoded = (
                    self._integers(values)
                    if column in INTEGER_ARGS
                    else self.vocabulary[column].encode_json(values)
                )
                self.parts[column].append((rows[of_category], encoded))

    def _integers(self, values: list[Any]) -> Ints:
        with suppress(OverflowError):
            if set(map(type, values)) == {int}:
                return np.fromiter(values, np.int64, len(values))
        return np.fromiter((self._integer(value) for value in values), np.int64, len(values))

    def _integer(self, value: Any) -> int:
        """One id as an integer. Digits in text are read, unsigned 64-bit values wrap (they stay distinct), other values
        are absent.
        """
        if (
            isinstance(value, str)
            and len(value) < 21
            and value.lstrip("-").isdecimal()
            and value.isascii()
        ):
            value = int(value) if value.count("-") == value.startswith("-") else None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if type(value) is int and -(2**63) <= value < 2**64:
            return value if value < 2**63 else value - 2**64
        self.unlinked += value is not None
        return int(MISSING)

    def _wrong(self, batch: Batch, is_wrong: Callable[[Event], bool], what: str) -> TraceError:
        position = next(
            i for i, event in enumerate(batch.events) if event.ph == "X" and is_wrong(event)
        )
        return TraceError(f"{self.path}: traceEvents[{batch.first + position}] {what}")


def _first_given(sources: Sequence[Iterable[Any]], absent: Any) -> list[Any]:
    """For each event the first value that is not absent."""
    first, *others = map(list, sources)
    for other in others:
        if (absent in first or None in first) and other.count(absent) < len(other):
            first = [
                value if value not in (absent, None) else older
                for value, older in zip(first, other, strict=True)
            ]
    return first
