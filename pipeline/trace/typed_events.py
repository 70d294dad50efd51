"""Parses events into typed records (msgspec), which skips the fields that nobody reads.

Each category of events has a record type, with the arguments that this category may have. A window with anything unusual,
such as a new category, an id that is text, or invalid JSON, is parsed into dictionaries (orjson). New categories, text ids
and decimals are then learned, so that later windows with them are parsed into records. The columns are the same either way
(`tests/trace/test_typed_events.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from importlib.util import find_spec
from itertools import compress
from operator import iadd, or_
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.trace.file_scan import Text, parse_list
from pipeline.trace.kineto_fields import API_CATEGORIES, CATEGORY_ALIASES, COLUMNS_OF, INTEGER_ARGS, MISSING, TEXT_ARGS

HAS_RECORDS = find_spec("msgspec") is not None
"""Whether the parser is installed. All windows become dictionaries in an environment that is older than it."""

if HAS_RECORDS:
    import msgspec
    from msgspec.structs import astuple

Ints = npt.NDArray[np.int64]

MAX_CATEGORIES = 64
"""Categories that get a record type. Traces have about ten."""

MAX_ASCII = 127

MAX_FAILURES = 8
"""Windows that may fail in a row. The rest of the file is then parsed into dictionaries only."""

NOT_READ = ("s", "t", "f", "i", "I", "n", "C", "b", "e", "M")
"""Kinds (`ph`) of events that are neither read nor counted: flows, instants, counters and metadata."""

KNOWN = {str(category): True for category in COLUMNS_OF} | {"ac2g": False, "async_cpu_to_gpu": False, "fwdbwd": False}
"""Categories of current Kineto: whether their events become rows."""

_ABSENT_TEXT: Any = msgspec.Raw(b"") if HAS_RECORDS else None


class RecordType(NamedTuple):
    """The record type of one category.

    Attributes:
        category: in the spelling of current Kineto.
        is_read: whether its events become rows; each of them is then complete (`ph` X).
    """

    category: str
    is_read: bool


class Fields(NamedTuple):
    """The rows of a batch of records, one sequence per field; `kind` is a position in `EventDecoder.types`."""

    kind: Ints
    name: Sequence[str]
    pid: Sequence[Any]
    tid: Sequence[Any]
    ts: Sequence[Any]
    dur: Sequence[Any]
    args: Sequence[Any]


@dataclass
class EventDecoder:
    """Parses windows of the event array.

    Attributes:
        types: the record types so far, by class; some are no longer used.
        text_ids: whether ids of processes or threads may be text.
        decimals: whether timestamps or durations may have decimals.
    """

    types: dict[type, RecordType] = field(default_factory=dict, init=False)
    text_ids: bool = False
    decimals: bool = False
    _is_read: dict[str, bool | None] = field(default_factory=lambda: dict(KNOWN))  # None: only some events are complete
    _decoder: Any = None
    _failures: int = 0

    def __post_init__(self) -> None:
        if HAS_RECORDS:
            self._make_types()
        else:
            self._failures = MAX_FAILURES

    def parse(self, text: Text) -> list[Any] | None:
        """Elements of a JSON list: all records or all dictionaries; None if the text is not valid JSON."""
        if self._decoder is not None and self._failures < MAX_FAILURES:
            try:
                if np.bitwise_or.reduce(np.frombuffer(text, np.uint8)) > MAX_ASCII:
                    bytes(text).decode()  # msgspec does not check the encoding of fields that it skips
                records: list[Any] = self._decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._failures += 1
            else:
                self._failures = 0
                return records
        events = parse_list(text)
        if events is not None and self._failures < MAX_FAILURES:
            self._learn(events)
        return events

    def is_record(self, event: Any) -> bool:
        """Whether an element was parsed into a record."""
        return type(event) in self.types

    def fields(self, records: Sequence[Any]) -> Fields | None:
        """The fields of the records that are read; None where there is none."""
        number = {each: i for i, each in enumerate(self.types)}
        # a byte holds every number: each category has at most three types, as each of the two flags changes once
        kind = np.frombuffer(bytearray(map(number.__getitem__, map(type, records))), np.uint8)
        is_read = np.array([each.is_read for each in self.types.values()], bool)[kind]
        if not is_read.any():
            return None
        kind = kind[is_read]
        return Fields(kind, *_transposed(compress(records, is_read.tolist()), len(kind), first=1))  # without `ph`

    def categories(self) -> list[str]:
        """The category of each record type, in the order of `types`."""
        return [each.category for each in self.types.values()]

    def _learn(self, events: Iterable[Any]) -> None:
        """Make record types of the categories whose events are all read, or all not."""
        try:
            seen = {(event.get("cat"), event.get("ph")) for event in events}
            of_ids = {type(event.get(key)) for event in events for key in ("pid", "tid")}
            of_times = {type(event.get(key)) for event in events for key in ("ts", "dur")}
        except (AttributeError, TypeError):  # not an object, or not text: an error, when the columns are made
            return
        before = self._is_read | {}, self.text_ids, self.decimals
        self.text_ids |= str in of_ids
        self.decimals |= float in of_times
        for category, kind in seen:
            if type(category) is str and (kind == "X" or kind in NOT_READ):
                is_read = kind == "X"
                self._is_read[category] = is_read if self._is_read.get(category, is_read) is is_read else None
        if (self._is_read, self.text_ids, self.decimals) != before and len(self._is_read) <= MAX_CATEGORIES:
            self._make_types()

    def _make_types(self) -> None:
        current = {
            _record(tag, is_read, self.text_ids, self.decimals): RecordType(CATEGORY_ALIASES.get(tag, tag), is_read)
            for tag, is_read in self._is_read.items() if is_read is not None
        }  # fmt: skip
        self.types |= current  # records of earlier types may wait for their columns
        self._decoder = _decoder(tuple(current)) if current else None


@lru_cache(256)
def _record(tag: str, is_read: bool, text_ids: bool, decimals: bool) -> type:
    """The class of the records of one category, as the file spells it."""
    options: dict[str, Any] = {"tag_field": "cat", "tag": tag, "gc": False}
    if not is_read:
        unread: type = msgspec.defstruct("Unread", [("ph", Literal[NOT_READ])], **options)
        return unread
    arguments: list[Any] = [
        (f"argument{i}", *((int, msgspec.field(default=MISSING, name=key)) if column in INTEGER_ARGS
                           else (msgspec.Raw, msgspec.field(default=_ABSENT_TEXT, name=key))))
        for i, (column, key) in enumerate(_keys(CATEGORY_ALIASES.get(tag, tag)))
    ]  # fmt: skip
    if CATEGORY_ALIASES.get(tag, tag) in API_CATEGORIES:
        arguments.append(("cbid", int, MISSING))
    args = msgspec.defstruct("Arguments", arguments, gc=False)
    an_id: Any = int | str if text_ids else int
    fields: list[Any] = [
        ("ph", Literal["X"]), ("name", str), ("pid", an_id, 0), ("tid", an_id, 0),
        ("ts", int | float if decimals else int), ("dur", float if decimals else int, 0),
        ("args", args, msgspec.field(default_factory=args)),
    ]  # fmt: skip
    record: type = msgspec.defstruct("Event", fields, kw_only=True, **options)
    return record


@lru_cache(16)
def _decoder(types: tuple[type, ...]) -> Any:
    """The parser of lists of these records. Making one takes as long as parsing 300 kB."""
    return msgspec.json.Decoder(list[reduce(or_, types)])  # type: ignore[misc]


def _transposed(records: Iterable[Any], number: int, first: int = 0) -> list[list[Any]]:
    """The values of each field from the first that is wanted, of a number of records with equally many fields. `zip`
    would take a third longer.
    """
    values: list[Any] = reduce(iadd, map(astuple, records), [])
    width = len(values) // number
    return [values[i::width] for i in range(first, width)]


def argument_values(category: str, args: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The column and the values of each key that some events of a category have: integers or `MISSING`, else buffers
    with JSON, empty for none.
    """
    for (column, _), values in zip(_keys(category), _transposed(args, len(args)), strict=False):  # cbid may be last
        absent = MISSING if column in INTEGER_ARGS else _ABSENT_TEXT
        if values[0] == absent and values.count(absent) == len(values):
            continue
        yield column, values


@cache
def _keys(category: str) -> list[tuple[str, str]]:
    """(column, key) of each argument that is read of a category, in the order of a record's fields. Of a column with
    several keys, the newest comes first.
    """
    columns = COLUMNS_OF.get(category, ())
    return [(column, key) for column in columns for key in (INTEGER_ARGS | TEXT_ARGS)[column]]
