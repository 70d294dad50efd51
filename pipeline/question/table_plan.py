"""Which ranks hold which embedding tables: a plan of placements, the simple plans, and one that balances the ranks.

A table is held whole by one rank (table-wise) or by every rank (replicated). Or several ranks hold some of its columns each
(column-wise), or all ranks some of its rows (row-wise). These are TorchRec's words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
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

LEAST_COLUMNS = (16, 8)
"""Columns of the narrowest part of a table that `balanced` makes; narrower rows are slower for each byte. The second, a
sector, where a part of the first would take more than twice the fair time of a rank."""

CUT_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the fair time of a rank, of lookups or of lookups and exchange, from which tables are cut."""

POWERS = (2, 8)
"""Powers of the loads of ranks whose sums stay small when parts are given away: the second sees little but the busiest."""

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


def _whole(ranks: Sequence[int], dim: int, count: int) -> TablePlan:
    return TablePlan(tuple(Placement(TABLE_WISE, (rank,), (dim,)) for rank in ranks), count)


def round_robin(tables: Tables, ranks: int) -> TablePlan:
    """Whole tables, one rank after the other."""
    return _whole([number % ranks for number in range(len(tables.rows))], tables.dim, ranks)


def by_size(tables: Tables, ranks: int) -> TablePlan:
    """Whole tables, the largest first, each to the rank with the fewest bytes."""
    held, chosen = np.zeros(ranks), np.zeros(len(tables.rows), int)
    for table in np.argsort(-tables.bytes, kind="stable"):
        chosen[table] = int(held.argmin())
        held[chosen[table]] += tables.bytes[table]
    return _whole(chosen.tolist(), tables.dim, ranks)


def column_wise(tables: Tables, ranks: int) -> TablePlan:
    """Each table in equal parts of its columns, at least four each, on the ranks behind those of the table before."""
    parts = next(
        n for n in range(min(ranks, max(tables.dim // 4, 1)), 0, -1) if tables.dim % n == 0
    )
    columns, placed = (tables.dim // parts,) * parts, []
    for table in range(len(tables.rows)):
        own = tuple((table * parts + part) % ranks for part in range(parts))
        placed.append(Placement(COLUMN_WISE, own, columns))
    return TablePlan(tuple(placed), ranks)


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


def balanced(
    tables: Tables, ranks: int, costs: Costs, memory_bytes: float, copied: Sequence[int] = ()
) -> TablePlan:
    """Parts of tables, the longest first, each to the rank where it adds least to the loads; then moves that shorten the step.

    What is shortened is the time of the rank with the longest lookups and of the one with the largest exchange: all wait for both.
    A table that takes more than some share of the time of a rank, or that does not fit, is cut into halves of its columns. Of
    several such shares, and ways to add loads (`POWERS`), the best plan is taken.

    Args:
        tables: the tables.
        ranks: number of ranks.
        costs: times of parts.
        memory_bytes: that each rank has for tables.
        copied: tables that all ranks hold.

    Raises:
        LayoutError: the tables do not fit.
    """
    total, widths = tables.bytes.sum(), [tables.dim]
    times = {tables.dim: costs(tables.dim)}
    fair = times[tables.dim][:, 0].sum() / ranks
    while widths[-1] % 2 == 0 and (
        widths[-1] > LEAST_COLUMNS[0]
        or (widths[-1] > LEAST_COLUMNS[1] and times[widths[-1]][:, 0].max() > 2.0 * fair)
    ):
        widths.append(widths[-1] // 2)
        times[widths[-1]] = costs(widths[-1])
    left = np.setdiff1d(np.arange(len(tables.rows)), copied)
    of = {columns: us[left] for columns, us in times.items()}
    found = []
    for share, kinds, power in product(CUT_SHARES, (1, 2), POWERS):
        for largest in memory_bytes / np.array([1, 2, 4, 8]):
            cut_by = share, kinds, largest
            placed = _placed(tables.bytes[left], of, ranks, memory_bytes, cut_by, power)
            if placed:
                found.append(placed)
                break
    if not found:
        narrowest = tables.bytes.max() * widths[-1] / tables.dim
        need = int(total // max(memory_bytes, 1.0)) + 1
        more = f"{max(need, ranks + 1)} GPUs or more may have room for them"
        raise LayoutError(
            f"devices={ranks}: the tables and their optimizer take {total / 1e9:,.0f} GB; "
            + (more if narrowest <= memory_bytes else "take parallel.sharding=row_wise")
        )
    _, parts = min(found, key=lambda one: one[0])
    placements = [Placement(REPLICATED)] * len(tables.rows)
    for table, own in zip(left.tolist(), parts, strict=True):
        held = np.bincount(*np.array(own).T)  # parts of a table on one rank are one
        on = tuple(np.flatnonzero(held).tolist())
        columns = tuple(int(held[rank]) for rank in on)
        placements[table] = Placement(TABLE_WISE if len(on) == 1 else COLUMN_WISE, on, columns)
    return TablePlan(tuple(placements), ranks)


def _placed(
    table_bytes: Array,
    times: dict[int, Array],
    ranks: int,
    memory_bytes: float,
    cut_by: tuple[float, int, float],
    power: int,
) -> tuple[float, list[list[tuple[int, int]]]] | None:
    """About what a step waits for tables that are cut so, µs, and rank and columns of the parts of each; None: they do not fit."""
    dim = max(times)
    share, kinds, largest = cut_by
    of = {columns: each[:, :kinds].sum(axis=1) for columns, each in times.items()}
    cut = _cut(table_bytes, of, share * of[dim].sum() / ranks, largest)
    us = np.array([times[columns][table] for table, columns in cut])
    size = np.array([table_bytes[table] * columns / dim for table, columns in cut])
    owner = _owners(us, size, ranks, memory_bytes, power)
    if owner is None:
        return None
    parts: list[list[tuple[int, int]]] = [[] for _ in table_bytes]
    for (table, columns), rank in zip(cut, owner.tolist(), strict=True):
        parts[table].append((rank, columns))
    return float(_loads(owner, us, ranks).max(axis=0).sum()), parts


def _loads(owner: Ints, us: Array, ranks: int) -> Array:
    """Times of each rank, shape (ranks, 2)."""
    return np.stack([np.bincount(owner, values, ranks) for values in us.T], 1)


def _cut(
    table_bytes: Array, times: dict[int, Array], longest_us: float, largest_bytes: float
) -> list[tuple[int, int]]:
    """Parts of tables as table and columns: as wide as some time and some bytes allow."""
    parts, dim = [], max(times)
    for table, size in enumerate(table_bytes):
        allowed = (
            columns
            for columns, us in times.items()
            if us[table] <= longest_us and size * columns / dim <= largest_bytes
        )
        columns = next(allowed, min(times))
        parts += [(table, columns)] * (dim // columns)
    return parts


def _owners(us: Array, size: Array, ranks: int, memory_bytes: float, power: int) -> Ints | None:
    """The rank of each part, shape (parts,), from its times, shape (parts, 2), and bytes; None where they do not fit."""
    load, held = np.zeros((ranks, 2)), np.zeros(ranks)
    owner = np.zeros(len(us), np.int64)
    shares, large = us * ranks / np.maximum(us.sum(axis=0), 1e-9), size > memory_bytes / 4
    longest = -shares.sum(axis=1)
    for part in np.lexsort((longest, np.where(large, -size, 0.0))):  # what hardly fits goes first
        fits = held + size[part] <= memory_bytes
        if not fits.any():
            return None
        added = ((load + shares[part]) ** power - load**power).sum(axis=1)
        owner[part] = np.where(fits, added, np.inf).argmin()
        load[owner[part]] += shares[part]
        held[owner[part]] += size[part]
    for _ in range(20 * len(us)):
        moves = [_best_move(owner, us, size, ranks, memory_bytes, kind) for kind in (0, 1)]
        gain, parts, new = max(moves, key=lambda move: move[0])
        if gain <= 0:
            break
        owner[parts] = new
    return owner


def _best_move(
    owner: Ints, us: Array, size: Array, ranks: int, memory_bytes: float, kind: int
) -> tuple[float, list[int], list[int]]:
    """The exchange of a part of the rank with most of a kind of time for one of another rank, or for none, that gains most.

    Returns:
        What it gains, µs; the parts that move, and where they go.
    """
    load = _loads(owner, us, ranks)
    held = np.bincount(owner, size, ranks)
    worst = int(load[:, kind].argmax())
    mine, others = np.flatnonzero(owner == worst), np.flatnonzero(owner != worst)
    to = np.append(owner[others], np.arange(ranks))
    back = np.concatenate([us[others], np.zeros((ranks, 2))])
    given = us[mine][:, None] - back
    more = size[mine][:, None] - np.append(size[others], np.zeros(ranks))
    rest = np.delete(load, worst, axis=0)
    order = np.sort(rest, axis=0)[-2:] if ranks > 2 else np.zeros((2, 2))
    apart = np.where(load[to] == order[-1], order[0], order[-1])  # the most of ranks that stay
    after = np.maximum(np.maximum(load[worst] - given, load[to] + given), apart).sum(axis=2)
    room = (held[to] + more <= memory_bytes) & (held[worst] - more <= memory_bytes)
    after = np.where(room & (to != worst), after, np.inf)
    before = load.max(axis=0).sum()
    if not after.size or after.min() >= before * (1 - 1e-6):
        return 0.0, [], []
    give, take = np.unravel_index(int(after.argmin()), after.shape)
    parts, new = [int(mine[give])], [int(to[take])]
    if take < len(others):
        parts, new = [*parts, int(others[take])], [*new, worst]
    return float(before - after.min()), parts, new


def least_loads(dim: int, costs: Costs, ranks: int) -> Array:
    """The least that the busiest rank can have to do, µs, shape (2,): lookups, and exchange; no plan of halved tables is below.

    Where no part takes longer than some time, each table is cut so that its parts take least in sum. Even ranks share this sum.

    Args:
        dim: columns of a table.
        costs: times of parts of tables.
        ranks: number of ranks.
    """
    cuts = [1 << cut for cut in range(dim.bit_length()) if cut == 0 or dim % (4 << cut) == 0]
    parts = np.stack([costs(dim // cut) for cut in cuts])
    sums = parts * np.array(cuts)[:, None, None]
    least = np.empty(2)
    for kind in (0, 1):
        longest = np.unique(parts[:, :, kind])
        allowed = parts[:, :, kind] <= longest[:, None, None]
        even = np.where(allowed, sums[:, :, kind], np.inf).min(axis=1).sum(axis=1) / ranks
        least[kind] = np.maximum(longest, even).min()
    return least
