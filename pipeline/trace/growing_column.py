"""A column of a table whose number of rows is not known before the last one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FIRST_ROWS = 1 << 17
"""Rows for which memory is requested at first: 1 MB. The system provides it page by page, when rows are written, and to
move pages to a larger array takes longer."""


class GrowingColumn:
    """Integers in one array that grows in place. Arrays in a list would have to be joined: another copy of all rows, in
    memory that the system clears first.

    Args:
        absent: value of the rows that are not written, an array of one element.
    """

    def __init__(self, absent: Ints) -> None:
        self._values = np.empty(FIRST_ROWS, absent.dtype)
        self._absent = absent
        self._rows = 0

    def at(self, first: int, number: int) -> Ints:
        """Some rows, for reading and writing; the column grows to hold them, with absent values.

        Growing may move the array, so these rows must no longer be used after the next call.
        """
        end = first + number
        if end > self._rows:
            self._grow(end)
            self._values[self._rows : end] = self._absent
            self._rows = end
        return self._values[first:end]

    def append(self, values: Ints) -> None:
        """Add rows after the last one."""
        end = self._rows + len(values)
        self._grow(end)
        self._values[self._rows : end] = values
        self._rows = end

    def _grow(self, rows: int) -> None:
        if rows > len(self._values):
            self._values.resize(max(rows, len(self._values) * 5 // 4), refcheck=False)

    def finish(self, rows: int) -> Ints:
        """The array, with this number of rows."""
        self.at(0, rows)
        self._values.resize(rows, refcheck=False)
        return self._values
