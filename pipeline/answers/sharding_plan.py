"""Which plan of spread tables is fastest: simple plans and balanced ones, each simulated as a whole step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.answers.engine import Answer, engine
from pipeline.arrays import Array
from pipeline.errors import ConfigError
from pipeline.prediction import Prediction
from pipeline.question.question import Question, ask, with_tables
from pipeline.question.settings import written
from pipeline.question.table_plan import AUTO, PLANS, REPLICATED, TablePlan, least_loads


@dataclass(frozen=True)
class ShardingPlan:
    """The fastest plan, and those that it was compared with.

    Attributes:
        name: of the fastest plan.
        answers: of all plans, by name.
    """

    name: str
    answers: dict[str, Answer]

    @property
    def question(self) -> Question:
        """The step with the fastest plan."""
        return self.answers[self.name].question

    @property
    def prediction(self) -> Prediction:
        """The prediction of this step."""
        return self.answers[self.name].whole()

    @property
    def plan(self) -> TablePlan:
        """Where the tables are."""
        return self.question.table_plan

    @cached_property
    def work(self) -> Array:
        """Of each rank: µs of lookups and of exchange, bytes of tables, shape (ranks, 3)."""
        return self.question.table_work.of_ranks(self.plan)

    @cached_property
    def bound_us(self) -> float:
        """Step time of ranks with the least lookups and exchange (`least_loads`): no plan of halved tables is faster."""
        of, placed = self.question.table_work, self.plan.placements
        spread = [number for number, each in enumerate(placed) if each.kind != REPLICATED]
        least = least_loads(of.tables.dim, lambda columns: of.costs(columns)[spread], of.ranks)
        lost = float((self.work[:, :2].max(axis=0) - least).sum())
        return self.prediction.predicted_us - max(lost, 0.0)

    @property
    def summary(self) -> str:
        """What was found, in a sentence."""
        step, slower = self.prediction.predicted_us, self.over("round_robin")
        gap = step / self.bound_us - 1.0
        text = f"{self.name} takes {step / 1e3:,.2f} ms"
        text += f"; ranks as even as cuts allow would be {gap:.1%} faster"
        return text if slower is None else f"{text}; round_robin takes {slower:.2f} times as long"

    def over(self, name: str) -> float | None:
        """Step time of another plan over that of the fastest; None where it cannot be predicted."""
        other = self.answers[name].prediction
        return None if other is None else other.predicted_us / self.prediction.predicted_us

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the fastest plan by its placements, the step time of all plans, and the work of each rank."""
        ranks = [
            {"rank": rank, "lookups_us": us, "exchange_us": moved, "table_bytes": int(size)}
            for rank, (us, moved, size) in enumerate(self.work.tolist())
        ]
        return {
            "sharding": self.name,
            "step_us": self.prediction.predicted_us,
            "bound_us": self.bound_us,
            "plans": self.rows(),
            "ranks": ranks,
            "placements": [
                {"table": n, "kind": kind, "ranks": on, "columns": columns}
                for n, (kind, on, columns) in enumerate(self.plan.plain())
            ],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each plan: step time, imbalance and memory, or why there is none."""
        found = []
        for name, answer in self.answers.items():
            row = answer.as_row()
            others = ("imbalance", "memory_bytes", "fits", "unpredicted")
            step = {"sharding": name, "step_us": row.get("predicted_us")}
            found.append(step | {key: row.get(key) for key in others})
        return found


def plan_sharding(gpu: str, model: str, **overrides: Any) -> ShardingPlan:
    """The fastest plan of spread tables: `plan_sharding(gpu="H100", model="dlrm_dcnv2", devices=8)`.

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload with embedding tables.
        overrides: any other override; `.` is written `__`.

    Raises:
        ConfigError: as `find_sharding`.
    """
    given = {"gpu": gpu, "model": model, **overrides}
    return find_sharding(
        [f"{key.replace('__', '.')}={written(value)}" for key, value in given.items()]
    )


def find_sharding(
    overrides: Sequence[str], on_plan: Callable[[str], object] = lambda _: None
) -> ShardingPlan:
    """Find the fastest plan of the tables of a step.

    Args:
        overrides: of one point on several GPUs; `parallel=hybrid` may be left out.
        on_plan: called with the name of each plan before it is simulated.

    Raises:
        ConfigError: the step has no tables to spread, names its plan, or fits with no plan.
    """
    if any(text.startswith("parallel.sharding=") for text in overrides):
        raise ConfigError("parallel.sharding=...: it is what is looked for; leave it out")
    hybrid = [text for text in overrides if text != "parallel=hybrid"] + ["parallel=hybrid"]
    asked = ask([*hybrid, "parallel.sharding=round_robin"])
    if asked.ranks is None:
        raise ConfigError("devices=1: one GPU holds all tables; give devices=8, for example")
    answers: dict[str, Answer] = {}
    for name in PLANS:
        on_plan(name)
        parallel = replace(asked.ranks.parallel, sharding=name)
        question = replace(asked, ranks=replace(asked.ranks, parallel=parallel))
        try:
            planned = with_tables(question)
            (answers[name],) = engine().predict([planned], with_interval=False)
        except ConfigError as error:
            answers[name] = Answer(question, error=error)
    steps = {
        name: answer.prediction.predicted_us
        for name, answer in answers.items()
        if answer.prediction is not None and answer.prediction.fits
    }
    if not steps:
        tried = answers[AUTO].reason or "no plan fits the memory of these GPUs"
        raise ConfigError(f"{tried}; take more GPUs, or a smaller batch_size")
    return ShardingPlan(min(steps, key=lambda name: steps[name]), answers)
