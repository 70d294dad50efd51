"""Whether the best of several predictions is sure: how often others win in draws of the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.answers.engine import Engine
from pipeline.prediction import Prediction
from pipeline.question.question import Question

TIE_SHARE = 0.2
"""Share of draws in which another point beats the best, from which the two are called a tie."""

MOST_RIVALS = 5
"""Number of points that are compared with the best: those nearest to it."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tie:
    """Points of which none is surely the best."""

    predictions: tuple[Prediction, ...]
    """The best first."""
    share: float
    """Largest share of draws in which another point beats the best."""
    why: str
    """What decides between them, in a few words."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        points = [{"gpu": p.gpu, "batch_size": p.batch_size, "overrides": list(p.overrides)} for p in self.predictions]
        return {"points": points, "runner_up_wins": self.share, "why": self.why}


def reseeded(question: Question, more: int) -> Question:
    """The question with other draws. Points of different GPUs get different ones: the errors of their models are not the
    same.
    """
    return replace(question, predict=replace(question.predict, seed=question.predict.seed + more))


def shares_of_wins(draws: Sequence[Floats]) -> list[float]:
    """Share of paired draws in which each point is below the first one; equal draws count half."""
    return [float(np.mean(values < draws[0]) + np.mean(values == draws[0]) / 2) for values in draws]


def why_tied(predictions: Sequence[Prediction]) -> str:
    """What decides between points that tie."""
    if len({p.predicted_us / p.batch_size for p in predictions}) == 1:
        return "they take the same time"
    if all(p.bound == "host" for p in predictions):
        return "the host limits them"
    if all(p.bound == "device" for p in predictions):
        return "the errors of kernel times are larger than the difference"
    return "the host decides"


def find_tie(points: Mapping[Question, Prediction], per_sample: Mapping[Question, float], engine: Engine) -> Tie | None:
    """The tie of the best point with others; None where it wins surely.

    Args:
        points: questions of one model and their answers.
        per_sample: factor of each question from its step time to what is compared: time or cost per sample.
        engine: predicts the nearest points again with their draws.
    """
    ranked = sorted(points, key=lambda question: points[question].predicted_us * per_sample[question])
    if not ranked:
        return None
    limit = points[ranked[0]].p90_us * per_sample[ranked[0]]
    near = [question for question in ranked if points[question].p10_us * per_sample[question] <= limit]
    near = near[: MOST_RIVALS + 1]
    gpus = list(dict.fromkeys(question.gpu for question in near))
    seeded = {reseeded(question, gpus.index(question.gpu)): question for question in near}
    drawn: dict[Question, Floats] = {}
    for answer in engine.predict(seeded, keep_draws=True) if len(near) > 1 else ():
        if answer.prediction is not None and answer.prediction.draws_us is not None:
            question = seeded[answer.question]
            drawn[question] = answer.prediction.draws_us * per_sample[question]
    if ranked[0] not in drawn:
        return None
    rivals = [question for question in near if question in drawn]
    shares = shares_of_wins([drawn[question] for question in rivals])
    tied = [points[question] for question, share in zip(rivals, shares, strict=True)
            if question is ranked[0] or share >= TIE_SHARE]  # fmt: skip
    return Tie(tuple(tied), max(shares[1:]), why_tied(tied)) if len(tied) > 1 else None
