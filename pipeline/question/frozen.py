"""Configuration values that cannot change, and the plain values that Snakemake and builders of models take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


class FrozenDict(Mapping[str, Any]):
    """An immutable, hashable mapping. Nested mappings and lists are frozen too (lists become tuples)."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {str(key): _frozen(value) for key, value in values.items()}
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenDict):
            return self is other or self._values == other._values
        return super().__eq__(other)

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (self._values,)  # without the hash: those of texts differ between processes

    def __repr__(self) -> str:
        return f"FrozenDict({self._values!r})"

    def plain(self) -> dict[str, Any]:
        """The same values as dicts and lists, for functions that build models and for Snakemake's params."""
        return {key: plain(value) for key, value in self._values.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenDict(value)
    return tuple(_frozen(entry) for entry in value) if isinstance(value, (list, tuple)) else value


def plain(value: Any, without: Sequence[str] = ()) -> Any:
    """A frozen value as dicts and lists; fields of a dataclass that `without` names are left out."""
    if isinstance(value, FrozenDict):
        return value.plain()
    if is_dataclass(value):
        kept = [entry.name for entry in fields(value) if entry.name not in without]
        return {name: plain(getattr(value, name), without) for name in kept}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
