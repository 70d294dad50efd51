"""Whether the best of several predictions is sure: how often others win in draws of the errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, log
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.answers.engine import Engine
from pipeline.answers.step_errors import NORMAL_P90
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.readable import listed

TIE_SHARE = 0.2
"""Share of draws in which another point beats the best, from which the two are called a tie."""

PER_PRICE, THROUGHPUT = "samples/price", "samples/s"
"""What is compared: samples per unit of the currency, and per second."""

MOST_RIVALS = 11
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

    def __str__(self) -> str:
        points = ", ".join(
            f"{p.gpu} {p.named} b{p.batch_size}".replace("  ", " ") for p in self.predictions
        )
        return f"{points} (another wins in {self.share:.0%} of draws); {self.why}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        points = [
            {"gpu": p.gpu, "batch_size": p.batch_size, "overrides": list(p.overrides)}
            for p in self.predictions
        ]
        return {"points": points, "runner_up_wins": self.share, "why": self.why}


def reseeded(question: Question, more: int) -> Question:
    """The question with other draws. Points of different GPUs get different ones: the errors of their models are not the
    same.
    """
    return replace(question, predict=replace(question.predict, seed=question.predict.seed + more))


def middle_alone(question: Question) -> Question:
    """The question with few draws, for the time alone: draws change the interval, and cost most of a prediction."""
    return replace(question, predict=replace(question.predict, draws=10))


def shares_of_wins(draws: Sequence[Floats]) -> list[float]:
    """Share of paired draws in which each point is below the first one; equal draws count half."""
    return [float(np.mean(values < draws[0]) + np.mean(values == draws[0]) / 2) for values in draws]


def independent_share(best: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """Share of draws in which another GPU's value is below the best one.

    The errors of two GPUs are drawn independently, and are close to log-normal: their intervals say what draws say.

    Args:
        best: middle, p10 and p90 of the smallest value.
        other: those of another GPU.
    """
    if best[0] == other[0]:
        return 0.5
    width = hypot(*(log(high / low) / (2 * NORMAL_P90) for _, low, high in (best, other)))
    return NormalDist().cdf(log(best[0] / other[0]) / width) if width > 0 else 0.0


def tied_gpus(values: Sequence[tuple[float, float, float]]) -> list[bool]:
    """Which values of different GPUs (middle, p10, p90) tie with the smallest; it alone is true where it wins surely."""
    best = min(values)
    return [value is best or independent_share(best, value) >= TIE_SHARE for value in values]


def lacks(best: Prediction, other: Prediction) -> bool:
    """Whether the time of the best lacks operators that the other one's does not, so that it is not surely the shorter."""
    return not set(best.lower_bound) <= set(other.lower_bound)


def why_tied(points: Iterable[Any]) -> str:
    """What decides between points that tie: predictions, or rows of the figures' table of steps."""
    predictions = list(points)
    if any(lacks(predictions[0], p) for p in predictions if isinstance(p, Prediction)):
        return f"the first is a lower bound, without {listed(predictions[0].lower_bound)}"
    if all(p.bound == "host" for p in predictions):
        return "the host limits them"
    each_us = [p.predicted_us / p.batch_size for p in predictions]
    if max(each_us) <= 1.001 * min(each_us):
        return "they take the same time"
    if all(p.bound == "device" for p in predictions):
        return "the errors of kernel times are larger than the difference"
    return "the host decides"


def find_ties(
    points: Mapping[Question, Prediction],
    compared: Mapping[str, Mapping[Question, float]],
    engine: Engine,
) -> dict[str, Tie]:
    """The ties of the best point with others, by what is compared; none where the best wins surely.

    Args:
        points: questions of one model and their answers.
        compared: by its name, the factor of each question from its step time to what is compared: time or cost per sample.
        engine: predicts the nearest points on the best one's GPU again, once for all comparisons, with their draws.
    """
    near = {what: _nearest(points, per_sample) for what, per_sample in compared.items()}
    drawn = _draws(
        [question for nearest in near.values() for question in _on_one_gpu(nearest)], engine
    )
    ties = {}
    for what, nearest in near.items():
        if not nearest:
            continue
        best, *rivals = nearest
        shares = {
            question: _share(points, compared[what], drawn, best, question) for question in rivals
        }
        tied = [
            points[best],
            *(points[question] for question, share in shares.items() if share >= TIE_SHARE),
        ]
        if len(tied) > 1:
            ties[what] = Tie(tuple(tied), max(shares.values()), why_tied(tied))
    return ties


def _on_one_gpu(nearest: Sequence[Question]) -> list[Question]:
    """The best point with its rivals on the same GPU, whose errors are partly its own; nothing if it has none there."""
    same = [question for question in nearest if question.gpu == nearest[0].gpu]
    return same if len(same) > 1 else []


def _share(
    points: Mapping[Question, Prediction],
    per_sample: Mapping[Question, float],
    drawn: Mapping[Question, Floats],
    best: Question,
    other: Question,
) -> float:
    """Share of draws in which another point beats the best: paired ones on the same GPU, else what the intervals say."""
    if lacks(points[best], points[other]):
        return 0.5
    if best.gpu != other.gpu:
        one, two = (
            (p.predicted_us * factor, p.p10_us * factor, p.p90_us * factor)
            for p, factor in (
                (points[question], per_sample[question]) for question in (best, other)
            )
        )
        return independent_share(one, two)
    if best not in drawn or other not in drawn:
        return 0.0
    return shares_of_wins([drawn[question] * per_sample[question] for question in (best, other)])[1]


def grid_ties(
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    hourly: Mapping[str, float],
    engine: Engine,
) -> dict[tuple[str, str], Tie]:
    """The ties among points that fit, by model and what is compared (`THROUGHPUT`, `PER_PRICE`).

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers.
        hourly: price of an hour by GPU.
        engine: predicts the nearest points on the best one's GPU again, with their draws.
    """
    ties: dict[tuple[str, str], Tie] = {}
    fitting = {
        question: p
        for question, p in zip(questions, predictions, strict=True)
        if p.fits and not question.local
    }
    for model in dict.fromkeys(question.model for question in fitting):
        points = {question: p for question, p in fitting.items() if question.model == model}
        per_sample = {
            question: 1.0 / (question.batch_size * question.devices) for question in points
        }
        cost = {
            question: hourly[question.gpu.name] * question.devices * share
            for question, share in per_sample.items()
            if question.gpu.name in hourly
        }
        of_model = find_ties(points, {THROUGHPUT: per_sample, PER_PRICE: cost}, engine)
        ties |= {(model, what): tie for what, tie in of_model.items()}
    return ties


def _nearest(
    points: Mapping[Question, Prediction], per_sample: Mapping[Question, float]
) -> list[Question]:
    """The best point and those whose interval reaches its own, best first; nothing if it is alone."""
    if not per_sample:
        return []
    ranked = sorted(
        per_sample, key=lambda question: points[question].predicted_us * per_sample[question]
    )
    best, limit = points[ranked[0]], points[ranked[0]].p90_us * per_sample[ranked[0]]
    near = [
        question
        for question in ranked
        if points[question].p10_us * per_sample[question] <= limit or lacks(best, points[question])
    ]
    return near[: MOST_RIVALS + 1] if len(near) > 1 else []


def _draws(questions: Sequence[Question], engine: Engine) -> dict[Question, Floats]:
    """Step times of paired draws."""
    answers = engine.predict(list(dict.fromkeys(questions)), keep_draws=True) if questions else ()
    predictions = ((answer.question, answer.prediction) for answer in answers)
    return {
        question: p.draws_us
        for question, p in predictions
        if p is not None and p.draws_us is not None
    }
