"""The kinds of damaged input, with the share of cases that each gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from soak import pack_cases, table_cases, trace_cases, yaml_cases
from soak.verdicts import Case


class Kind(NamedTuple):
    """One kind of input.

    Attributes:
        what: in words, for the table.
        weight: relative number of cases.
        prepare: makes the undamaged input in a folder, and reads it.
        case: makes a damaged one in a folder.
    """

    what: str
    weight: int
    prepare: Callable[[Path], Any]
    case: Callable[[Any, Path, Random], Case]


def _kind(what: str, weight: int, module: Any) -> Kind:
    return Kind(what, weight, module.prepare, module.case)


KINDS = {
    "traces": _kind("profiler traces (both readers)", 16, trace_cases),
    "tables": _kind("kernel tables", 16, table_cases),
    "packs": _kind("shipped packs", 8, pack_cases),
    "yaml": _kind("GPU files, configurations, prices, overrides", 14, yaml_cases),
}


def kind_of(rng: Random) -> str:
    """A kind at random, by weight."""
    return rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
