"""What the hosts have to do with a difference between predictions: `host=usual` gives newer GPUs newer hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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


Key = tuple[str, str, str, int]


def point(p: Prediction) -> Key:
    """What names a point of a comparison: GPU, model, variant and batch size."""
    return p.gpu, p.model, p.variant, p.batch_size


@dataclass(frozen=True)
class OneHost:
    """Steps whose usual hosts differ, on one host, so that their difference is that of the GPUs."""

    note: str | None = None
    """One line that says which hosts the predictions assume, and what the steps would take with the first one's host."""
    name: str = ""
    """The host; empty where all GPUs have the same hosts, or too many points differ."""
    steps: Mapping[Key, Prediction] = field(default_factory=dict)
    """The predictions whose host is another, on this one."""

    def of(self, p: Prediction) -> Prediction:
        """A prediction on the one host."""
        return self.steps.get(point(p), p)


def host_note(
    questions: Sequence[Question], predictions: Sequence[Prediction], engine: Engine
) -> str | None:
    """`OneHost.note` of several predictions."""
    return on_one_host(questions, predictions, engine, with_interval=False).note


def on_one_host(
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    engine: Engine,
    with_interval: bool = True,
) -> OneHost:
    """Several predictions on the host of the first one.

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers.
        engine: predicts the same steps with the other host.
        with_interval: whether they get intervals, which ties need.

    Returns:
        Nothing where all GPUs have the same hosts: one, or those that were asked for, which are rows of their own.
    """
    gpus_of: dict[str, list[str]] = {}
    for question in questions:
        gpus_of.setdefault(question.host.name, []).append(question.gpu.name)
    if len({frozenset(gpus) for gpus in gpus_of.values()}) < 2:
        return OneHost()
    named = "; ".join(
        f"{host} ({', '.join(dict.fromkeys(gpus))})" for host, gpus in gpus_of.items()
    )
    first = questions[0].host
    asked = {
        replace(question, host=first): prediction
        for question, prediction in zip(questions, predictions, strict=True)
        if question.host != first and not question.local
    }
    if not asked or len(asked) > MOST_PREDICTED:
        return OneHost(f"hosts differ: {named}; one host for all: host={first.name}")
    answers = list(engine.predict(asked, with_interval=with_interval))
    pairs = [(each.prediction, asked[each.question]) for each in answers if each.prediction]
    changes = [abs(moved.predicted_us / here.predicted_us - 1) for moved, here in pairs]
    order = sorted(range(len(pairs)), key=lambda place: -changes[place])
    shown = [pairs[place] for place in order if changes[place] >= LEAST_SHARE]
    batches = len({question.batch_size for question in questions}) > 1
    steps = [
        f"{moved.gpu}{f' b{moved.batch_size}' if batches else ''}"
        f" {milliseconds(moved.predicted_us)} instead of {milliseconds(here.predicted_us)}"
        for moved, here in shown[:MOST_NAMED]
    ]
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    with_first = (
        f"with {first.name}: {', '.join(steps)}{more}"
        if steps
        else "this changes no step by 2 % or more"
    )
    note = f"hosts differ: {named}; {with_first} (one host for all: host={first.name})"
    return OneHost(note, first.name, {point(here): moved for moved, here in pairs})
