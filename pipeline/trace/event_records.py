"""Parses the text of events into typed records (msgspec), which skips the fields that nobody reads.

Values keep their types: `event_columns` checks and converts them. Text that is not valid JSON is repaired first
(`json_repair`), so that there is one reader.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.trace.kineto_fields import INTEGER_ARGS, MISSING, TEXT_ARGS

NO_TEXT = msgspec.Raw(b"")

ATTRIBUTES = {
    column: tuple(f"{column}_{place}" for place in range(len(keys)))
    for column, keys in (INTEGER_ARGS | TEXT_ARGS).items()
}
"""For each column the attributes of `Arguments` that it may come from, newest first."""


def _attributes(table: dict[str, tuple[str, ...]], kind: Any, absent: Any) -> list[Any]:
    return [
        (attribute, kind, msgspec.field(default=absent, name=key))
        for column, keys in table.items()
        for attribute, key in zip(ATTRIBUTES[column], keys, strict=True)
    ]


if TYPE_CHECKING:
    Arguments = Any
else:
    Arguments = msgspec.defstruct(
        "Arguments",
        [
            *_attributes(INTEGER_ARGS, Any, MISSING),
            *_attributes(TEXT_ARGS, msgspec.Raw, NO_TEXT),
            ("cbid", Any, None),
        ],
        gc=False,
    )
    """The arguments that become columns, numbers as they are, text and lists as JSON; and `cbid`, the number of an API."""

NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One element of the event array."""

    ph: Any = None
    name: Any = None
    cat: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = None
    dur: Any = 0
    args: Arguments | None = None


class Stamp(msgspec.Struct, gc=False):
    """The timestamp of an event as the file spells it, for digits that a float cannot represent."""

    ph: Any = None
    ts: msgspec.Raw = NO_TEXT


_EVENTS = msgspec.json.Decoder(list[Event])
_STAMPS = msgspec.json.Decoder(list[Stamp])


class MalformedElementError(ValueError):
    """An element of the event array that no event can be made from."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position


def parse(text: bytes) -> list[Event] | None:
    """The elements of a JSON list; None where the text is not valid JSON.

    Raises:
        MalformedElementError: an element is not an object, or its arguments are not.
    """
    try:
        if not text.isascii():
            text.decode()  # msgspec does not check the encoding of fields that it skips
        with suppress(msgspec.ValidationError):
            return _EVENTS.decode(text)
        values = json.loads(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return _EVENTS.decode(events_as_json(values))


def stamps(text: bytes) -> list[bytes]:
    """The digits of the timestamps of all complete events of a JSON list."""
    return [bytes(stamp.ts) for stamp in _STAMPS.decode(text) if stamp.ph == "X"]


def events_as_json(values: list[Any]) -> bytes:
    """JSON text of the elements, with arguments that are objects; numbers that are not finite become null.

    Raises:
        MalformedElementError: as `parse`.
    """
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
