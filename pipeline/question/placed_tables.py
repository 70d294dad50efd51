"""The tables of a recommendation model on the ranks of a question: the plan that it names, and the ranks with different work.

Section `model` of such a question has `placed`: the plan of its tables (`TablePlan.plain`), the number of ranks, and the rank whose
step it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pipeline.arrays import Array
from pipeline.errors import ConfigError, LayoutError
from pipeline.hardware.spec import GpuSpec
from pipeline.question.embedding_tables import STATES, sequences, table_optimizer, tables
from pipeline.question.index_distributions import distributions
from pipeline.question.several_gpus import Ranks
from pipeline.question.table_plan import (
    AUTO,
    OTHER_BYTES,
    REPLICATED,
    ROW_WISE,
    SIMPLE,
    WITH_COPIES,
    TablePlan,
    Tables,
    balanced,
)
from pipeline.question.table_plan_files import read_plan
from pipeline.question.table_times import Machine, part_us, small_tables, small_width_factor

STAND_INS = "steptime_features"
"""Namespace of stand-ins of FBGEMM's operators on features (`pipeline.workloads.spread_tables`), which capture names."""

ALIKE = 0.98
"""Share of its work from which a rank counts as one that is simulated."""


@dataclass(frozen=True)
class Group:
    """Parts of tables of one width that one fused lookup reads.

    Attributes:
        tables: number of the table of each part.
        rows: of each part.
        lookups: of a sample in each part, the mean.
        columns: of all parts.
        shared: whether all ranks hold other rows of these tables, so that the sums of a sample are parts of sums.
    """

    tables: tuple[int, ...]
    rows: tuple[int, ...]
    lookups: tuple[float, ...]
    columns: int
    shared: bool = False


def groups_of(
    plan: TablePlan, rank: int, rows: Sequence[int], lookups: Sequence[float], dim: int
) -> list[Group]:
    """What a rank looks up: its parts by width, then its rows of the tables that all ranks share."""
    found, own = [], plan.parts[rank]
    for columns in dict.fromkeys(width for _, width in own):
        tables = tuple(table for table, width in own if width == columns)
        heights = tuple(rows[table] for table in tables)
        counts = tuple(float(lookups[table]) for table in tables)
        found.append(Group(tables, heights, counts, columns))
    if shared := tuple(plan.of_kind(ROW_WISE)):
        heights = tuple(-(-rows[table] // plan.ranks) for table in shared)
        counts = tuple(lookups[table] / plan.ranks for table in shared)
        found.append(Group(shared, heights, counts, dim, True))
    return found


def placed_by(config: Mapping[str, Any]) -> tuple[TablePlan, int] | None:
    """The plan and the rank of section `model`; None where tables are not spread."""
    if "placed" not in config:
        return None
    of = config["placed"]
    return TablePlan.of_plain(of["plan"], int(of["ranks"])), int(of["rank"])


def tables_of(model: Mapping[str, Any]) -> Tables:
    """The tables of section `model`."""
    rows, lookups = tables(model)
    states = 0 if model.get("mode") == "inference" else STATES.get(table_optimizer(model), 0)
    of = tuple(map(float, lookups))
    kinds = tuple(distributions(model, len(rows)))
    return Tables(tuple(rows), of, int(model["dim"]), states, not sequences(model), kinds)


@dataclass(frozen=True)
class TableWork:
    """What the tables of section `model` take on the ranks of a question.

    Attributes:
        tables: the tables.
        batch_size: samples of a rank.
        ranks: number of ranks.
        machine: what times depend on.
        element: bytes of an exchanged element.
    """

    tables: Tables
    batch_size: int
    ranks: int
    machine: Machine
    element: int

    @classmethod
    def of(cls, model: Mapping[str, Any], batch_size: int, gpu: GpuSpec, ranks: Ranks) -> TableWork:
        """The work of a workload; over several nodes, NICs are the slower link."""
        cluster, link = ranks.cluster, ranks.cluster.link_gb_per_s(gpu)
        if ranks.nodes > 1:
            share = cluster.nics_per_node / cluster.gpus_per_node
            link = min(link, share * cluster.nic_gb_per_s)
        room = float(gpu.usable_memory_bytes)
        machine = Machine(gpu.peak_dram_gb_per_s(), float(gpu.l2_bytes), room, link)
        element = 2 if model.get("dtype") in ("bf16", "fp16") else 4
        return cls(tables_of(model), batch_size, ranks.devices, machine, element)

    def costs(self, columns: int, samples: int | None = None) -> Array:
        """Times of a part of each table with so many columns, as of `part_us`; narrow rows are slower. Samples: of all ranks."""
        samples = samples or self.batch_size * self.ranks
        us = part_us(self.tables, samples, self.machine, columns, self.element)
        return us * [float(small_width_factor(np.array(columns))), 1.0]

    def plan(self, sharding: str) -> TablePlan:
        """The plan that `parallel.sharding` names: `AUTO`, `WITH_COPIES`, one of `SIMPLE`, or the path of a file.

        Raises:
            ConfigError: there is no such plan, or the file's does not place these tables on these ranks.
            LayoutError: no balanced plan fits.
        """
        of, ranks = self.tables, self.ranks
        if sharding not in (AUTO, WITH_COPIES):
            simple = SIMPLE.get(sharding)
            plan = simple(of, ranks) if simple else read_plan(sharding, of, ranks)
            if not of.pooled and plan.of_kind(ROW_WISE):
                raise ConfigError(
                    f"parallel.sharding={sharding}: row_wise tables with rows that are not summed"
                    " are not predicted; take auto or column_wise"
                )
            return plan
        small = small_tables(of, self.batch_size, self.element)
        copied, room = small if sharding == WITH_COPIES else (), self.machine.memory_bytes
        try:
            return balanced(of, ranks, self.costs, room - OTHER_BYTES, copied)
        except LayoutError:  # there may be room for a small batch
            return balanced(of, ranks, self.costs, room, copied)

    def lookups(self, plan: TablePlan) -> Array:
        """µs of lookups, µs of exchange and bytes of each table on each rank, shape (3, ranks, tables)."""
        of, costs = self.tables, cache(self.costs)
        work = np.zeros((3, self.ranks, len(of.rows)))
        for rank, parts in enumerate(plan.parts):
            for table, columns in parts:
                work[:, rank, table] = *costs(columns)[table], of.bytes[table] * columns / of.dim
        shared, copied = plan.of_kind(ROW_WISE), plan.of_kind(REPLICATED)
        whole = costs(of.dim)[shared]
        rows = whole[:, 0] / self.ranks, whole[:, 1], of.bytes[shared] / self.ranks
        work[:, :, shared] = np.stack(rows)[:, None]  # all ranks send sums of all samples
        own = self.costs(of.dim, self.batch_size)[copied, 0]
        work[:, :, copied] = np.stack([own, 0.0 * own, of.bytes[copied]])[:, None]
        return work

    def of_ranks(self, plan: TablePlan) -> Array:
        """What each rank has to do: µs of lookups, µs of exchange, and bytes that it holds, shape (ranks, 3)."""
        work: Array = self.lookups(plan).sum(axis=2).T
        return work


def roles(work: Array) -> tuple[int, ...]:
    """The ranks to simulate: the one with most to do first, the one with least last.

    A rank that has less of everything than one that is simulated never arrives last, and is left out, but for the last.

    Args:
        work: as of `TableWork.of_ranks`.
    """
    us = work[:, :2]
    order = np.argsort(-us.sum(axis=1), kind="stable").tolist()
    chosen: list[int] = []
    for rank in order:
        if not (us[chosen] >= ALIKE * us[rank]).all(axis=1).any():
            chosen.append(rank)
    alike = np.allclose(us[order[-1]], us[chosen[0]])
    return tuple(dict.fromkeys([*chosen, *([] if alike else order[-1:])]))
