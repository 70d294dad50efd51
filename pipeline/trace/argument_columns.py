"""Arguments that some events have, as columns that are made when they are first read.

Linking needs none of them, and most commands read a few. Until then, only the values that are there are kept, in the
order of the file, and text stays as the file has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.trace.kineto_fields import MISSING
from pipeline.trace.text_codes import Texts, Vocabulary, in_text_order

Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]


@dataclass
class IntegerArgument:
    """Values of one argument. Of several values for one event, the first that was added counts.

    Attributes:
        parts: the positions of events in the file, int32, and their values, int64; from one batch each.
    """

    parts: list[tuple[Positions, Ints]] = field(default_factory=list)

    def add(self, rows: Positions, values: Ints) -> None:
        """Add the values of some events, `MISSING` for none."""
        there = values != MISSING
        self.parts.append((rows, values) if there.all() else (rows[there], values[there]))

    def column(self, place: Positions) -> Ints:
        """The value of every event in order, int64, `MISSING` for none.

        Args:
            place: position in order of each event of the file.
        """
        out = np.full(len(place), MISSING)
        for rows, values in reversed(self.parts):
            out[place[rows]] = values
        return out


@dataclass
class TextArgument:
    """As `IntegerArgument`, for text; values are codes, int32, or JSON texts."""

    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    parts: list[tuple[Positions, Ints | bytes]] = field(default_factory=list)
    _made: tuple[Ints, Texts] | None = None

    def add(self, rows: Positions, values: Ints) -> None:
        """Add the codes of some events, -1 for none."""
        self.parts.append((rows, values))

    def add_json(self, rows: Positions, texts: Sequence[Any]) -> None:
        """Add the JSON texts of some events: buffers, empty for none."""
        self.parts.append((rows, b"\0".join(texts)))  # JSON has no zero byte

    def column(self, place: Positions) -> Ints:
        """The code of every event in order, int32, -1 for none; `place` as in `IntegerArgument`."""
        return self._encoded(place)[0]

    def texts(self, place: Positions) -> Texts:
        """The vocabulary of `column`."""
        return self._encoded(place)[1]

    def _encoded(self, place: Positions) -> tuple[Ints, Texts]:
        if self._made is None:
            out = np.full(len(place), -1, np.int32)
            for rows, values in reversed(self.parts):
                codes = self._codes(values, len(rows)) if isinstance(values, bytes) else values
                there = codes >= 0
                out[place[rows[there]]] = codes[there]
            texts, rank = in_text_order(self.vocabulary.texts)
            self._made, self.parts = (rank.take(out), texts), []
        return self._made

    def _codes(self, texts: bytes, number: int) -> Ints:
        return self.vocabulary.encode_json(texts.split(b"\0"), number)
