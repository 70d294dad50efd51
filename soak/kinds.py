"""The kinds of damaged input, with the share of cases that each gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from soak import (
    campaign_cases,
    custom_cases,
    execution_cases,
    model_cases,
    pack_cases,
    published_cases,
    result_cases,
    table_cases,
    trace_cases,
    yaml_cases,
)
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
    "execution": _kind("execution traces", 10, execution_cases),
    "tables": _kind("kernel tables", 16, table_cases),
    "campaigns": _kind("campaign folders and archives", 12, campaign_cases),
    "packs": _kind("shipped packs", 8, pack_cases),
    "models": _kind("fitted models", 6, model_cases),
    "yaml": _kind("GPU files, configurations, prices, overrides", 14, yaml_cases),
    "published": _kind("published tables", 8, published_cases),
    "results": _kind("results of a run, user cache", 8, result_cases),
    "custom": _kind("own PyTorch models", 2, custom_cases),
}


def kind_of(rng: Random) -> str:
    """A kind at random, by weight."""
    return rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
