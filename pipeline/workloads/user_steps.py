"""Steps that are given as Python objects: `predict(step=my_function)`, `predict(model=my_model, batch=(x, y), loss=my_loss)`.

An object is kept while questions about it are answered, under a name that takes the place of `model.target`. What it does may
depend on anything in the user's program, so its graph is not kept between calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, name_of, python_messages
from pipeline.question.compose import Completed
from pipeline.question.question import LOCAL_GPU, Names, Question, questions_of

if TYPE_CHECKING:
    from pipeline.workloads.training_step import Step

Maker = Callable[[Mapping[str, Any], int, str], "Step"]
"""Makes a step from a workload's configuration, a batch size and a device."""

PARTS = ("batch", "loss", "optimizer", "procedure")
"""Arguments that belong to a model that is given as an object."""

USUAL_MODEL = "dlrm_default"
"""The workload of `predict()` without arguments."""


_NUMBERS = count(1)

_MAKERS: dict[str, tuple[Maker, str]] = {}
"""What makes the steps of the questions that are being answered, and their names, by the target that stands for each."""


def maker_of(target: object) -> Maker | None:
    """What makes a step that was given as an object; None for the target of a module's function."""
    return _MAKERS.get(str(target), (None,))[0]


def is_given(config: Mapping[str, Any]) -> bool:
    """Whether the step of a workload was given as an object."""
    return "@" in str(config.get("target"))


def shown_target(target: object) -> str:
    """What to call the user's step in a message: `model.target=my_module:make_step`, or the name of the given object."""
    name, at, _ = str(target).rpartition("@")
    return name if at else f"model.target={target}"


@contextmanager
def questions_about(
    gpu: Names,
    model: object,
    options: Mapping[str, Any],
    completed: Completed | None = None,
) -> Iterator[list[Question]]:
    """The questions that Python arguments describe; steps that are given as objects exist while the body runs.

    Errors of the body, too, name options as Python's arguments.

    Args:
        gpu: names of GPUs, separated by commas.
        model: names of workloads, or a module, or a function or class that makes one.
        options: overrides, and `step` or `PARTS`.
        completed: as of `expand`, for workloads by name.

    Raises:
        InputError: a name or value does not exist, or arguments contradict each other.
    """
    with python_messages(), _questions(gpu, model, options, completed) as questions:
        yield questions


@contextmanager
def _questions(
    gpu: Names, model: object, options: Mapping[str, Any], completed: Completed | None
) -> Iterator[list[Question]]:
    others = dict(options)
    step = others.pop("step", None)
    parts = {key: others.pop(key) for key in PARTS if key in others}
    if isinstance(model, (list, tuple)) and all(isinstance(name, str) for name in model):
        model = ",".join(model)
    if isinstance(model, str) and step is None:
        if parts:
            raise ConfigError(
                f"{next(iter(parts))}=: model={model} is a workload of Steptime; give model=, your"
                " module or what makes it"
            )
        yield questions_of(gpu, model, others, completed)
        return
    if gpu == LOCAL_GPU:
        raise ConfigError(
            "gpu=local measures a step that a file defines: give model='custom',"
            " model__target='module:function'"
        )
    if step is not None and model not in (USUAL_MODEL, "custom"):
        raise ConfigError(
            "step= makes its own model: leave out model=, or give model=, batch= and loss= without"
            " step="
        )
    from pipeline.as_on_cuda.wrappers import compiled_once

    kind, given = ("model", compiled_once(model)) if step is None else ("step", step)
    with _maker(kind, given, parts, others) as maker:
        name = re.sub(r"\W+", "_", name_of(given)).strip("_") or kind
        target = f"{kind}={name}@{next(_NUMBERS)}"
        _MAKERS[target] = maker, name
        try:
            yield [
                *map(
                    as_given,
                    questions_of(gpu, "custom", {**others, "model__target": f"'{target}'"}),
                )
            ]
        finally:
            del _MAKERS[target]


@contextmanager
def _maker(
    kind: str, given: Any, parts: dict[str, Any], options: dict[str, Any]
) -> Iterator[Maker]:
    """What makes the step of an object. `options` gets the options that follow from the object."""
    from torch import nn

    if (
        kind == "step"
        and not isinstance(given, nn.Module)
        and not (isinstance(given, type) and issubclass(given, nn.Module))
    ):
        if parts or not callable(given):
            what = (
                f"{next(iter(parts))}=: step= has its own"
                if parts
                else f"step={type(given).__name__}"
            )
            raise ConfigError(
                f"{what}: give a function (config, batch_size, device) that returns a Step, or"
                " model="
            )
        yield given
        return
    from pipeline.workloads.user_modules import UserModule

    if isinstance(parts.get("optimizer"), str):
        options["model__optimizer"] = parts.pop("optimizer")
    module = UserModule(given, **parts)
    if module.batch_size is not None:
        options.setdefault("batch_size", module.batch_size)
    try:
        yield module.make
    finally:
        module.restore()


def as_given(question: Question) -> Question:
    """The question with the name of the object in place of `custom`, and without the override that stands for it."""
    given = _MAKERS.get(str(question.workload.get("target")))
    if given is None:
        return question
    overrides = tuple(text for text in question.overrides if not text.startswith("model.target="))
    variant = question.variant if overrides else "default"
    return replace(question, model=given[1], overrides=overrides, variant=variant)
