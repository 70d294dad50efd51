"""Which ranks hold which embedding tables: a plan of placements, the simple plans, and one that balances the ranks.

A table is held whole by one rank (table-wise) or by every rank (replicated). Or several ranks hold some of its columns each
(column-wise), or all ranks some of its rows (row-wise). These are TorchRec's words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.errors import ConfigError, LayoutError

TABLE_WISE, COLUMN_WISE, ROW_WISE, REPLICATED = (
    "table_wise", "column_wise", "row_wise", "replicated",
)  # fmt: skip
KINDS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, REPLICATED)

AUTO, WITH_COPIES = "auto", "auto_replicated"
"""Plans by times: of all tables, and with small tables on every rank."""

NARROW, SECTOR = 16, 8
"""Columns that are cut only where they take more than `NARROW_SHARE`, and columns of a sector, which are never cut."""

CUT_SHARES, NARROW_SHARE = (1.0, 0.5, 0.25, 0.125, 0.0625), 2.0
"""Shares of the fair time of a rank, of lookups and exchange, from which tables are cut."""

OTHER_BYTES = 4e9
"""Memory that a balanced plan leaves on each GPU for all but tables, bytes."""


@dataclass(frozen=True)
class Placement:
    """Where a table is.

    Attributes:
        kind: one of `KINDS`.
        ranks: that hold a part of it; empty for all.
        columns: that each of these ranks holds; empty where each holds all.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tables:
    """The tables of a model.

    Attributes:
        rows: of each table.
        lookups: of a sample in each table, the mean.
        dim: columns of all.
        states: tensors of a table's size that its optimizer keeps.
        pooled: whether the rows of a sample are summed; otherwise each is exchanged.
        distributions: of the indices of each table (`index_distributions`); empty: uniform.
    """

    rows: tuple[int, ...]
    lookups: tuple[float, ...]
    dim: int
    states: int = 0
    pooled: bool = True
    distributions: tuple[str, ...] = ()

    @property
    def bytes(self) -> Array:
        """Bytes of each table in fp32 with its optimizer's states, shape (tables,)."""
        return 4.0 * (1 + self.states) * self.dim * np.array(self.rows, float)


@dataclass(frozen=True)
class TablePlan:
    """A placement of each table.

    Attributes:
        placements: one of each table.
        ranks: number of ranks.
    """

    placements: tuple[Placement, ...]
    ranks: int

    def plain(self) -> list[list[Any]]:
        """As lists, for a configuration; `of_plain` reads them."""
        return [[each.kind, list(each.ranks), list(each.columns)] for each in self.placements]

    @classmethod
    def of_plain(cls, plain: Sequence[Any], ranks: int) -> TablePlan:
        """The plan of `plain` lists."""
        return cls(tuple(Placement(k, tuple(r), tuple(c)) for k, r, c in plain), ranks)

    @classmethod
    def of_columns(cls, columns: Ints) -> TablePlan:
        """The plan of how many columns of each table each rank holds, shape (tables, ranks); all hold those that none holds."""
        placements = []
        for own in columns:
            on = np.flatnonzero(own)
            kind = (REPLICATED, TABLE_WISE, COLUMN_WISE)[min(len(on), 2)]
            placements.append(Placement(kind, tuple(on.tolist()), tuple(own[on].tolist())))
        return cls(tuple(placements), columns.shape[1])

    def of_kind(self, kind: str) -> list[int]:
        """Numbers of the tables that are placed so."""
        return [number for number, each in enumerate(self.placements) if each.kind == kind]

    @cached_property
    def parts(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each rank, the tables of which it holds columns, and how many; wide parts first, then by table."""
        held: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for number, each in enumerate(self.placements):
            for rank, columns in zip(each.ranks, each.columns, strict=True):
                held[rank].append((number, columns))
        return tuple(tuple(sorted(own, key=lambda part: (-part[1], part[0]))) for own in held)


def check_plan(plan: TablePlan, tables: Tables, named: str) -> None:
    """Refuse a plan whose placements are not those of whole tables on these ranks.

    Args:
        plan: a placement of each table.
        tables: the tables.
        named: where the plan is from, for the message.
    """
    for number, each in enumerate(plan.placements):
        where = f"{named}: table {number}"
        if each.kind not in KINDS:
            raise ConfigError(f"{where}: {each.kind} is none of {', '.join(KINDS)}")
        if each.kind in (ROW_WISE, REPLICATED):
            if each.ranks or each.columns:
                raise ConfigError(
                    f"{where}: {each.kind} is on all ranks; leave ranks and columns out"
                )
            continue
        if each.kind == TABLE_WISE and len(each.ranks) > 1:
            raise ConfigError(f"{where}: table_wise is on one rank; several are column_wise")
        if not each.ranks or not all(0 <= rank < plan.ranks for rank in each.ranks):
            raise ConfigError(
                f"{where}: give ranks from 0 to {plan.ranks - 1}, not {list(each.ranks)}"
            )
        narrow = len(each.columns) > 1 and any(c <= 0 or c % 4 for c in each.columns)
        if narrow or len(each.ranks) != len(each.columns) or sum(each.columns) != tables.dim:
            raise ConfigError(
                f"{where}: its parts have {list(each.columns)} columns on {len(each.ranks)} ranks;"
                f" together they must have {tables.dim}, each part a multiple of 4"
            )


def _whole(ranks: Ints, dim: int, count: int) -> TablePlan:
    """Each table whole on one rank, shape (tables,)."""
    return TablePlan.of_columns(dim * (ranks[:, None] == np.arange(count)))


def round_robin(tables: Tables, ranks: int) -> TablePlan:
    """Whole tables, one rank after the other."""
    return _whole(np.arange(len(tables.rows)) % ranks, tables.dim, ranks)


def by_size(tables: Tables, ranks: int) -> TablePlan:
    """Whole tables, the largest first, each to the rank with the fewest bytes."""
    held, chosen = np.zeros(ranks), np.zeros(len(tables.rows), int)
    for table in np.argsort(-tables.bytes, kind="stable"):
        chosen[table] = int(held.argmin())
        held[chosen[table]] += tables.bytes[table]
    return _whole(chosen, tables.dim, ranks)


def column_wise(tables: Tables, ranks: int) -> TablePlan:
    """Each table in equal parts of its columns, at least four each, on the ranks behind those of the table before."""
    parts = next(
        n for n in range(min(ranks, max(tables.dim // 4, 1)), 0, -1) if tables.dim % n == 0
    )
    columns = np.zeros((len(tables.rows), ranks), int)
    part = np.arange(columns.shape[0] * parts)
    columns[part // parts, part % ranks] = tables.dim // parts
    return TablePlan.of_columns(columns)


def row_wise(tables: Tables, ranks: int) -> TablePlan:
    """Each table in equal parts of its rows on all ranks; tables with fewer rows than ranks are replicated."""
    kinds = [ROW_WISE if rows >= ranks else REPLICATED for rows in tables.rows]
    return TablePlan(tuple(map(Placement, kinds)), ranks)


SIMPLE: dict[str, Callable[[Tables, int], TablePlan]] = {
    "round_robin": round_robin, "by_size": by_size,
    COLUMN_WISE: column_wise, ROW_WISE: row_wise,
}  # fmt: skip
"""Plans that look at no time, by name."""

PLANS = (AUTO, WITH_COPIES, *SIMPLE)
"""All plans by name; of two that take equally long, the first is taken."""


Costs = Callable[[int], Array]
"""Times of a part of each table with so many columns, µs, shape (tables, 2): lookups and updates, and the exchange of rows."""


def widths(dim: int) -> Ints:
    """Columns of a table, of its halves, of their halves, and so on, the widest first."""
    cut = [dim >> times for times in range(dim.bit_length()) if dim % (SECTOR << times) == 0]
    return np.array(cut or [dim])


def balanced(
    tables: Tables, ranks: int, costs: Costs, memory_bytes: float, copied: Sequence[int] = ()
) -> TablePlan:
    """Parts of tables, the longest first, each to the rank where it adds least to the loads; then moves that shorten the step.

    What is shortened is the time of the rank with the longest lookups and of the one with the largest exchange: all wait for both.
    A table that takes more than some share of the time of a rank, or that does not fit, is cut into halves of its columns. Of
    several such shares the best plan is taken.

    Args:
        tables: the tables.
        ranks: number of ranks.
        costs: times of parts.
        memory_bytes: that each rank has for tables.
        copied: tables that all ranks hold.

    Raises:
        LayoutError: the tables do not fit.
    """
    spread, columns = np.setdiff1d(np.arange(len(tables.rows)), copied), widths(tables.dim)
    of_width = np.stack([costs(width)[spread] for width in columns.tolist()])
    size_of = tables.bytes[spread] * columns[:, None] / tables.dim
    fair = of_width[0].sum() / ranks
    found: list[tuple[float, TablePlan]] = []
    for largest in memory_bytes / np.array([1, 2, 4, 8]):
        for share in CUT_SHARES:
            allowed = fair * np.where(columns > NARROW, share, NARROW_SHARE)
            slow = of_width.sum(axis=2) > allowed[:, None]
            cut = (slow | (size_of > largest))[:-1].sum(axis=0)
            table = np.repeat(np.arange(len(spread)), tables.dim // columns[cut])
            cut = cut[table]
            us = of_width[cut, table]
            owner = _owners(us, size_of[cut, table], ranks, memory_bytes)
            if owner is not None:
                held = np.zeros((len(tables.rows), ranks), int)
                np.add.at(held, (spread[table], owner), columns[cut])
                waits = _loads(owner, us, ranks).max(axis=0).sum()
                found.append((float(waits), TablePlan.of_columns(held)))
        if found:
            return min(found, key=lambda one: one[0])[1]
    total = tables.bytes.sum()
    need = max(int(total // max(memory_bytes, 1.0)), ranks) + 1
    few = f"{need} GPUs or more may have room for them"
    raise LayoutError(
        f"devices={ranks}: the tables and their optimizer take {total / 1e9:,.0f} GB; "
        + (few if size_of[-1].max() <= memory_bytes else "take parallel.sharding=row_wise")
    )


def _loads(owner: Ints, us: Array, ranks: int) -> Array:
    """Times of each rank, shape (ranks, 2)."""
    return np.stack([np.bincount(owner, values, ranks) for values in us.T], 1)


def _strain(loads: Array) -> Array:
    """How hard ranks are to wait for, from their shares of the fair times, shape (..., 2): the busiest count most."""
    strain: Array = (loads**8).sum(axis=-1)
    return strain


def _owners(us: Array, size: Array, ranks: int, memory_bytes: float) -> Ints | None:
    """The rank of each part, shape (parts,), from its times, shape (parts, 2), and bytes; None where they do not fit."""
    us = us * ranks / np.maximum(us.sum(axis=0), 1e-9)
    load, held = np.zeros((ranks, 2)), np.zeros(ranks)
    owner = np.zeros(len(us), np.int64)
    hardly = np.where(size > memory_bytes / 4, -size, 0.0)  # what hardly fits goes first
    for part in np.lexsort((-us.sum(axis=1), hardly)):
        fits = held + size[part] <= memory_bytes
        if not fits.any():
            return None
        added = _strain(load + us[part]) - _strain(load)
        owner[part] = np.where(fits, added, np.inf).argmin()
        load[owner[part]] += us[part]
        held[owner[part]] += size[part]
    while _swapped(owner, us, size, ranks, memory_bytes):
        pass
    return owner


def _swapped(owner: Ints, us: Array, size: Array, ranks: int, memory_bytes: float) -> bool:
    """Exchange a part of a rank with most of a kind of time for one of another rank, or for none, if that eases the strain."""
    load, held = _loads(owner, us, ranks), np.bincount(owner, size, ranks)
    mine = np.flatnonzero(np.isin(owner, load.argmax(axis=0)))
    to, worst = np.append(owner, np.arange(ranks)), owner[mine][:, None]
    given = us[mine][:, None] - np.concatenate([us, np.zeros((ranks, 2))])
    more = size[mine][:, None] - np.append(size, np.zeros(ranks))
    before = _strain(load)
    eased = before[worst] + before[to] - _strain(load[worst] - given) - _strain(load[to] + given)
    room = (held[to] + more <= memory_bytes) & (held[worst] - more <= memory_bytes)
    eased = np.where(room & (to != worst), eased, 0.0)
    give, take = np.unravel_index(int(eased.argmax()), eased.shape)
    if eased[give, take] < 1e-4:
        return False
    if take < len(owner):
        owner[take] = owner[mine[give]]
    owner[mine[give]] = to[take]
    return True


def least_loads(dim: int, costs: Costs, ranks: int) -> Array:
    """The least that the busiest rank can have to do, µs, shape (2,): lookups, and exchange.

    No plan is below whose parts are halves of tables, halves of these, and so on, of at least `NARROW` columns.

    Where no part takes longer than some time, each table is cut so that its parts take least in sum. Even ranks share this sum.

    Args:
        dim: columns of a table.
        costs: times of parts of tables.
        ranks: number of ranks.
    """
    columns = widths(dim)
    columns = columns[columns >= min(NARROW, dim)]
    parts = np.stack([costs(width) for width in columns.tolist()])
    sums = parts * (dim // columns)[:, None, None]
    least = np.empty(2)
    for kind in (0, 1):
        longest = np.unique(parts[:, :, kind])
        allowed = parts[:, :, kind] <= longest[:, None, None]
        even = np.where(allowed, sums[:, :, kind], np.inf).min(axis=1).sum(axis=1) / ranks
        least[kind] = np.maximum(longest, even).min()
    return least
