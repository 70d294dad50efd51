"""Real exchanges of spread embedding tables in two processes on this CPU, and whether the step computes what one process does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.as_on_cuda.data_parallel import exchange_gradients
from pipeline.question.several_gpus import DdpSettings
from pipeline.question.table_plan import Placement, TablePlan
from pipeline.workloads import make_step
from pipeline.workloads.dlrm import Dlrm
from pipeline.workloads.training_step import Step

ROWS, LOOKUPS, DIM, BATCH = [7, 50, 20, 4], [2, 1, 3, 1], 8, 6

DDP = asdict(DdpSettings(broadcast_buffers=False))


def whole(rank: int) -> Placement:
    return Placement("table_wise", (rank,), (DIM,))


def parts(*columns: int) -> Placement:
    return Placement("column_wise", tuple(range(len(columns))), columns)


SHARED, COPIED = Placement("row_wise"), Placement("replicated")

PLANS = {
    "whole tables, uneven": (whole(0), whole(1), whole(0), whole(0)),
    "columns, uneven": (parts(4, 4), parts(2, 6), parts(4, 4), whole(1)),
    "rows": (SHARED, SHARED, SHARED, SHARED),
    "everything": (whole(1), SHARED, parts(6, 2), COPIED),
}
"""Plans on two ranks."""

OPS = ("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor")


def config_of(name: str, rank: int) -> dict[str, Any]:
    """Section `model` of a rank's step."""
    plan = TablePlan(PLANS[name], 2)
    return {
        "name": "tables",
        "architecture": "dlrm",
        "bottom_mlp": [5, 16, DIM],
        "top_mlp": [12, 1],
        "rows": ROWS,
        "lookups": LOOKUPS,
        "dim": DIM,
        "embedding": "fused",
        "loss": "bce_logits",
        "interaction": "cross",
        "cross_layers": 2,
        "cross_rank": 4,
        "optimizer": "sgd",
        "placed": {"plan": plan.plain(), "ranks": 2, "rank": rank},
    }


def weight_of(table: int) -> Tensor:
    """The weight of a table before the step."""
    values = torch.arange(ROWS[table] * DIM, dtype=torch.float32).view(ROWS[table], DIM)
    return 1e-4 * torch.sin(values + table)


def held(table: int, group: Any, rank: int, name: str) -> tuple[slice, slice]:
    """Rows and columns that a rank holds of a table."""
    placed = PLANS[name][table]
    if group.shared:
        height = -(-ROWS[table] // 2)
        return slice(rank * height, (rank + 1) * height), slice(None)
    before = sum(c for r, c in zip(placed.ranks, placed.columns, strict=True) if r < rank)
    return slice(None), slice(before, before + group.columns)


def each_part(step: Step, rank: int, name: str) -> list[tuple[Tensor, int, tuple[slice, slice]]]:
    """Each part of a table that a rank holds: the weight, the table, and its rows and columns."""
    found = []
    spread = step.modules[0].spread  # type: ignore[union-attr]
    for group, weight in zip(spread.groups, spread.weights, strict=True):
        begin = 0
        for table, rows in zip(group.tables, group.rows, strict=True):
            found.append((weight[begin : begin + rows], table, held(table, group, rank, name)))
            begin += rows
    return found


def alone(pool: list[Any], dense: dict[str, Tensor]) -> list[Any]:
    """Weights of all tables after one step of one process on the batches of both ranks, and the first dense gradient."""
    model = Dlrm([5, 16, DIM], [12, 1], ROWS, DIM, "fused", True, 0, "cross", (2, 4))
    model.load_state_dict({**model.state_dict(), **dense})
    assert model.fused is not None
    model.fused.data = torch.cat([weight_of(table) for table in range(len(ROWS))])
    index, offset, begin, first = [], [], 0, 0
    for table, count in enumerate(LOOKUPS):
        size = BATCH * count
        index += [batch[1][begin : begin + size].long() + first for batch in pool]
        begin, first = begin + size, first + ROWS[table]
        offset += [torch.full((2 * BATCH,), count)]
    lengths = torch.cat(offset)
    inputs, label = (torch.cat([batch[place] for batch in pool]) for place in (0, -1))
    output = model(inputs, torch.cat(index), lengths.cumsum(0) - lengths)
    torch.nn.functional.binary_cross_entropy_with_logits(output, label).backward()
    return [*model.fused.data.split(ROWS), next(model.top.parameters()).grad]


def main(rank: int) -> dict[str, list[tuple[str, int, int]]]:
    seen: list[tuple[str, int, int]] = []

    def noted(op: str, usual: Any) -> Any:
        def call(received: Tensor, sent: Tensor, *rest: Any, **named: Any) -> Any:
            seen.append((op, sent.nbytes, received.nbytes))
            return usual(received, sent, *rest, **named)

        return call

    for op in OPS:
        setattr(dist, op, noted(op, getattr(dist, op)))
    found = {}
    for name in PLANS:
        torch.manual_seed(0)
        step = make_step(config_of(name, rank), BATCH, "cpu")
        for weight, table, place in each_part(step, rank, name):
            rows = weight_of(table)[place]
            weight[: len(rows)] = rows  # the last rank may hold fewer
        replicated = step.modules[1].tables.weight if len(step.modules) > 1 else None
        if replicated is not None:
            copied = [t for t, placed in enumerate(PLANS[name]) if placed == COPIED]
            replicated.data = torch.cat([weight_of(table) for table in copied])
        dense = {key: value.clone() for key, value in step.modules[0].state_dict().items()}
        for module in step.modules:
            exchange_gradients(module, DDP)
        seen.clear()
        step.run(rank)
        *expected, top_gradient = alone(step.pool[:2], dense)
        for weight, table, place in each_part(step, rank, name):
            before, rows = weight_of(table)[place], expected[table][place]
            change = rows - before
            assert change.abs().max() > 1e-8
            torch.testing.assert_close(weight[: len(rows)] - before, change, rtol=1e-2, atol=1e-10)
        gradient = next(step.modules[0].top.parameters()).grad  # type: ignore[union-attr]
        torch.testing.assert_close(gradient, top_gradient, rtol=1e-4, atol=1e-6)
        found[name] = seen[3:]  # the first three: indices of the first step
    return found
