"""The sections of a question as frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

NO_EDIT = "none"
"""Value of an option of the section `edit` that edits nothing."""


FUSE_ALL = "elementwise"
"""Value of `edit.fuse` that fuses every chain of elementwise operators."""


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
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value) if entry.name not in without}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class KernelSettings:
    """Section `kernels`: the variants of kernel models to fit, and how to fit them."""

    name: str
    variants: tuple[str, ...]
    seed: int
    effort: str
    workers: int


@dataclass(frozen=True)
class OverheadSettings:
    """Section `overheads`: the observations of a host to use, and how to summarise them; times are in µs."""

    name: str
    observations: str
    estimator: str
    profiler_event_us: float
    profiler_launch_us: float
    host_scale: float = 1.0
    """Ratio of the host's time to the profiled host's time; it is applied when a point is predicted."""


@dataclass(frozen=True)
class PredictSettings:
    """Section `predict`: the form of the critical path, and the random draws for an interval."""

    critical_path: str = "full"
    cuda_graph: bool = False
    draws: int = 1024
    """With so many, p10 and p90 vary from seed to seed with a standard deviation of 0.01 to 0.2 %."""
    seed: int = 0


@dataclass(frozen=True)
class CollectSettings:
    """Section `collect`: time limits of measurements on this machine (s), and the number of profiled iterations."""

    step_seconds: float = 15
    kernel_seconds: float = 60
    iterations: int = 12


@dataclass(frozen=True)
class EditSettings:
    """Section `edit`: edits of the step's operators, in the order in which they are applied; false if there are none."""

    remove: tuple[str, ...] = ()
    """Operators to remove."""
    substitute: tuple[str, ...] = ()
    """Operators and those that take their place: `aten::relu/aten::gelu`."""
    fuse: tuple[str, ...] = ()
    """Chains of operators that become one kernel: `aten::add+aten::relu`; `elementwise` for every chain."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> EditSettings:
        """From the values of the section: a name, several names, or `none`."""
        names_of = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in section.items()}
        return cls(**{key: () if names == (NO_EDIT,) else names for key, names in names_of.items()})

    def __bool__(self) -> bool:
        return bool(self.remove or self.substitute or self.fuse)

    @property
    def texts(self) -> list[str]:
        """The edits as overrides, such as `edit.remove=aten::dropout`, one for each name."""
        return [f"edit.{key}={name}" for key, names in asdict(self).items() for name in names]
