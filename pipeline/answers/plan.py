"""Which GPU, batch size and options are best for an objective, in a space of points (`pipeline.answers.plan_search`).

Each point has a time and, where its GPU has a price, a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.answers.engine import engine
from pipeline.answers.host_share import host_note
from pipeline.answers.plan_results import Limits, Objective, Plan
from pipeline.answers.plan_search import OnProgress, Search
from pipeline.errors import InputError
from pipeline.question.layouts import layouts_of
from pipeline.question.question import Names, Question, expand
from pipeline.readable import number_of, seconds
from pipeline.workloads.user_steps import USUAL_MODEL, questions_about

CONSTRAINTS: Mapping[str, tuple[str, Callable[[str], float | int]]] = {
    "samples": ("samples", lambda text: int(number_of(text))),
    "memory": ("memory_gib", float),
    "budget": ("budget", number_of),
    "deadline": ("deadline_s", seconds),
    "global_batch": ("global_batch", int),
    "max_watts": ("max_watts", float),
}
"""Keys of constraints, as the options of `steptime plan`: the argument of `Limits`, and what reads the text."""


def read_limit(key: str, value: object) -> Any:
    """The value of a constraint of `CONSTRAINTS`; None stays.

    Raises:
        InputError: it is no number, or no time.
    """
    if value is None:
        return None
    try:
        return CONSTRAINTS[key][1](str(value))
    except ValueError:
        kind = "whole number" if key == "global_batch" else "number"
        raise InputError(f"{key}={value}: give a {kind}") from None
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def limits_of(given: Mapping[str, object]) -> Limits:
    """The constraints of texts by key of `CONSTRAINTS`; None is no constraint.

    Raises:
        InputError: a value makes no sense.
    """
    return Limits(**{CONSTRAINTS[key][0]: read_limit(key, value) for key, value in given.items()})


def space_of(overrides: Sequence[str], limits: Limits) -> list[Question]:
    """The points of a plan. Errors are those of `expand`."""
    return expand(overrides, partial(layouts_of, global_batch=limits.global_batch))


def plan(
    objective: str,
    gpu: Names,
    model: object = USUAL_MODEL,
    *,
    samples: float | str | None = None,
    memory_gib: float | None = None,
    budget: float | str | None = None,
    deadline_s: float | None = None,
    global_batch: int | None = None,
    max_watts: float | None = None,
    **overrides: Any,
) -> Plan:
    """The best point of a space.

    Args:
        objective: a value of `Objective`.
        gpu: names or aliases of GPUs, separated by commas, or a list of them.
        model: names of workloads, separated by commas, or a module or what makes one, as for `predict`.
        samples: samples of an epoch; "1.2M" is a number, too.
        memory_gib: largest memory need, GiB.
        budget: largest cost of an epoch.
        deadline_s: longest time of an epoch, seconds.
        global_batch: samples of one update of the weights.
        max_watts: largest mean power of all GPUs, W.
        overrides: any other argument of `predict_grid`; values separated by commas are an axis of the space.

    Raises:
        InputError: a name or value does not exist, or no point meets the constraints.
    """
    limits = limits_of(
        {
            "samples": samples,
            "memory": memory_gib,
            "budget": budget,
            "deadline": None if deadline_s is None else f"{deadline_s}s",
            "global_batch": global_batch,
            "max_watts": max_watts,
        }
    )
    completed = partial(layouts_of, global_batch=limits.global_batch)
    with questions_about(gpu, model, overrides, completed) as questions:
        return make_plan(Objective.named(objective), questions, limits)


def make_plan(
    objective: Objective,
    points: Sequence[Question],
    limits: Limits,
    on_progress: OnProgress = lambda _stage, _points: None,
    results: str | Path | None = "results",
) -> Plan:
    """Search a space.

    Args:
        objective: what is best.
        points: the space.
        limits: constraints.
        on_progress: called with a stage of the search, and the number of points that are done with it.
        results: as for `AvailableModels`.

    Raises:
        InputError: the space is empty, the objective needs what is not given, or no point meets the constraints.
    """
    if not points:
        raise InputError("the space is empty: give at least gpu=... and model=...")
    if objective.endswith("_per_epoch") and limits.samples is None:
        raise InputError(f"{objective}: give the --samples of an epoch")
    search = Search(objective, limits, engine(results), on_progress)
    contenders, front, tie = search.run(points)
    return Plan(
        objective,
        limits,
        contenders[0],
        tuple(front),
        tuple(contenders),
        dict(search.lost.most_common()),
        len(points),
        search.predicted,
        search.currency,
        search.prices,
        host_note([choice.question for choice in contenders]),
        tie,
    )
