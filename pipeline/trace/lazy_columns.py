"""Columns by name, of which some are made when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

import numpy.typing as npt

Column = TypeVar("Column", bound=npt.NDArray[Any])


class LazyColumns(MutableMapping[str, Column]):
    """A mapping from names to arrays.

    Args:
        made: columns that exist.
        later: functions without arguments that make the other columns. Each is called at most once.
    """

    def __init__(self, made: Mapping[str, Column], later: Mapping[str, Callable[[], Column]]) -> None:
        self.made = dict(made)
        self._later = dict(later)

    def __getitem__(self, name: str) -> Column:
        if name not in self.made and name in self._later:
            self.made[name] = self._later.pop(name)()
        return self.made[name]

    def __setitem__(self, name: str, column: Column) -> None:
        self._later.pop(name, None)
        self.made[name] = column

    def __delitem__(self, name: str) -> None:
        del (self.made if name in self.made else self._later)[name]

    def __contains__(self, name: object) -> bool:
        return name in self.made or name in self._later

    def __iter__(self) -> Iterator[str]:
        return iter([*self.made, *self._later])

    def __len__(self) -> int:
        return len(self.made) + len(self._later)

    def replaced(self, columns: Mapping[str, Column]) -> LazyColumns[Column]:
        """A copy with some columns replaced. Columns that are still to be made are made once for each copy."""
        return LazyColumns({**self.made, **columns}, {n: make for n, make in self._later.items() if n not in columns})
