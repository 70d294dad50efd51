"""Parses the text of events into typed records (msgspec), which skips the fields that nobody reads.

Each category of events that Kineto writes today has a record type with the arguments of this category. A text with other
categories is parsed into records of one type, at half the speed. Values keep their types: `event_columns` checks and
converts them. Text that is not valid JSON is repaired first (`json_repair`).
"""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from pipeline.trace.json_repair import parse_loosely
from pipeline.trace.kineto_fields import COLUMNS_OF, INTEGER_ARGS, TEXT_ARGS

NO_TEXT = msgspec.Raw(b"")

UNREAD_CATEGORIES = ("ac2g", "async_cpu_to_gpu", "fwdbwd")
"""Categories of arrows between events, which are not read."""

ATTRIBUTES = {
    column: tuple(f"{column}_{place}" for place in range(len(keys)))
    for column, keys in (INTEGER_ARGS | TEXT_ARGS).items()
}
"""For each column the attributes of a record's `args` that it may come from, newest first."""


def _arguments(columns: tuple[str, ...]) -> type[msgspec.Struct]:
    """A record of the arguments of some columns, numbers as they are, text and lists as JSON; and `cbid`, of an API."""
    fields: list[Any] = [("cbid", Any, None)]
    for column in columns:
        kind, absent, keys = (
            (Any, None, INTEGER_ARGS[column]) if column in INTEGER_ARGS else (msgspec.Raw, NO_TEXT, TEXT_ARGS[column])
        )
        fields += [
            (name, kind, msgspec.field(default=absent, name=key))
            for name, key in zip(ATTRIBUTES[column], keys, strict=True)
        ]
    return msgspec.defstruct("Arguments", fields, gc=False)


def _event(columns: tuple[str, ...], category: str | None = None) -> type[msgspec.Struct]:
    """A record of one element of the event array; of any category, or of one."""
    args = _arguments(columns)
    fields: list[Any] = [
        ("ph", Any, None), ("name", Any, None), ("pid", Any, 0), ("tid", Any, 0), ("ts", Any, None), ("dur", Any, 0),
        ("args", args, msgspec.field(default_factory=args)),
    ]  # fmt: skip
    if category is None:
        return msgspec.defstruct("Event", [*fields, ("cat", Any, "")], gc=False)
    return msgspec.defstruct("Event", fields, tag_field="cat", tag=category, namespace={"cat": category}, gc=False)


_KNOWN = [
    *(_event(columns, str(category)) for category, columns in COLUMNS_OF.items()),
    *(
        msgspec.defstruct("Unread", [("ph", Any, None)], tag_field="cat", tag=category)
        for category in UNREAD_CATEGORIES
    ),
]


class Stamp(msgspec.Struct, gc=False):
    """The timestamp of an event as the file spells it, for digits that a float cannot represent."""

    ph: Any = None
    ts: msgspec.Raw = NO_TEXT


_KNOWN_EVENTS: Any = msgspec.json.Decoder(list[reduce(or_, _KNOWN)])  # type: ignore[misc]
_EVENTS: Any = msgspec.json.Decoder(list[_event((*INTEGER_ARGS, *TEXT_ARGS))])  # type: ignore[misc]
_STAMPS = msgspec.json.Decoder(list[Stamp])


class MalformedElementError(ValueError):
    """An element of the event array that no event can be made from."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position


def parse(text: bytes) -> list[Any] | None:
    """Records of the elements of a JSON list; None where the text is not valid JSON.

    Raises:
        MalformedElementError: an element is not an object, or its arguments are not.
    """
    try:
        str(text, "utf-8")  # msgspec does not check the encoding of fields that it skips
        try:
            return _KNOWN_EVENTS.decode(text)
        except msgspec.ValidationError:
            return _EVENTS.decode(text)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _EVENTS.decode(_events_as_json(values))


def parse_repaired(text: bytes) -> bytes:
    """JSON text of a list whose text is not valid JSON.

    Raises:
        ValueError: the text cannot be repaired.
        MalformedElementError: as `parse`.
    """
    values, problem = parse_loosely(text)
    if values is None:
        raise ValueError(problem)
    return _events_as_json(values)


def stamps(text: bytes) -> list[bytes]:
    """The digits of the timestamps of all complete events of a JSON list."""
    return [bytes(stamp.ts) for stamp in _STAMPS.decode(text) if stamp.ph == "X"]


def _events_as_json(values: list[Any]) -> bytes:
    """JSON text of the elements, with arguments that are objects; numbers that are not finite become null."""
    for position, value in enumerate(values):
        if not isinstance(value, dict):
            raise MalformedElementError(position, "is not an object")
        if not isinstance(value.get("args") or {}, dict):
            if value.get("ph") == "X":
                raise MalformedElementError(position, "has args that are not an object")
            del value["args"]
        elif not value.get("args"):
            value.pop("args", None)
    try:
        return msgspec.json.encode(values)
    except UnicodeEncodeError:  # half a surrogate pair, which a table cannot hold
        text = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
        return msgspec.json.encode(json.loads(text))
