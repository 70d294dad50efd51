"""The sections of a question as frozen values: settings of methods, edits, and how many GPUs share the work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any

NO_EDIT = "none"
"""Value of an option of the section `edit` that edits nothing."""


@dataclass(frozen=True)
class Option:
    """What an option is and may be: checks, completion, lists and the table of config/README.md read it.

    Attributes:
        what: its meaning, as the end of a sentence that begins with its name.
        values: the words that it may be; empty where numbers or other names may stand.
        words: words that may stand in place of true, false or a number.
        example: a value, where no file gives a default.
        least: the least number; None where it must be above 0.
        most: the largest number.
        whole: whether its numbers are whole; None: if that of its file or field is.
        each: whether one number may stand for a list of numbers, or a list for one number.
    """

    what: str
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    example: str = ""
    least: float | None = None
    most: float = math.inf
    whole: bool | None = None
    each: bool = False


def option(what: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field of a section: its option, and its default if the files may leave it out."""
    return field(default=default, metadata={"option": Option(what, **limits)})


@dataclass(frozen=True)
class KernelSettings:
    """Section `kernels`: the variants of kernel models to fit, and how to fit them."""

    name: str
    variants: tuple[str, ...] = option("variants of kernel models to fit and compare")
    seed: int = option("seed of the fits", least=0)
    workers: int = option("processes that fit; they change no result")
    families: tuple[str, ...] = option("families to fit; all if empty", (), example="[gemm,bmm]")
    """Families to fit; empty for all that have samples. Shipped models or physics predict the others."""


@dataclass(frozen=True)
class OverheadSettings:
    """Section `overheads`: the observations of a host to use, and how to summarise them; times are in µs."""

    name: str
    observations: str = option(
        "observations of the host: all, those of the same workload, or all per operator",
        values=("all", "own", "pooled"),
    )
    estimator: str = option(
        "statistic of the observations", values=("clipped_mean", "trimmed_mean", "mean", "median")
    )
    profiler_event_us: float = option("cost of the profiler for each host event, µs", least=0)
    profiler_launch_us: float = option("cost of the profiler for each launch, µs", least=0)
    host_scale: float = option(
        "host time divided by that of the profiled host: 2 means a host that is half as fast", 1.0
    )
    """Ratio of the host's time to the profiled host's time; it is applied when a point is predicted."""


@dataclass(frozen=True)
class PredictSettings:
    """Section `predict`: the form of the critical path, and the random draws for an interval."""

    critical_path: str = option(
        "the walk along the critical path; published: Lin et al., Algorithm 1 as printed",
        "full",
        values=("full", "published"),
    )
    cuda_graph: bool = option("true: kernels between two host waits are one CUDA graph", False)
    wait_each_step: bool = option(
        "true: the host waits for the GPU after each step, as a timer around each step does", False
    )
    launch_blocking: bool = option(
        "true: the host waits for each kernel, as with CUDA_LAUNCH_BLOCKING=1", False
    )
    loader: float = option(
        "samples that data loading of the whole machine delivers in a second; 0: no limit",
        0.0,
        least=0,
    )
    draws: int = option("simulated draws for p10 to p90", 1024, least=10, most=100_000)
    """With so many, p10 and p90 vary from seed to seed with a standard deviation of about 1 % of the step. With fewer than
    10, p10 and p90 are not distinct draws and mean nothing."""
    seed: int = option("seed of these draws", 0, least=0)


@dataclass(frozen=True)
class CollectSettings:
    """Section `collect`: time limits of measurements on this machine (s), and the number of profiled iterations."""

    step_seconds: float = option("gpu=local: time for unprofiled steps, s", 15)
    kernel_seconds: float = option("gpu=local: time for kernel microbenchmarks, s", 60)
    iterations: int = option("gpu=local: profiled iterations", 12)


@dataclass(frozen=True)
class EditSettings:
    """Section `edit`: edits of the step's operators, in the order in which they are applied; false if there are none."""

    remove: tuple[str, ...] = ()
    """Operators to remove."""
    substitute: tuple[str, ...] = ()
    """Operators and those that take their place: `aten::relu/aten::gelu`."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> EditSettings:
        """From the values of the section: a name, several names, or `none`."""
        names_of = {
            key: (value,) if isinstance(value, str) else tuple(value)
            for key, value in section.items()
        }
        return cls(**{key: () if names == (NO_EDIT,) else names for key, names in names_of.items()})

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def texts(self) -> list[str]:
        """The edits as overrides, such as `edit.remove=aten::dropout`, one for each name."""
        return [f"edit.{key}={name}" for key, names in asdict(self).items() for name in names]


class FrozenDict(dict[str, Any]):
    """A hashable mapping that nobody changes. Nested mappings and lists are frozen too (lists become tuples)."""

    __slots__ = ("_hash",)

    def __init__(self, values: Any) -> None:
        super().__init__({str(key): _frozen(value) for key, value in dict(values).items()})
        self._hash: int | None = None

    def __hash__(self) -> int:  # type: ignore[override]
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        # without the hash: those of texts differ between processes
        return FrozenDict, (dict(self),)

    def plain(self) -> dict[str, Any]:
        """The same values as dicts and lists, for functions that build models and for Snakemake's params."""
        return {key: plain(value) for key, value in self.items()}


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


def written(value: Any) -> str:
    """A value in the form in which a user types it on the command line."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else str(value)
