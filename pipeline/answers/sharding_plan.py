"""Which plan of spread tables is fastest: simple plans and balanced ones, each simulated as a whole step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.answers.engine import Answer, engine
from pipeline.arrays import Array
from pipeline.errors import ConfigError
from pipeline.prediction import Prediction
from pipeline.question.placed_tables import element_bytes, machine_of, tables_of
from pipeline.question.question import Question, ask, with_tables
from pipeline.question.settings import written
from pipeline.question.table_plan import AUTO, PLANS, REPLICATED, TablePlan, Tables, least_loads
from pipeline.question.table_times import part_us


@dataclass(frozen=True)
class ShardingPlan:
    """The fastest plan, and those that it was compared with.

    Attributes:
        question: the step with the fastest plan.
        prediction: of this step.
        answers: of all plans, by name.
        plan: where the tables are.
        tables: the tables.
        work: of each rank: µs of lookups and of exchange, bytes of tables (`placed_tables.work_of_ranks`), shape (ranks, 3).
        bound_us: step time of ranks with the least lookups and exchange (`least_loads`): no plan of halved tables is faster.
    """

    question: Question
    prediction: Prediction
    answers: dict[str, Answer]
    plan: TablePlan
    tables: Tables
    work: Array
    bound_us: float

    @property
    def name(self) -> str:
        """Name of the fastest plan."""
        assert self.question.ranks is not None
        return self.question.ranks.parallel.sharding

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
        other = self.answers[name].prediction if name in self.answers else None
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
        rows = []
        for name, answer in self.answers.items():
            p = answer.prediction
            several = p.several if p else None
            rows.append(
                {
                    "sharding": name,
                    "step_us": p.predicted_us if p else None,
                    "imbalance": several.imbalance if several else None,
                    "memory_bytes": p.memory_bytes if p else None,
                    "fits": p.fits if p else None,
                    "unpredicted": answer.reason,
                }
            )
        return rows


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
        answers[name] = _answered(asked, name)
    held = {n: a for n, a in answers.items() if a.prediction is not None and a.prediction.fits}
    if not held:
        tried = answers[AUTO].reason or "no plan fits the memory of these GPUs"
        raise ConfigError(f"{tried}; take more GPUs, or a smaller batch_size")
    best = min(held.values(), key=lambda answer: answer.whole().predicted_us)
    return _found(best, answers)


def _answered(asked: Question, name: str) -> Answer:
    """The answer of a step with a plan."""
    assert asked.ranks is not None
    parallel = replace(asked.ranks.parallel, sharding=name)
    question = replace(asked, ranks=replace(asked.ranks, parallel=parallel))
    try:
        question = with_tables(question)
    except ConfigError as error:
        return Answer(question, error=error)
    (answer,) = engine().predict([question], with_interval=False)
    return answer


def _found(best: Answer, answers: dict[str, Answer]) -> ShardingPlan:
    question, ranks = best.question, best.question.ranks
    assert ranks is not None
    plan = TablePlan.of_plain(question.workload["placed"]["plan"], ranks.devices)
    of, machine = tables_of(question.workload), machine_of(question.gpu, ranks.cluster, ranks.nodes)
    samples, element = question.batch_size * ranks.devices, element_bytes(question.workload)
    work = question.work_of_ranks
    spread = [n for n, placed in enumerate(plan.placements) if placed.kind != REPLICATED]

    def costs(columns: int) -> Array:
        return part_us(of, samples, machine, columns, element)[spread]

    lost = (work[:, :2].max(axis=0) - least_loads(of.dim, costs, ranks.devices)).sum()
    bound = best.whole().predicted_us - max(float(lost), 0.0)
    return ShardingPlan(question, best.whole(), answers, plan, of, work, bound)
