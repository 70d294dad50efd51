"""Reads a trace file as a stream of batches of events: decompressed, cut and parsed piece by piece.

The `traceEvents` array is never held in memory as a whole. A window of text is cut after its last complete event and
parsed. If it parses, the cut was between two events. Text before and after the array is kept as metadata. A file that
ends early or cannot be read raises an error with the position of the byte.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from pipeline.errors import TraceError
from pipeline.trace.event_records import Event, MalformedElementError, events_as_json, parse
from pipeline.trace.json_repair import parse_loosely

WINDOW_BYTES = 64 << 10
"""Bytes that are read and parsed at once: larger buffers are requested from the system each time."""

EVENTS_AT_ONCE = 3000
"""Events in a batch: many share the cost of a call of NumPy."""

MAX_EVENT_BYTES = 64 << 20
"""Largest element in bytes. A larger one is no profiler event, and reading stops with an error."""

_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_GZIP_MAGIC = b"\x1f\x8b"
_ATTEMPTS = 4
"""Cuts that are tried in a window: its last `}, {` may be inside an element, or in the metadata after the array."""


@dataclass
class Batch:
    """Events that are adjacent in the file.

    Attributes:
        events: the parsed elements.
        texts: the JSON lists that they were parsed from.
        first: position of the first element in the array.
        read: bytes of the file that they were.
    """

    events: list[Event]
    texts: list[bytes]
    first: int
    read: int


@dataclass
class Scanner:
    """Reads one trace file; after `batches` is exhausted, `metadata` holds everything outside the event array.

    Args:
        path: a `.json` or `.json.gz` file (detected by content, not by name).
    """

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    repaired: bool = False
    _is_bare_list: bool = False

    def batches(self) -> Iterator[Batch]:
        """The events, in file order.

        Raises:
            TraceError: the file is missing, damaged, cut off, or no trace.
        """
        try:
            with self._open() as stream:
                yield from _joined(self._scan(stream))
        except FileNotFoundError:
            raise self._error("no such file") from None
        except IsADirectoryError:
            raise self._error("is a folder; give the path of the trace file in it") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(
                f"the gzip data is truncated or damaged after {self.bytes_read}"
                f" unpacked bytes ({error}); copy the file again"
            ) from None
        except OSError as error:
            raise self._error(f"cannot be read ({error.strerror or error})") from None

    def _open(self) -> BufferedIOBase:
        stream = self.path.open("rb")
        magic = stream.read(2)
        stream.seek(0)
        return gzip.GzipFile(fileobj=stream) if magic == _GZIP_MAGIC else stream

    def _read(self, stream: BufferedIOBase, held: int = 0) -> bytes:
        """The next bytes; as many as are held, so that a very large element is not scanned again too often."""
        data = stream.read(max(WINDOW_BYTES, held))
        self.bytes_read += len(data)
        return data

    def _scan(self, stream: BufferedIOBase) -> Iterator[Batch]:
        text, ended = self._header(stream)
        count = 0
        while True:
            batch = self._strict_batch(text, count)
            if batch is None and (end := _split_at_end(text)) is not None:
                yield from filter(None, [self._batch(text[: end[0]], count)])
                self._tail(b"".join([text[end[1] :], *iter(lambda: self._read(stream), b"")]))
                return
            if batch is None and ended:
                yield self._last_batch(text, count)
                return
            if batch is None and (cut := _last_boundary(text, len(text))):
                batch = self._batch(text[:cut], count)
            if batch is not None:
                yield batch
                count += len(batch.events)
                text = text[batch.read :].lstrip()[1:]  # after the comma
            if len(text) > MAX_EVENT_BYTES:
                raise self._error(
                    f"event {count} (byte {self.bytes_read - len(text)}) is too long or never ends"
                )
            if not ended:
                data = self._read(stream, len(text))
                text, ended = text + data, not data

    def _strict_batch(self, text: bytes, first: int) -> Batch | None:
        """The complete elements at the begin of a text; None if there are none, or they are not valid JSON."""
        cut = len(text)
        for _ in range(_ATTEMPTS):
            cut = _last_boundary(text, cut)
            if not cut:
                break
            elements = b"".join((b"[", memoryview(text)[:cut], b"]"))
            events = self._parsed(elements, first)
            if events is not None:
                return Batch(events, [elements], first, cut)
            if _split_at_end(text) is not None:  # the cut was in the metadata after the array
                break
        return None

    def _batch(self, text: bytes, first: int) -> Batch | None:
        """Elements of the array, repaired if they are not valid JSON; None if that is not possible."""
        elements = b"[" + text + b"]"
        events = self._parsed(elements, first)
        if events is not None:
            return Batch(events, [elements], first, len(text))
        values, _ = parse_loosely(elements)
        return None if values is None else self._repaired(values, first, len(text))

    def _last_batch(self, text: bytes, first: int) -> Batch:
        """The last events of a file that is not strict JSON, whose metadata is kept."""
        close = b"}" if self._is_bare_list else b""
        whole, problem = parse_loosely(b'{"traceEvents": [' + text + close)
        values = whole.pop("traceEvents") if isinstance(whole, dict) else None
        if not isinstance(values, list):
            raise self._error(
                f"truncated or damaged at byte {self.bytes_read}, after event {first} ({problem});"
                " copy or record the trace again"
            )
        self.metadata.update(whole)
        return self._repaired(values, first, len(text))

    def _repaired(self, values: list[Any], first: int, read: int) -> Batch:
        """A batch of elements that were not valid JSON."""
        self.repaired = True
        try:
            elements = events_as_json(values)
            return Batch(parse(elements) or [], [elements], first, read)
        except MalformedElementError as fault:
            raise self._malformed(fault, first) from None

    def _parsed(self, elements: bytes, first: int) -> list[Event] | None:
        try:
            return parse(elements)
        except MalformedElementError as fault:
            raise self._malformed(fault, first) from None

    def _malformed(self, fault: MalformedElementError, first: int) -> TraceError:
        return self._error(f"traceEvents[{first + fault.position}] {fault}")

    def _header(self, stream: BufferedIOBase) -> tuple[bytes, bool]:
        """Read up to the event array. Returns the bytes after its bracket and whether the file ended."""
        buffer = b""
        while True:
            data = self._read(stream, len(buffer))
            buffer = (buffer + data).removeprefix(codecs.BOM_UTF8)
            text = buffer.lstrip()
            if text.startswith(b"["):  # Chrome's array form: events without metadata
                self._is_bare_list = True
                return text[1:], not data
            for match in _ARRAY.finditer(buffer):
                head, _ = parse_loosely(buffer[: match.end() - 1] + b"null}")
                if isinstance(head, dict):
                    head.pop("traceEvents", None)
                    self.metadata.update(head)
                    return buffer[match.end() :], not data
            if not data or len(buffer) > MAX_EVENT_BYTES:
                raise self._no_array(buffer)

    def _no_array(self, buffer: bytes) -> TraceError:
        if not buffer.strip():
            return self._error("the file is empty")
        if buffer.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return self._error("the file is UTF-16 text; save it as UTF-8, as profilers do")
        whole, _ = parse_loosely(buffer)
        if not isinstance(whole, dict):
            where = f"byte {len(buffer)}"
            return self._error(f"not a JSON trace, or truncated before its events ({where})")
        if "traceEvents" in whole:
            return self._error("traceEvents is not a list")
        if "nodes" in whole:
            return self._error(
                "this is an execution trace; a profiler trace (traceEvents) is needed"
            )
        return self._error(
            "no traceEvents in this JSON file; export it with prof.export_chrome_trace"
        )

    def _error(self, problem: str) -> TraceError:
        return TraceError(f"{self.path}: {problem}")

    def _tail(self, rest: bytes) -> None:
        """Keep the metadata after the event array."""
        text = rest.strip()
        if self._is_bare_list:
            if text:
                raise self._error(
                    f"unexpected text after the event list, at byte {self.bytes_read - len(rest)}"
                )
            return
        if text.startswith(b","):
            text = text[1:].lstrip()
        tail = parse_loosely(b"{" + text)[0] if text != b"" else None
        if not isinstance(tail, dict):
            raise self._error(
                f"truncated or damaged after its events (byte {self.bytes_read - len(rest)})"
            )
        if "traceEvents" in tail:
            raise self._error("has traceEvents twice; remove one")
        self.metadata.update(tail)


def _joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same events in batches of at least `EVENTS_AT_ONCE`."""
    events: list[Event] = []
    texts: list[bytes] = []
    first = 0
    for batch in batches:
        events += batch.events
        texts += batch.texts
        if len(events) >= EVENTS_AT_ONCE:
            yield Batch(events, texts, first, 0)
            first += len(events)
            events, texts = [], []
    if events:
        yield Batch(events, texts, first, 0)


def _split_at_end(text: bytes) -> tuple[int, int] | None:
    """Where the elements of the event array end, and where the text after it begins; None where the text ends before."""
    content = "[" + text.decode("utf-8", "surrogateescape")
    try:
        _, end = json.JSONDecoder().raw_decode(content)
    except (ValueError, RecursionError):
        return None
    behind = len(content[1:end].encode("utf-8", "surrogateescape"))
    return behind - 1, behind


def _last_boundary(text: bytes, before: int) -> int:
    """Position after the last `}` before `before` that a comma and an opening brace follow; 0 if there is none."""
    position = before
    while (position := text.rfind(b"{", 0, position)) > 0:
        start = max(0, position - 64)
        left = text[start:position].rstrip()
        if left.endswith(b",") and (left := left[:-1].rstrip()).endswith(b"}"):
            return start + len(left)
    return 0
