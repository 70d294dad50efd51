"""What the hosts have to do with a difference between predictions: `host=usual` gives newer GPUs newer hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.answers.engine import Engine
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.readable import milliseconds

MOST_PREDICTED = 24
"""Number of other predictions up to which they are predicted again with the first one's host."""

MOST_NAMED = 4
"""Number of steps that the line names: those whose time depends most on the host."""

LEAST_SHARE = 0.02
"""Smallest relative change of a step by its host that is named."""


def host_note(
    questions: Sequence[Question], predictions: Sequence[Prediction], engine: Engine
) -> str | None:
    """One line that says which hosts several predictions assume, and what the steps would take with the first one's host.

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers.
        engine: predicts the same steps with the other host.

    Returns:
        The line; None where all GPUs have the same hosts: one, or those that were asked for, which are rows of their own.
    """
    gpus_of: dict[str, list[str]] = {}
    for question in questions:
        gpus_of.setdefault(question.host.name, []).append(question.gpu.name)
    if len({frozenset(gpus) for gpus in gpus_of.values()}) < 2:
        return None
    named = "; ".join(
        f"{host} ({', '.join(dict.fromkeys(gpus))})" for host, gpus in gpus_of.items()
    )
    first = questions[0].host
    elsewhere = {
        question: prediction
        for question, prediction in zip(questions, predictions, strict=True)
        if question.host != first and not question.local
    }
    if not elsewhere or len(elsewhere) > MOST_PREDICTED:
        return f"hosts differ: {named}; one host for all: host={first.name}"
    asked = {
        replace(question, host=first): prediction for question, prediction in elsewhere.items()
    }
    changes = []
    for answer in engine.predict(asked, with_interval=False):
        if answer.prediction is not None:
            here_us = asked[answer.question].predicted_us
            changes.append(
                (abs(answer.prediction.predicted_us / here_us - 1), answer.prediction, here_us)
            )
    shown = sorted(
        (change for change in changes if change[0] >= LEAST_SHARE), key=lambda change: -change[0]
    )
    batches = len({question.batch_size for question in questions}) > 1
    steps = [
        f"{moved.gpu}{f' b{moved.batch_size}' if batches else ''}"
        f" {milliseconds(moved.predicted_us)} instead of {milliseconds(here_us)}"
        for _, moved, here_us in shown[:MOST_NAMED]
    ]
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    with_first = (
        f"with {first.name}: {', '.join(steps)}{more}"
        if steps
        else "this changes no step by 2 % or more"
    )
    return f"hosts differ: {named}; {with_first} (one host for all: host={first.name})"
