"""Raw events, batch by batch, to typed columns: the only code that touches the dictionaries of a trace.

Numbers become int64 arrays with a mask where absent; text becomes codes into one vocabulary. Stamps become integer
nanoseconds, exactly, whether the file gives whole microseconds, three decimals, or stamps too large for a float.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.errors import TraceError
from pipeline.trace.fields import CATEGORY_ALIASES, COLUMNS_OF, INTEGER_ARGS, TEXT_ARGS
from pipeline.trace.scan import Batch

Ints = npt.NDArray[np.int64]
MISSING = np.iinfo(np.int64).min
"""Marks an absent integer inside this package; tables show it as null."""

_EXACT_TS = re.compile(rb'"ts"\s*:\s*(-?\d+)(?:\.(\d+))?\s*[,}]')
_FLOAT_LIMIT_US = 2.0**42
"""Above this a float64 of microseconds no longer resolves nanoseconds."""
_LIMITS_US = {"ts": (-1e15, 4e15), "dur": (-1e15, 1e15)}
"""Range of stamps (to the year 2096) and durations (31 years), us: sums of two and a base stay within int64 ns."""
_NO_ARGS: dict[str, Any] = {}


@dataclass
class Vocabulary:
    """Text seen so far; code -1 stands for absent."""

    codes: dict[str, int] = field(default_factory=dict)

    def encode(self, values: Sequence[str]) -> Ints:
        """Codes of strings, new ones appended."""
        codes = self.codes
        return np.fromiter((codes.setdefault(value, len(codes)) for value in values), np.int64, len(values))


@dataclass
class Columns:
    """Columns of all complete (`ph` X) events of a file, in file order.

    Attributes:
        path: the file, for messages.
        parts: per column the arrays of each batch.
        vocabulary: per text column its vocabulary.
        seen: number of elements in the event array, of any kind.
        clamped: number of events with a negative duration, read as 0.
        unlinked: number of ids that do not fit 64 bits, read as absent.
    """

    path: Path
    parts: dict[str, list[Ints]] = field(default_factory=dict)
    vocabulary: dict[str, Vocabulary] = field(default_factory=dict)
    seen: int = 0
    clamped: int = 0
    unlinked: int = 0
    ignored: int = 0

    def add(self, batch: Batch) -> None:
        """Append one batch.

        Raises:
            TraceError: an element is not an object, or misses or mistypes a field that every event needs.
        """
        try:
            events = [event for event in batch.events if event.get("ph") == "X"]
        except AttributeError:
            raise self._wrong(batch, lambda e: not isinstance(e, dict), "is not an object") from None
        self.seen += len(batch.events)
        self.ignored += sum(event.get("ph") in ("B", "E") for event in batch.events)
        if not events:
            return
        self._append("ts_ns", self._stamps(batch, events))
        self._append("dur_ns", self._durations(batch, events))
        for column in ("name", "cat"):
            self._text(batch, events, column)
        for column in ("pid", "tid"):
            self._append(column, self._process(batch, events, column))
        self._arguments(batch, events)

    def finish(self) -> dict[str, Ints]:
        """One array per column; the batches are released as they are joined."""
        out = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in self._drain()}
        for name in ("ts_ns", "dur_ns", "name", "cat", "pid", "tid", *INTEGER_ARGS, *TEXT_ARGS):
            out.setdefault(name, np.empty(0, np.int64))
        return out

    def _drain(self) -> list[tuple[str, list[Ints]]]:
        items = list(self.parts.items())
        self.parts = {}
        return items

    def _append(self, column: str, values: Ints) -> None:
        self.parts.setdefault(column, []).append(values)

    def _encode(self, column: str, values: Sequence[str]) -> Ints:
        return self.vocabulary.setdefault(column, Vocabulary()).encode(values)

    def _stamps(self, batch: Batch, events: list[dict[str, Any]]) -> Ints:
        values = [event.get("ts") for event in events]
        self._require_numbers(batch, values, "ts")
        if not all(type(value) is int for value in values):
            stamps = np.array(values, np.float64)
            if np.abs(stamps).max() >= _FLOAT_LIMIT_US:
                return self._exact_stamps(batch, stamps)
            return np.rint(stamps * 1000.0).astype(np.int64)
        return np.array(values, np.int64) * 1000

    def _exact_stamps(self, batch: Batch, stamps: npt.NDArray[np.float64]) -> Ints:
        """Stamps from the digits of the file, where a float would round them to a quarter of a microsecond.

        Falls back to the floats where the text does not hold one stamp per event (`ts` used as a key elsewhere).
        """
        found = _EXACT_TS.findall(batch.text)
        is_event = [isinstance(e, dict) and "ts" in e for e in batch.events]
        if len(found) != sum(is_event):
            return np.rint(stamps).astype(np.int64) * 1000 + np.rint((stamps - np.rint(stamps)) * 1000).astype(np.int64)
        keep = [e.get("ph") == "X" for e, stamped in zip(batch.events, is_event, strict=True) if stamped]
        digits = [
            whole + fraction[:3].ljust(3, b"0") for (whole, fraction), kept in zip(found, keep, strict=True) if kept
        ]
        return np.array(digits, "S").astype(np.int64)

    def _durations(self, batch: Batch, events: list[dict[str, Any]]) -> Ints:
        values = [event.get("dur", 0) for event in events]
        self._require_numbers(batch, values, "dur")
        durations = np.rint(np.array(values, np.float64) * 1000.0).astype(np.int64)
        self.clamped += int((durations < 0).sum())
        return np.maximum(durations, 0)

    def _require_numbers(self, batch: Batch, values: list[Any], key: str) -> None:
        kinds = set(map(type, values))
        if not kinds <= {int, float}:
            raise self._wrong(batch, lambda e: type(e.get(key, 0 if key == "dur" else None)) not in (int, float),
                              f"has no number as {key}")  # fmt: skip
        low, high = _LIMITS_US[key]
        if not (low <= min(values) and max(values) <= high) or any(value != value for value in values):
            raise self._wrong(
                batch, lambda e: not low <= e.get(key, 0) <= high, f"has a {key} that is no time in microseconds"
            )

    def _text(self, batch: Batch, events: list[dict[str, Any]], key: str) -> None:
        absent = "" if key == "cat" else None
        values: list[Any] = [event.get(key, absent) for event in events]
        if set(map(type, values)) != {str}:
            raise self._wrong(batch, lambda e: type(e.get(key, absent)) is not str, f"has no text as {key}")
        if key == "cat":
            values = [CATEGORY_ALIASES.get(value, value) for value in values]
        self._append(key, self._encode(key, values))

    def _process(self, batch: Batch, events: list[dict[str, Any]], key: str) -> Ints:
        """Process or thread ids; text ids (`Spans`) become negative numbers below any real id."""
        values = [event.get(key, 0) for event in events]
        try:
            if set(map(type, values)) == {int}:
                return np.array(values, np.int64)
        except OverflowError:
            pass
        out = np.empty(len(values), np.int64)
        for i, value in enumerate(values):
            if type(value) is int and abs(value) < 2**62:
                out[i] = value
            elif isinstance(value, str | int | float) and not isinstance(value, bool):
                text = str(value)
                number = int(text) if text.lstrip("-").isdigit() and len(text) < 18 else None
                out[i] = number if number is not None else -(2**62) - int(self._encode("process", [text])[0])
            else:
                raise self._wrong(batch, lambda e: not isinstance(e.get(key, 0), str | int | float), f"has a bad {key}")
        return out

    def _arguments(self, batch: Batch, events: list[dict[str, Any]]) -> None:
        args = [event.get("args") or _NO_ARGS for event in events]
        if set(map(type, args)) != {dict}:
            raise self._wrong(batch, lambda e: type(e.get("args") or {}) is not dict, "has args that are no object")
        category = self.parts["cat"][-1]
        names = list(self.vocabulary["cat"].codes)
        columns = {name: np.full(len(events), MISSING, np.int64) for name in INTEGER_ARGS}
        columns |= {name: np.full(len(events), -1, np.int64) for name in TEXT_ARGS}
        for code in np.unique(category):
            wanted = COLUMNS_OF.get(names[code], ())
            rows = np.flatnonzero(category == code)
            chosen = [args[row] for row in rows] if wanted else []
            for column in wanted:
                convert = self._integers if column in INTEGER_ARGS else self._texts
                columns[column][rows] = convert(column, chosen)
        for name, values in columns.items():
            self._append(name, values)

    def _integers(self, column: str, args: list[dict[str, Any]]) -> Ints:
        values = _pick(args, INTEGER_ARGS[column])
        try:
            if set(map(type, values)) == {int}:
                return np.array(values, np.int64)
        except OverflowError:
            pass
        return np.fromiter((self._integer(value) for value in values), np.int64, len(values))

    def _integer(self, value: Any) -> int:
        """One id; text digits are read, unsigned 64-bit values wrap (they stay distinct), the rest is absent."""
        if isinstance(value, str) and len(value) < 21 and value.lstrip("-").isdecimal() and value.isascii():
            value = int(value) if value.count("-") == value.startswith("-") else None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if type(value) is int and -(2**63) < value < 2**64:
            return value if value < 2**63 else value - 2**64
        self.unlinked += value is not None
        return int(MISSING)

    def _texts(self, column: str, args: list[dict[str, Any]]) -> Ints:
        values = _pick(args, TEXT_ARGS[column])
        out = np.full(len(values), -1, np.int64)
        present = [i for i, value in enumerate(values) if value is not None]
        texts = [v if isinstance(v, str) else orjson.dumps(v).decode() for v in (values[i] for i in present)]
        out[present] = self._encode(column, texts)
        return out

    def _wrong(self, batch: Batch, test: Callable[[Any], bool], what: str) -> TraceError:
        for i, event in enumerate(batch.events):
            if not isinstance(event, dict):
                return TraceError(f"{self.path}: traceEvents[{batch.first + i}] is not an object")
            if event.get("ph") == "X" and test(event):
                return TraceError(f"{self.path}: traceEvents[{batch.first + i}] {what}")
        return TraceError(f"{self.path}: an event behind traceEvents[{batch.first}] {what}")


def _pick(args: list[dict[str, Any]], keys: tuple[str, ...]) -> list[Any]:
    values = [arg.get(keys[0]) for arg in args]
    for key in keys[1:]:
        if None in values:
            values = [arg.get(key) if value is None else value for value, arg in zip(values, args, strict=True)]
    return values
