"""Whether the best of several predictions is sure: how often others win in draws of the errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, log
from statistics import NormalDist
from typing import Any

import numpy as np

from pipeline.answers.step_errors import NORMAL_P90
from pipeline.arrays import Array
from pipeline.prediction import RUN_AT, Prediction
from pipeline.question.question import Question
from pipeline.readable import listed

TIE_SHARE = 0.2
"""Share of draws in which another point beats the best, from which the two are called a tie."""

UNKNOWN_SHARE = 0.5
"""That share where nothing says which of two is better."""

PER_PRICE, THROUGHPUT = "samples/price", "samples/s"
"""What is compared: samples per unit of the currency, and per second."""

MOST_RIVALS = 11
"""Number of points that are compared with the best: those nearest to it."""


@dataclass(frozen=True)
class Tie:
    """Points of which none is surely the best."""

    predictions: tuple[Prediction, ...]
    """The best first."""
    share: float | None
    """Largest share of draws in which another point beats the best; None where draws cannot say."""
    why: str
    """What decides between them, in a few words."""

    @property
    def reason(self) -> str:
        """How often another point wins, if draws say it, and what decides."""
        wins = (
            ""
            if self.share is None
            else f"another wins in {self.share:.0%} of draws of the errors; "
        )
        return wins + self.why

    def __str__(self) -> str:
        points = ", ".join(
            f"{p.gpu} {p.named} b{p.batch_size}".replace("  ", " ") for p in self.predictions
        )
        return f"{points}; {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        points = [
            {"gpu": p.gpu, "batch_size": p.batch_size, "overrides": list(p.overrides)}
            for p in self.predictions
        ]
        return {"points": points, "runner_up_wins": self.share, "why": self.why}


def shares_of_wins(draws: Sequence[Array]) -> list[float]:
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


def leaves_more_out(best: Prediction, other: Prediction) -> bool:
    """Whether the time of the best leaves out operators that the other's does not, so that it may not be the shorter."""
    return not set(best.lower_bound) <= set(other.lower_bound)


def why_tied(points: Iterable[Any]) -> str:
    """What decides between points that tie: predictions, or rows of the figures' table of steps."""
    predictions = list(points)
    if any(leaves_more_out(predictions[0], p) for p in predictions if isinstance(p, Prediction)):
        return f"the first is a lower bound, without {listed(predictions[0].lower_bound)}"
    if all(p.bound == "host" for p in predictions):
        return "the host limits them"
    each_us = [p.predicted_us / p.batch_size for p in predictions]
    if max(each_us) <= 1.001 * min(each_us):
        return "they take the same time"
    if all(p.bound == "device" for p in predictions):
        return "the errors of kernel times are larger than the difference"
    return "the host decides"


def tie_of(predictions: Sequence[Prediction], draws: Sequence[Array]) -> Tie | None:
    """The tie of the first prediction with others; None where it wins surely.

    Args:
        predictions: the best first.
        draws: of what is compared and should be small, an array for each prediction.
    """
    best, *rivals = predictions
    shares = [
        max(share, UNKNOWN_SHARE * leaves_more_out(best, rival))
        for rival, share in zip(rivals, shares_of_wins(draws)[1:], strict=True)
    ]
    if max(shares, default=0.0) < TIE_SHARE:
        return None
    tied = [p for p, share in zip(rivals, shares, strict=True) if share >= TIE_SHARE]
    return Tie((best, *tied), max(shares), why_tied([best, *tied]))


def unchecked_limits(predictions: Sequence[Prediction]) -> Tie | None:
    """The tie of the first step with itself at other limits or clocks, on a card whose power no measurement checks; else None."""
    best, *others = predictions
    tied = [p for p in others if p.line(*RUN_AT) == best.line(*RUN_AT)]
    if best.power is None or best.power.evidence != "assumed" or not tied:
        return None
    why = f"nothing checks the power of {best.gpu}: its limit of least energy is withheld"
    return Tie((best, *tied), None, why)


def nearest_tie(predictions: Sequence[Prediction], per_us: Sequence[float]) -> Tie | None:
    """The tie of the best of these predictions with those whose intervals reach its own.

    Args:
        predictions: with their draws.
        per_us: factor of each from its step time to what is compared, and should be small.
    """
    ranked = sorted(
        zip(predictions, per_us, strict=True), key=lambda pair: pair[0].predicted_us * pair[1]
    )
    if not ranked:
        return None
    best, limit = ranked[0][0], ranked[0][0].p90_us * ranked[0][1]
    near = [(p, each) for p, each in ranked if p.p10_us * each <= limit or leaves_more_out(best, p)]
    near = near[: MOST_RIVALS + 1]
    draws = [p.draws_us * each for p, each in near if p.draws_us is not None]
    return tie_of([p for p, _ in near], draws)


def grid_ties(
    questions: Sequence[Question], predictions: Sequence[Prediction]
) -> dict[tuple[str, str], Tie]:
    """The ties among points that fit, by model and what is compared (`THROUGHPUT`, `PER_PRICE`).

    Args:
        questions: what was asked, in the order of the predictions.
        predictions: the answers, with their draws; those measured on this machine have none.
    """
    pairs = zip(questions, predictions, strict=True)
    points = [(question, p) for question, p in pairs if p.fits and p.draws_us is not None]
    priced = [(question, p) for question, p in points if p.price]
    ties: dict[tuple[str, str], Tie] = {}
    for model in dict.fromkeys(question.model for question, _ in points):
        for what, compared in ((THROUGHPUT, points), (PER_PRICE, priced)):
            of_model = [(question, p) for question, p in compared if question.model == model]
            per_us = [
                ((p.per_hour or 0.0) if what == PER_PRICE else 1.0) / p.global_batch
                for _, p in of_model
            ]
            if tie := nearest_tie([p for _, p in of_model], per_us):
                ties[model, what] = tie
    return ties
