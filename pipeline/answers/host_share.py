"""What the hosts have to do with a difference between predictions: `host=usual` gives newer GPUs newer hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pipeline.answers.engine import Engine
from pipeline.hardware.hosts import Host
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.readable import distinct, few

MOST_PREDICTED = 24
"""Number of other predictions up to which they are predicted again with the host of most."""

HOST_SPEEDS = (0.5, 0.8, 1.25, 2.0)
"""Other speeds of a host, over its own: known hosts of one period differ by 1.25, and 2 shows where the host no longer limits."""

MOST_SPEEDS = 96
"""Number of predictions up to which they are predicted again at `HOST_SPEEDS`; each takes about 0.1 s a speed."""

HOST_SCALE = "overheads.host_scale="
"""Beginning of the override that multiplies the times of a host."""

Key = tuple[str, str, str, int]


def point(p: Prediction) -> Key:
    """What names a point of a comparison: GPU, model, variant and batch size."""
    return p.gpu, p.model, p.variant, p.batch_size


@dataclass(frozen=True)
class OneHost:
    """Steps whose usual hosts differ, on one host, so that their difference is that of the GPUs."""

    note: str | None = None
    """One line that says which hosts the predictions assume."""
    name: str = ""
    """The host; empty where all GPUs have the same hosts, or too many points differ."""
    steps: Mapping[Key, Prediction] = field(default_factory=dict)
    """The predictions whose host is another, on this one."""
    at_speeds: Callable[[], Mapping[Key, Mapping[float, Prediction]]] = field(
        default=dict, compare=False
    )
    """Predicts the steps again, with faster and slower hosts of their own (`at_speeds`)."""

    def of(self, p: Prediction) -> Prediction:
        """A prediction on the one host."""
        return self.steps.get(point(p), p)


def hosts_differ(pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether GPUs have different hosts, or sets of hosts: of pairs of a GPU and a host, by name; no host has an empty one."""
    known = {(gpu, host) for gpu, host in pairs if host}
    return len(known) < len({gpu for gpu, _ in known}) * len({host for _, host in known})


def host_note(questions: Sequence[Question]) -> str | None:
    """`OneHost.note`; None where all GPUs have the same hosts: one, or those that were asked for, which are rows of their own."""
    pairs = [(question.gpu.name, question.host.name) for question in questions]
    if not hosts_differ(pairs):
        return None
    gpus_of: dict[str, list[str]] = {}
    for gpu, host in pairs:
        gpus_of.setdefault(host, []).append(gpu)
    named = "; ".join(f"{host} ({few(distinct(gpus))})" for host, gpus in gpus_of.items())
    return f"hosts differ: {named}; one host for all: host={shared_host(questions).name}"


def shared_host(questions: Sequence[Question]) -> Host:
    """The host on which GPUs are compared, in whatever order: that of most questions, of several the first by name."""
    counts = Counter(question.host for question in questions)
    return min(counts, key=lambda host: (-counts[host], host.name))


def on_one_host(
    questions: Sequence[Question], predictions: Sequence[Prediction], engine: Engine
) -> OneHost:
    """Several predictions on the host of most of them (`shared_host`).

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers.
        engine: predicts the same steps with the other host.
    """
    note, shared = host_note(questions), shared_host(questions)
    speeds = partial(at_speeds, questions, predictions, engine)
    asked = {
        replace(question, host=shared): prediction
        for question, prediction in zip(questions, predictions, strict=True)
        if note and question.host != shared and not question.local
    }
    if not asked or len(asked) > MOST_PREDICTED:
        return OneHost(note, at_speeds=speeds)
    moved = {
        point(asked[answer.question]): answer.prediction
        for answer in engine.predict(asked)
        if answer.prediction
    }
    return OneHost(note, shared.name, moved, speeds)


def at_speeds(
    questions: Sequence[Question], predictions: Sequence[Prediction], engine: Engine
) -> dict[Key, dict[float, Prediction]]:
    """Each prediction with its host at `HOST_SPEEDS`, by its point and the speed; empty where there are too many.

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers.
        engine: predicts the same steps again.
    """
    asked = {
        _at_speed(question, speed): (point(prediction), speed)
        for question, prediction in zip(questions, predictions, strict=True)
        if not question.local and len(questions) <= MOST_SPEEDS
        for speed in HOST_SPEEDS
    }
    moved: dict[Key, dict[float, Prediction]] = {}
    for answer in engine.predict(asked):
        if answer.prediction:
            key, speed = asked[answer.question]
            moved.setdefault(key, {})[speed] = answer.prediction
    return moved


def _at_speed(question: Question, speed: float) -> Question:
    """The same step with a host that is `speed` times as fast."""
    scale = question.overheads.host_scale / speed
    others = [text for text in question.overrides if not text.startswith(HOST_SCALE)]
    return replace(
        question,
        overheads=replace(question.overheads, host_scale=scale),
        overrides=(*others, f"{HOST_SCALE}{scale:g}"),
    )
