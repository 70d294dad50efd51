"""Reads a trace file as a stream of batches of raw events: decompressed, cut and parsed piece by piece.

The `traceEvents` array is never held in memory as a whole. A window of bytes is cut after its last complete event and
parsed. If it parses, the cut was between two events. Text before and after the array is kept as metadata. A file that
ends early or cannot be read raises an error with the position of the byte.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import orjson

from pipeline.errors import TraceError
from pipeline.trace.json_repair import parse_loosely

WINDOW_BYTES = 256 << 10
"""Most bytes parsed at once. The parsed objects then stay in the cache, also when other processes use the CPU."""

FIRST_WINDOW_BYTES = 64 << 10
"""Bytes of the first windows. With a new category of events they become dictionaries, which take more memory than records."""

MAX_EVENT_BYTES = 64 << 20
"""Largest element in bytes. A larger one is no profiler event, and reading stops with an error."""

_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)
_GZIP_MAGIC = b"\x1f\x8b"
_ATTEMPTS = 4


Text = bytes | memoryview
"""JSON text; a view is of a window, which nothing changes any more."""


def parse_list(text: Text) -> list[Any] | None:
    """The elements of a JSON list; None where the text is not valid JSON."""
    try:
        parsed: list[Any] = orjson.loads(text)
        return parsed
    except orjson.JSONDecodeError:
        return None


@dataclass
class Batch:
    """Raw events that are adjacent in the file.

    Attributes:
        events: parsed elements of the array, all dictionaries or all records of `typed_events`.
        parts: the text they were parsed from without the brackets of the list, one part per window.
        first: position of the first element in the array.
    """

    events: list[Any]
    parts: list[Text]
    first: int

    @property
    def text(self) -> bytes:
        """All parts joined, for messages and for digits that a float cannot represent. Few files need it."""
        return b",".join(self.parts)

    def dictionaries(self) -> list[Any]:
        """The events as dictionaries, for messages and rare forms."""
        if all(isinstance(event, dict) for event in self.events):
            return self.events
        return parse_list(b"[" + self.text + b"]") or parse_loosely(self.text)[0] or self.events


@dataclass
class Scanner:
    """Reads one trace file; after `batches` is exhausted, `metadata` holds everything outside the event array.

    Args:
        path: a `.json` or `.json.gz` file (detected by content, not by name).
        parse: parses a list; None where the text is not valid JSON.
    """

    path: Path
    parse: Callable[[Text], list[Any] | None] = parse_list
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
                yield from self._scan(stream)
        except FileNotFoundError:
            raise TraceError(f"{self.path}: no such file") from None
        except IsADirectoryError:
            raise TraceError(f"{self.path}: is a folder; give the path of the trace file in it") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(
                f"{self.path}: the gzip data is truncated or damaged after {self.bytes_read} unpacked bytes ({error}); "
                "copy the file again"
            ) from None
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _open(self) -> BufferedIOBase:
        stream = self.path.open("rb")
        magic = stream.read(2)
        stream.seek(0)
        return gzip.GzipFile(fileobj=stream) if magic == _GZIP_MAGIC else stream

    def _window_bytes(self, held: int) -> int:
        """Bytes to read next. Doubling limits how often a very large element is scanned again."""
        return max(min(max(FIRST_WINDOW_BYTES, self.bytes_read // 4), WINDOW_BYTES), held)

    def _read(self, stream: BufferedIOBase, held: int = 0) -> bytes:
        data = stream.read(self._window_bytes(held))
        self.bytes_read += len(data)
        return data

    def _next_window(self, stream: BufferedIOBase, rest: Text) -> tuple[bytearray, bool]:
        """An opening bracket, the rest of the window before, and new bytes; whether the file has ended.

        The bytes are read into their place, because every copy of all windows takes 2 % of the time of reading a file.
        """
        first = 1 + len(rest)
        window = bytearray(first + self._window_bytes(len(rest)))
        with memoryview(window) as view:
            view[:first] = b"[" + rest
            read = stream.readinto(view[first:])
        del window[first + read :]
        self.bytes_read += read
        return window, not read

    def _scan(self, stream: BufferedIOBase) -> Iterator[Batch]:
        rest: Text
        rest, ended = self._header(stream)
        window, count = bytearray(b"[" + rest), 0
        while True:
            cut, events = self._complete_elements(window)
            if events is None:
                text = bytes(memoryview(window)[1:])
                if (end := _split_at_end(text)) is not None:
                    elements, tail = end
                    yield Batch(self.parse(b"[" + elements + b"]") or [], [elements], count)
                    self._tail(b"".join([tail, *iter(lambda: self._read(stream), b"")]))
                    return
                if ended:
                    yield from self._repair_end(text, count)
                    return
                if (cut := 1 + _loose_cut(text)) > 1:
                    events = self._repair(text[: cut - 1], count)
            if events is None:
                rest = memoryview(window)[1:]
            else:
                yield Batch(events, [memoryview(window)[1:cut]], count)
                count += len(events)
                rest = bytes(memoryview(window)[cut:]).lstrip()[1:]  # after the comma
            if len(rest) > MAX_EVENT_BYTES:
                raise TraceError(
                    f"{self.path}: event {count} (byte {self.bytes_read - len(rest)}) is too long or never ends"
                )
            if ended:
                window = bytearray(b"[" + rest)
            else:
                window, ended = self._next_window(stream, rest)

    def _complete_elements(self, window: bytearray) -> tuple[int, list[Any] | None]:
        """Where the last complete element of a window ends, and the elements up to there; None where they do not parse."""
        cut = len(window)
        for _ in range(_ATTEMPTS):
            cut = _last_boundary(window, cut)
            if cut <= 0:
                break
            after, window[cut] = window[cut], ord("]")
            events = self.parse(memoryview(window)[: cut + 1])
            window[cut] = after
            if events is not None:
                return cut, events
            if _split_at_end(bytes(memoryview(window)[1:])) is not None:  # the cut was in the metadata after the array
                break
        return 0, None

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
                head = _parse_any(buffer[: match.end() - 1] + b"null}")
                if isinstance(head, dict):
                    head.pop("traceEvents", None)
                    self.metadata.update(head)
                    self._is_bare_list = False
                    return buffer[match.end() :], not data
            if not data or len(buffer) > MAX_EVENT_BYTES:
                raise self._no_array(buffer)

    def _no_array(self, buffer: bytes) -> TraceError:
        if not buffer.strip():
            return TraceError(f"{self.path}: the file is empty")
        if buffer.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return TraceError(f"{self.path}: the file is UTF-16 text; save it as UTF-8, as profilers do")
        whole = _parse_any(buffer)
        if isinstance(whole, dict) and "traceEvents" in whole:
            return TraceError(f"{self.path}: traceEvents is not a list")
        if isinstance(whole, dict) and "nodes" in whole:
            return TraceError(f"{self.path}: this is an execution trace; a profiler trace (traceEvents) is needed")
        if isinstance(whole, dict):
            return TraceError(f"{self.path}: no traceEvents in this JSON file; export it with prof.export_chrome_trace")
        return TraceError(f"{self.path}: not a JSON trace, or truncated before its events (byte {len(buffer)})")

    def _repair_end(self, buffer: bytes, count: int) -> Iterator[Batch]:
        """The last window of a file that is not strict JSON: repair it, or raise with the position where it is cut off."""
        close = buffer.find(b"\n  ],\n") + 3  # Kineto's layout, which works also with unbalanced quotes
        close = close if close > 2 else _structural(buffer)[1]
        if close < 0:
            raise TraceError(
                f"{self.path}: truncated at byte {self.bytes_read}, after event {count}; copy or record the trace again"
            )
        yield Batch(self._repair(buffer[:close], count), [buffer[:close]], count)
        self._tail(buffer[close + 1 :])

    def _repair(self, text: bytes, count: int) -> list[Any]:
        events, problem = parse_loosely(text)
        if events is None:
            place = f"after event {count}, before byte {self.bytes_read}"
            raise TraceError(f"{self.path}: not valid JSON ({place}): {problem}")
        self.repaired = True
        return list(events)

    def _tail(self, rest: bytes) -> None:
        text = rest.strip()
        if self._is_bare_list:
            if text:
                raise TraceError(
                    f"{self.path}: unexpected text after the event list, at byte {self.bytes_read - len(rest)}"
                )
            return
        if text.startswith(b","):
            text = text[1:].lstrip()
        tail = _parse_any(b"{" + text) if text != b"" else None
        if not isinstance(tail, dict):
            raise TraceError(f"{self.path}: truncated or damaged after its events (byte {self.bytes_read - len(rest)})")
        if "traceEvents" in tail:
            raise TraceError(f"{self.path}: has traceEvents twice; remove one")
        self.metadata.update(tail)


def _parse_any(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return parse_loosely(text, wrap=False)[0]


def _split_at_end(buffer: bytes) -> tuple[bytes, bytes] | None:
    """Split at the bracket that closes the event array: (elements, rest); None where the buffer ends before it.

    The parser's error gives the position: it reads one list and rejects the text after it.
    """
    try:
        orjson.loads(b"[" + buffer)
    except orjson.JSONDecodeError as error:
        if not error.msg.startswith("unexpected content after"):
            return None
        behind = len(error.doc[: error.pos].encode()) - 1
        close = buffer.rfind(b"]", 0, behind)
    else:
        close = buffer.rfind(b"]")
    return buffer[:close], buffer[close + 1 :]


def _last_boundary(buffer: bytearray, before: int) -> int:
    """Position after the last `}` before `before` that a comma and an opening brace follow; 0 if there is none."""
    position = before
    while (position := buffer.rfind(b"{", 0, position)) > 0:
        start = max(0, position - 64)
        left = buffer[start:position].rstrip()
        if left.endswith(b",") and (left := left[:-1].rstrip()).endswith(b"}"):
            return start + len(left)
    return 0


def _loose_cut(buffer: bytes) -> int:
    """Where to cut a window that is not strict JSON: after the last event that ends a line, else by counting braces.

    Counting fails with unbalanced quotes. Kineto's layout, in which an element ends on a separate line, works also
    then.
    """
    line = buffer.rfind(b"\n  },\n")
    return line + 4 if line > 0 else _structural(buffer)[0]


def _structural(buffer: bytes) -> tuple[int, int]:
    """(end of the last element that a comma follows or 0, position of the bracket that closes the array or -1)."""
    depth, last, candidate = 0, 0, 0
    for match in _TOKENS.finditer(buffer):
        token = match.group()
        if token == b",":
            last = candidate if depth == 0 else last
        elif token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return last, match.start()
            candidate = match.end()
    return last, -1
