"""Real exchanges of rows that are not summed, between two processes on this CPU whose sequences have different lengths."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.question.table_plan import Placement, TablePlan
from pipeline.workloads.dlrm_operators import LEARNING_RATE
from pipeline.workloads.sequence_tables import SequenceTables

ROWS, DIM, BATCH = [50, 20, 30], 8, 3
LENGTHS = ([[4, 1, 2], [4, 1, 2], [1, 1, 1]], [[1, 1, 3], [1, 1, 3], [1, 1, 1]])
"""Of each rank, lookups of its samples in each table."""

PLAN = TablePlan(
    (
        Placement("table_wise", (1,), (DIM,)),
        Placement("column_wise", (0, 1), (4, 4)),
        Placement("table_wise", (1,), (DIM,)),
    ),
    2,
)


def weight_of(table: int) -> Tensor:
    """The weight of a table before the step."""
    return torch.arange(float(ROWS[table] * DIM)).view(ROWS[table], DIM) / (100.0 + table)


def indices_of(rank: int) -> list[Tensor]:
    """What a rank looks up in each table."""
    random = torch.Generator().manual_seed(rank)
    pairs = zip(ROWS, LENGTHS[rank], strict=True)
    return [torch.randint(rows, (sum(lengths),), generator=random) for rows, lengths in pairs]


def held(table: int, columns: int, rank: int) -> slice:
    """Columns that a rank holds of a table."""
    return slice(rank * columns, (rank + 1) * columns) if columns < DIM else slice(None)


def main(rank: int) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    usual = dist.all_to_all_single

    def noted(received: Tensor, sent: Tensor, *rest: Any, **named: Any) -> Any:
        seen.append((sent.nbytes, received.nbytes))
        return usual(received, sent, *rest, **named)

    dist.all_to_all_single = noted
    means = [sum(each) / BATCH for each in LENGTHS[rank]]
    tables = SequenceTables(PLAN, rank, ROWS, means, DIM, BATCH, 0)
    for group, weight in zip(tables.groups, tables.weights, strict=True):
        parts = [weight_of(table)[:, held(table, group.columns, rank)] for table in group.tables]
        weight.copy_(torch.cat(parts))
    own = indices_of(rank)
    lengths = torch.tensor(LENGTHS[rank]).int().flatten()
    rows = tables.rows_of(torch.cat(own).int(), lengths, torch.float32)
    for table, (found, index) in enumerate(zip(rows, own, strict=True)):
        torch.testing.assert_close(found, weight_of(table)[index])
    sum(((1 + rank) * part).sum() for part in rows).backward()  # type: ignore[union-attr]
    for group, weight in zip(tables.groups, tables.weights, strict=True):
        expected = []
        for table in group.tables:
            counts = [torch.bincount(indices_of(r)[table], minlength=ROWS[table]) for r in (0, 1)]
            gradient = (counts[0] + 2 * counts[1]) / 2  # of both ranks, the mean
            whole = weight_of(table) - LEARNING_RATE * gradient[:, None]
            expected.append(whole[:, held(table, group.columns, rank)])
        torch.testing.assert_close(weight, torch.cat(expected))
    return seen
