"""Changes with which a step fits its GPU that does not, and what each costs in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.answers.step_changes import Candidate
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.readable import gibibytes

SAVING = (
    Candidate("model.checkpointing", "true", ("false",), "model.gradient_checkpointing_enable()"),
    Candidate("model.checkpointing", "selective", ("none",), "recompute the core of attention"),
    Candidate("model.checkpointing", "full", ("none", "selective"), "recompute each layer"),
    *(Candidate("model.accumulation", n, ("1",), f"{n} parts of the batch") for n in ("2", "4")),
)
"""Changes that need less memory at the same batch size, and take time."""


def what_fits(
    before: Prediction,
    changed: Mapping[Candidate, Prediction],
    asked: Question,
    answering: Callable[[Sequence[Question]], Iterable[Any]],
) -> tuple[str, ...]:
    """Changes with which a step fits, each with its memory and the time of a sample over that before, the fastest first.

    Args:
        before: the step, which does not fit.
        changed: the step with each change.
        asked: its question.
        answering: answers the question of a smaller batch (`pipeline.answers.engine.Answer`).
    """
    after = {each.text: p for each, p in changed.items() if p.fits}
    if size := before.largest_batch:
        (smaller,) = answering([replace(asked, batch_size=size)])
        after[f"batch_size={size}"] = smaller.whole()
    return tuple(
        f"{text}: {gibibytes(p.memory_bytes)},"
        f" {before.samples_per_s / p.samples_per_s:.2f} times the time of a sample"
        for text, p in sorted(after.items(), key=lambda item: -item[1].samples_per_s)
    )
