"""What a plan asks and finds: objective, constraints, points with their costs, and the front of time against cost or energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.ties import Tie
from pipeline.errors import InputError
from pipeline.prediction import Prediction
from pipeline.prediction_parts import JOULES_PER_KWH
from pipeline.question.question import Question
from pipeline.readable import amount, duration, html_rows, in_gib, in_ms, listed, prefix_of, rate


class Objective(StrEnum):
    """What is best."""

    step = "step"
    samples_per_s = "samples_per_s"
    time_per_epoch = "time_per_epoch"
    cost_per_epoch = "cost_per_epoch"
    samples_per_dollar = "samples_per_dollar"
    energy_per_epoch = "energy_per_epoch"
    samples_per_kwh = "samples_per_kwh"

    @classmethod
    def named(cls, name: str) -> Objective:
        """The objective of a name.

        Raises:
            InputError: there is none.
        """
        try:
            return cls(name)
        except ValueError:
            raise InputError(
                f"unknown objective {name!r}: choose one of {', '.join(cls)}"
            ) from None

    @property
    def of_cost(self) -> bool:
        """Whether it needs a price."""
        return self in (Objective.cost_per_epoch, Objective.samples_per_dollar)

    @property
    def of_energy(self) -> bool:
        """Whether it is the energy of the GPUs."""
        return self in (Objective.energy_per_epoch, Objective.samples_per_kwh)

    @property
    def spent(self) -> str:
        """What the front has beside time."""
        return "energy" if self.of_energy else "cost"


@dataclass(frozen=True)
class Limits:
    """Constraints on a plan; None for no constraint.

    Raises:
        InputError: a constraint is not above 0, or an epoch has no number of samples.
    """

    samples: int | None = None
    """Samples of an epoch."""
    memory_gib: float | None = None
    """Largest memory need, below that of the GPU."""
    budget: float | None = None
    """Largest cost of an epoch, in the currency of the prices."""
    deadline_s: float | None = None
    """Longest time of an epoch."""
    global_batch: int | None = None
    """Samples of one update of the weights; smaller batches are accumulated."""
    max_watts: float | None = None
    """Largest mean power of all GPUs over an update, W."""

    def __post_init__(self) -> None:
        for name, text in _LIMIT_NAMES.items():
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise InputError(f"{text} {value:g}: give a number above 0")
        if self.samples is None and (self.budget is not None or self.deadline_s is not None):
            raise InputError("--budget and --deadline hold for an epoch: give its --samples")


_LIMIT_NAMES = {
    "samples": "--samples", "memory_gib": "--memory", "budget": "--budget",
    "deadline_s": "--deadline", "global_batch": "--global-batch",
    "max_watts": "--max-watts",
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A predicted point of a plan."""

    question: Question
    prediction: Prediction
    batches: int
    """Batches that are accumulated for one update."""
    us_per_sample: float
    cost_per_sample: float | None
    """In the currency of the prices; None without a price."""
    joules_per_sample: float | None
    """Of all GPUs; None where it is not predicted."""
    time: float
    """Objective `step`: µs of an update; else the same as `us_per_sample`."""
    cost: float
    """Cost over the same work as `time`, infinite without a price; joules for an objective of energy."""
    wins: float | None = None
    """Share of the draws in which the point is the best of the contenders."""
    meets: float | None = None
    """Share of the draws in which it meets deadline and budget; None without them."""

    @property
    def replicas(self) -> int:
        """Replicas of the model."""
        return self.question.ranks.replicas if self.question.ranks else 1

    def as_dict(self, samples: int | None) -> dict[str, Any]:
        """Plain values for JSON and tables."""
        p, question, cost = self.prediction, self.question, self.cost_per_sample
        joules, power = self.joules_per_sample, p.power
        kept = ("p10_us", "p90_us", "memory_bytes", "tight", "bound", "host", "evidence")
        return {
            "gpu": question.gpu.name,
            "model": question.model,
            "batch_size": question.batch_size,
            "devices": question.devices,
            "global_batch": question.global_batch * self.batches,
            "layout": p.several and p.several.layout,
            "overrides": list(question.overrides),
            "accumulated": self.batches,
            "step_us": p.predicted_us,
            **{name: getattr(p, name) for name in kept},
            "samples_per_s": 1e6 / self.us_per_sample,
            "samples_per_dollar": None if cost is None else 1 / cost,
            "time_per_epoch_s": samples and samples * self.us_per_sample / 1e6,
            "cost_per_epoch": None if samples is None or cost is None else samples * cost,
            "mean_w": joules and 1e6 * joules / self.us_per_sample / question.devices,
            "samples_per_kwh": joules and JOULES_PER_KWH / joules,
            "energy_per_epoch_kwh": joules and samples and samples * joules / JOULES_PER_KWH,
            "clock_mhz": power and power.clock_mhz,
            "clock_bound": power and power.binds,
            "power_evidence": power and power.evidence,
            "wins": self.wins,
            "meets": self.meets,
        }


@dataclass(frozen=True, repr=False)
class Plan:
    """The result of a search."""

    objective: Objective
    limits: Limits
    best: Choice
    front: tuple[Choice, ...]
    """Points that no other point beats in both time and cost (energy, where that is the objective), fastest first."""
    contenders: tuple[Choice, ...]
    """The best points, best first, with their share of wins."""
    lost: dict[str, int]
    """Why the other points lost: number of points by reason."""
    points: int
    predicted: int
    """Number of points that were predicted: those that fit and, where it is needed, have a price."""
    currency: str
    prices: tuple[str, ...] = ()
    """Whose prices these are, one line each."""
    hosts: str | None = None
    """A line on hosts that differ among the contenders, from `host_note`."""
    tie: Tie | None = None
    """The contenders that tie with the best; None where it wins surely."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        samples = self.limits.samples
        return {
            "objective": str(self.objective),
            "points": self.points,
            "predicted": self.predicted,
            "currency": self.currency,
            "best": self.best.as_dict(samples),
            "front": [choice.as_dict(samples) for choice in self.front],
            "contenders": [choice.as_dict(samples) for choice in self.contenders],
            "lost": self.lost,
            "prices": list(self.prices),
            "hosts": self.hosts,
            "tie": None if self.tie is None else self.tie.as_dict(),
        }

    @property
    def _accumulates(self) -> bool:
        return self.limits.global_batch is not None and any(
            choice.batches > 1 for choice in (*self.contenders, *self.front)
        )

    @property
    def _asks_power(self) -> bool:
        asked = self.objective.of_energy or self.limits.max_watts is not None
        return asked or any(choice.prediction.run_at for choice in self.contenders)

    def table(self) -> pd.DataFrame:
        """The contenders, a row each."""
        return pd.DataFrame([choice.as_dict(self.limits.samples) for choice in self.contenders])

    def rows(self, choices: Sequence[Choice]) -> list[dict[str, str]]:
        """Choices as text, a column per key with its unit."""
        rows = []
        prefix, factor = prefix_of(
            max(1 / choice.cost_per_sample if choice.cost_per_sample else 0.0 for choice in choices)
        )
        several = any(choice.replicas > 1 for choice in choices)
        for choice in choices:
            values, p = choice.as_dict(self.limits.samples), choice.prediction
            dollars, cost = values["samples_per_dollar"], values["cost_per_epoch"]
            epoch_s, joules = values["time_per_epoch_s"], choice.joules_per_sample
            watts = self._asks_power and joules is not None
            row = {
                "GPU": choice.question.gpu.name,
                "batch": f"{choice.question.batch_size:,}",
                "options": " ".join(choice.question.overrides),
                "dp": str(choice.replicas) if several else "",
                "accumulated": f"{choice.batches} ×" if self._accumulates else "",
                "step\nms": p.step_ms,
                "p10-p90\nms": f"{in_ms(p.p10_us)}-{in_ms(p.p90_us)}",
                "samples/s": rate(values["samples_per_s"]),
                f"{prefix} samples".strip() + f"\nper {self.currency}": (
                    "" if dollars is None else f"{dollars / factor:.3g}"
                ),
                "epoch": "" if epoch_s is None else duration(epoch_s),
                f"{self.currency}\nan epoch": "" if cost is None else amount(cost),
                "W\nin all": f"{p.devices * values['mean_w']:,.0f}" if watts else "",
                "samples\nper kWh": rate(values["samples_per_kwh"]) if watts else "",
                "memory\nGiB": in_gib(p.memory_bytes) + (", tight" if p.tight else ""),
                "bound": p.bound,
                "meets": "" if choice.meets is None else f"{choice.meets:.0%}",
                "wins": "" if choice.wins is None else f"{choice.wins:.0%}",
            }
            rows.append(row)
        kept = [name for name in rows[0] if name == "options" or any(row[name] for row in rows)]
        return [{name: row[name] for name in kept} for row in rows]

    @property
    def summary(self) -> str:
        """One sentence: the winner or those that tie, and how much was searched."""
        best, found = self.best, f"({self.points:,} combinations, {self.predicted:,} predicted)"
        options = " ".join((f"batch_size={best.question.batch_size}", *best.question.overrides))
        point = f"{self.objective}: {best.question.model} on {best.question.gpu.name} {options}"
        if self.tie is not None:
            others = [
                f"{p.gpu} batch_size={p.batch_size} {p.named}".rstrip()
                for p in self.tie.predictions[1:]
            ]
            return f"a tie in {', '.join([point, *others])}; {self.tie.reason} {found}"
        wins = "" if best.wins is None else f", best in {best.wins:.0%} of draws of the errors"
        if best.meets is not None:
            wins += f", within the limits in {best.meets:.0%}"
        if lacking := best.prediction.lower_bound:
            wins += f"; a lower bound, without {listed(lacking)}"
        return f"best {point}{wins} {found}"

    def __repr__(self) -> str:
        return f"<Plan: {self.summary}>"

    def _repr_html_(self) -> str:
        return html_rows(self.summary, self.rows(self.contenders))
