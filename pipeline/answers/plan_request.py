"""A plan that a workflow run asks for, from Snakemake's `--config` values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.answers.plan_results import Limits, Objective
from pipeline.errors import InputError
from pipeline.readable import seconds

OBJECTIVE = "plan"
"""Key of the objective. A run with it plans, and predicts no grid."""


def _whole(text: str) -> int:
    return int(text.replace("_", ""))


CONSTRAINTS: Mapping[str, tuple[str, Callable[[str], float | int]]] = {
    "samples": ("samples", _whole),
    "memory": ("memory_gib", float),
    "budget": ("budget", float),
    "deadline": ("deadline_s", seconds),
    "global_batch": ("global_batch", _whole),
}
"""Keys of constraints, as the options of `steptime plan`: the argument of `Limits.of`, and what reads the text."""


@dataclass(frozen=True)
class PlanRequest:
    """Objective and constraints of a plan."""

    objective: Objective = Objective.samples_per_s
    limits: Limits = field(default_factory=Limits)
    asked: bool = False
    """Whether the run has an objective."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PlanRequest:
        """From `--config` values; other keys than those of a plan are ignored.

        Raises:
            InputError: a value makes no sense, or there are constraints without an objective.
        """
        given = {key: config[key] for key in CONSTRAINTS if config.get(key) is not None}
        if OBJECTIVE not in config:
            if given:
                raise InputError(f"{next(iter(given))}=...: this constrains a plan: give plan=OBJECTIVE too")
            return cls()
        found: dict[str, Any] = {}
        for key, value in given.items():
            name, read = CONSTRAINTS[key]
            try:
                found[name] = read(str(value))
            except ValueError:
                raise InputError(f"{key}={value}: give a number") from None
        return cls(Objective.named(str(config[OBJECTIVE])), Limits.of(**found), True)

    @staticmethod
    def without(config: Mapping[str, Any]) -> dict[str, Any]:
        """The `--config` values that describe the space."""
        return {key: value for key, value in config.items() if key not in (OBJECTIVE, *CONSTRAINTS)}
