"""The tables of a recommendation model on the ranks of a question: the plan that it names, and the ranks with different work.

Section `model` of such a question has `placed`: the plan of its tables (`TablePlan.plain`), the number of ranks, and the rank whose
step it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.arrays import Array
from pipeline.errors import ConfigError, LayoutError
from pipeline.hardware.clusters import Cluster
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
from pipeline.question.table_times import Machine, part_us, small_tables

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


def machine_of(gpu: GpuSpec, cluster: Cluster, nodes: int) -> Machine:
    """What times of lookups and exchanges depend on; over several nodes, NICs are the slower link."""
    link = cluster.link_gb_per_s(gpu)
    if nodes > 1:
        share = cluster.nics_per_node / cluster.gpus_per_node
        link = min(link, share * cluster.nic_gb_per_s)
    room = float(gpu.usable_memory_bytes)
    return Machine(gpu.peak_dram_gb_per_s(), float(gpu.l2_bytes), room, link)


def element_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of an exchanged element."""
    return 2 if model.get("dtype") in ("bf16", "fp16") else 4


def plan_of(
    sharding: str, model: Mapping[str, Any], samples: int, ranks: int, machine: Machine
) -> TablePlan:
    """The plan that `parallel.sharding` names.

    Args:
        sharding: `AUTO`, `WITH_COPIES`, one of `SIMPLE`, or the path of a file.
        model: section `model`.
        samples: of all ranks.
        ranks: number of ranks.
        machine: what times depend on.

    Raises:
        ConfigError: there is no such plan, or the file's does not place these tables on these ranks.
        LayoutError: no balanced plan fits.
    """
    of = tables_of(model)
    if sharding not in (AUTO, WITH_COPIES):
        simple = SIMPLE.get(sharding)
        plan = simple(of, ranks) if simple else read_plan(sharding, of, ranks)
        if not of.pooled and plan.of_kind(ROW_WISE):
            raise ConfigError(
                f"parallel.sharding={sharding}: row_wise tables with rows that are not summed are"
                " not predicted; take auto or column_wise"
            )
        return plan
    element = element_bytes(model)
    copied = small_tables(of, samples // ranks, element) if sharding == WITH_COPIES else ()

    def costs(columns: int) -> Array:
        return part_us(of, samples, machine, columns, element)

    try:
        return balanced(of, ranks, costs, machine.memory_bytes - OTHER_BYTES, copied)
    except LayoutError:  # there may be room for a small batch
        return balanced(of, ranks, costs, machine.memory_bytes, copied)


def lookups_of_ranks(
    plan: TablePlan, of: Tables, samples: int, machine: Machine, element: int
) -> Array:
    """µs of lookups, µs of exchange and bytes of each table on each rank, shape (3, ranks, tables)."""
    work = np.zeros((3, plan.ranks, len(of.rows)))
    times: dict[int, Array] = {}
    for rank, parts in enumerate(plan.parts):
        for table, columns in parts:
            if columns not in times:
                times[columns] = part_us(of, samples, machine, columns, element)
            work[:, rank, table] = *times[columns][table], of.bytes[table] * columns / of.dim
    shared, copied = plan.of_kind(ROW_WISE), plan.of_kind(REPLICATED)
    whole = part_us(of, samples, machine, of.dim, element)[shared]
    rows = whole[:, 0] / plan.ranks, whole[:, 1], of.bytes[shared] / plan.ranks
    work[:, :, shared] = np.stack(rows)[:, None]  # all ranks send sums of all samples
    own = part_us(of, samples // plan.ranks, machine, of.dim, element)[copied, 0]
    work[:, :, copied] = np.stack([own, 0.0 * own, of.bytes[copied]])[:, None]
    return work


def work_of_ranks(
    plan: TablePlan, of: Tables, samples: int, machine: Machine, element: int
) -> Array:
    """What ranks have to do: µs of lookups, µs of exchange, bytes that they hold; shape (ranks, 3)."""
    work: Array = lookups_of_ranks(plan, of, samples, machine, element).sum(axis=2).T
    return work


def roles(work: Array) -> tuple[int, ...]:
    """The ranks to simulate: the one with most to do first, the one with least last.

    A rank that has less of everything than one that is simulated never arrives last, and is left out, but for the last.

    Args:
        work: as of `work_of_ranks`.
    """
    us = work[:, :2]
    order = np.argsort(-us.sum(axis=1), kind="stable").tolist()
    chosen: list[int] = []
    for rank in order:
        if not (us[chosen] >= ALIKE * us[rank]).all(axis=1).any():
            chosen.append(rank)
    alike = np.allclose(us[order[-1]], us[chosen[0]])
    return tuple(dict.fromkeys([*chosen, *([] if alike else order[-1:])]))


def placed_tables(
    model: Mapping[str, Any], batch_size: int, gpu: GpuSpec, ranks: Ranks
) -> dict[str, Any]:
    """The entry `placed` of section `model`: the plan that a question names, for its first rank to simulate.

    Args:
        model: section `model`.
        batch_size: samples of a rank.
        gpu: of each rank.
        ranks: how they share the work.

    Raises:
        ConfigError: as `plan_of`.
        LayoutError: as `plan_of`.
    """
    machine = machine_of(gpu, ranks.cluster, ranks.nodes)
    count = ranks.devices
    plan = plan_of(ranks.parallel.sharding, model, batch_size * count, count, machine)
    work = work_of_ranks(plan, tables_of(model), batch_size * count, machine, element_bytes(model))
    return {"plan": plan.plain(), "ranks": count, "rank": roles(work)[0]}


def work_of(model: Mapping[str, Any], batch_size: int, gpu: GpuSpec, ranks: Ranks) -> Array:
    """`lookups_of_ranks` of section `model` with `placed`; arguments as of `placed_tables`."""
    plan = TablePlan.of_plain(model["placed"]["plan"], ranks.devices)
    of, machine = tables_of(model), machine_of(gpu, ranks.cluster, ranks.nodes)
    return lookups_of_ranks(plan, of, batch_size * ranks.devices, machine, element_bytes(model))


def most_tables_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of tables, without their optimizer, that the rank with most of them holds more than that of `placed`."""
    placed, of = placed_by(model), tables_of(model)
    if placed is None:
        return 0
    plan, rank = placed
    held = [sum(of.rows[table] * columns for table, columns in parts) for parts in plan.parts]
    return 4 * (max(held) - held[rank])
