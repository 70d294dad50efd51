"""Results that are computed when they are first needed, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.errors import SteptimeError

Made = TypeVar("Made")


class MadeOnce:
    """Keeps results by key. A failure is kept too, and raised again."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}

    def __call__(self, key: object, make: Callable[[], Made]) -> Made:
        """The result of `make`, which runs at the first call with this key.

        Raises:
            SteptimeError: `make` failed with it, now or earlier.
        """
        if key not in self._made:
            try:
                self._made[key] = make()
            except SteptimeError as error:
                self._made[key] = error
        if isinstance(self._made[key], SteptimeError):
            raise self._made[key]
        found: Made = self._made[key]
        return found

    def kept(self, kind: type[Made]) -> list[Made]:
        """All results of a type."""
        return [each for each in self._made.values() if isinstance(each, kind)]
