"""Codes of texts: every column of text is stored as integers and a vocabulary of its distinct texts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Ints = npt.NDArray[np.int64]
Texts = npt.NDArray[np.object_]


class _JsonCodes(dict[bytes, int]):
    """Code of each JSON text in a vocabulary, found when it is first needed."""

    def __init__(self, codes: dict[str | bytes, int]) -> None:
        self.codes = codes

    def __missing__(self, text: bytes) -> int:
        try:
            value = orjson.loads(text) if text else None
        except orjson.JSONDecodeError:  # a number that no float can hold
            value = json.loads(text)
        code = -1 if value is None else self.codes[json_text(value)]
        self[text] = code
        return code


@dataclass
class Vocabulary:
    """Texts read so far, by code; code -1 means absent. JSON text is kept as bytes until the end."""

    codes: defaultdict[str | bytes, int] = field(default_factory=lambda: defaultdict(count().__next__))
    json_codes: _JsonCodes = field(init=False)

    def __post_init__(self) -> None:
        self.json_codes = _JsonCodes(self.codes)

    @property
    def texts(self) -> Texts:
        """The texts in the order of their codes. Half a surrogate pair, which a table cannot hold, becomes `?`."""
        return np.array(list(map(_readable, self.codes)), object)

    def encode_json(self, values: Iterable[bytes], number: int) -> Ints:
        """Codes of `number` values of any type as JSON text, -1 for null and for no text."""
        return np.fromiter(map(self.json_codes.__getitem__, values), np.int32, number)

    def encode(self, values: Iterable[str | bytes], number: int) -> Ints:
        """Codes of `number` texts. A new text gets the next code."""
        return np.fromiter(map(self.codes.__getitem__, values), np.int32, number)

    def encode_values(self, values: Sequence[Any]) -> Ints:
        """Codes of values of any type, -1 for None. Lists are represented by their JSON text."""
        kinds = set(map(type, values))
        if kinds == {str}:
            return self.encode(values, len(values))
        with suppress(TypeError):  # numbers that orjson cannot write
            if kinds == {list}:
                return self.encode(map(orjson.dumps, values), len(values))
        return np.array([-1 if value is None else self.codes[json_text(value)] for value in values], np.int32)


def json_text(value: Any) -> str | bytes:
    """A text as it is, any other value as JSON text without spaces."""
    if isinstance(value, str):
        return value
    with suppress(TypeError):  # numbers that orjson cannot write
        if isinstance(value, list):
            return orjson.dumps(value)
    return json.dumps(value, separators=(",", ":")).encode()


def in_text_order(texts: Texts) -> tuple[Texts, Ints]:
    """Distinct texts in their order, and the new code of each old code; old code -1, none, is the last."""
    ordered, rank = np.unique(texts, return_inverse=True)
    return ordered, np.append(rank, -1).astype(np.int32)


def _readable(text: str | bytes) -> str:
    if isinstance(text, str):
        return text if text.isascii() else text.encode("utf-8", "replace").decode()
    return text.decode()
