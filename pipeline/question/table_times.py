"""About how long the lookups of parts of embedding tables take, and the exchange of their rows: what plans are made by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Array
from pipeline.question.index_distributions import UNIFORM, distinct_rows, popular_rows
from pipeline.question.table_plan import Tables

SORTED_BYTES = 40.0
"""Bytes that FBGEMM's update moves for each index (linear index, sort of keys and places, runs)."""

L2_SPEED = 3.0
"""Bandwidth of L2 over that of memory, of a usual GPU."""


SMALL_WIDTH_FACTORS = ((32, 1.55), (64, 1.1))
"""Empirical slowdown of narrow rows, as (largest D, factor); wider rows have factor 1 (Lin et al.)."""


def small_width_factor(width: Array) -> Array:
    """Slowdown factor of narrow rows (`SMALL_WIDTH_FACTORS`), shape (rows,)."""
    factor = np.ones_like(width)
    for limit, value in reversed(SMALL_WIDTH_FACTORS):
        factor = np.where(width <= limit, value, factor)
    return factor


@dataclass(frozen=True)
class Machine:
    """What times of lookups and exchanges depend on.

    Attributes:
        memory_gb_per_s: bandwidth of a GPU's memory.
        l2_bytes: of a GPU.
        memory_bytes: usable memory of a GPU.
        link_gb_per_s: at which a GPU sends to others.
    """

    memory_gb_per_s: float
    l2_bytes: float
    memory_bytes: float
    link_gb_per_s: float


def small_tables(tables: Tables, batch: int, element: int) -> list[int]:
    """The tables whose dense gradients have fewer bytes than the rows that a rank exchanges for its `batch` samples."""
    return [table for table, rows in enumerate(tables.rows) if 4 * rows < batch * element]


def part_us(tables: Tables, samples: int, machine: Machine, columns: int, element: int) -> Array:
    """About what a part of each table with so many columns takes (`Costs`).

    Traffic as of `pipeline.families.embedding_lookups`: rows that stay in L2, also the most popular, are read from memory once.

    Args:
        tables: the tables.
        samples: of all ranks.
        machine: what the time depends on.
        columns: of the parts.
        element: bytes of an exchanged element.
    """
    rows, looked_up = np.array(tables.rows, float), samples * np.array(tables.lookups)
    row = 32.0 * np.ceil(columns * 4.0 / 32.0)
    distinct = -rows * np.expm1(-looked_up / rows)
    popular = np.zeros((len(rows), 2))  # share of lookups that stay in L2, and their rows
    for table, kind in enumerate(tables.distributions):
        if kind != UNIFORM:
            size, uses = tables.rows[table], looked_up[table]
            distinct[table] = distinct_rows(size, uses, kind)
            popular[table] = popular_rows(size, uses, kind, machine.l2_bytes / row)
    sums = np.full(len(rows), float(samples)) if tables.pooled else looked_up
    share, held = popular.T
    far = np.minimum(looked_up * (1.0 - share) + held, looked_up)
    missed = np.where(rows * row < machine.l2_bytes, distinct, far) * row
    forward = missed + looked_up * row / L2_SPEED + sums * row
    update = sums * row + looked_up * (row / L2_SPEED + SORTED_BYTES)
    update += 2.0 * (1 + tables.states) * distinct * row
    moved = 2.0 * sums * columns * element
    rates = [machine.memory_gb_per_s, machine.link_gb_per_s]
    return np.stack([forward + update, moved], 1) / rates / 1e3
