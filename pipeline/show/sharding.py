"""A plan of spread tables for people: tables for a terminal, a figure of what each rank does, and the plan's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from pipeline.answers.sharding_plan import ShardingPlan
from pipeline.palette import series_colours
from pipeline.question.table_plan_files import as_list, as_torchrec
from pipeline.readable import gibibytes, milliseconds
from pipeline.schemas import write_text
from pipeline.show.figures.board import ROW, Board, marks
from pipeline.show.tables import Catalogue, console

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_RANKS = 16
"""Ranks that a table and a figure show: of more, those with most and least to do."""


def show_sharding(found: ShardingPlan) -> None:
    """Print what was found, how long each plan takes, and what each rank has to do."""
    screen = console()
    screen.print(Text(found.summary, style="bold"))
    screen.print(Catalogue([_plan_row(row) for row in found.rows()]))
    screen.print(Catalogue([_rank_row(found, rank) for rank in shown_ranks(found)]))


def _plan_row(row: dict[str, Any]) -> dict[str, str]:
    """A plan with its step, or why there is none."""
    shown = {"sharding": row["sharding"], "step": "", "imbalance": "", "memory": row["unpredicted"]}
    if row["step_us"] is not None:
        room = "" if row["fits"] else ", does not fit"
        shown["step"] = milliseconds(row["step_us"])
        shown["imbalance"] = f"{row['imbalance']:.2f}"
        shown["memory"] = f"{gibibytes(row['memory_bytes'])}{room}"
    return shown


def _rank_row(found: ShardingPlan, rank: int) -> dict[str, str]:
    """What a rank holds, and has to do."""
    us, moved, size = found.work[rank].tolist()
    dim = found.question.table_work.tables.dim
    held = [
        f"{table}" if columns == dim else f"{table} ({columns} columns)"
        for table, columns in found.plan.parts[rank]
    ]
    return {
        "rank": str(rank),
        "lookups": milliseconds(us),
        "exchange": milliseconds(moved),
        "bytes": f"{size / 1e9:,.1f} GB",
        "tables": ", ".join(held),
    }


def shown_ranks(found: ShardingPlan) -> list[int]:
    """The ranks to show, by what they have to do, the most first."""
    order: list[int] = np.argsort(-found.work[:, :2].sum(axis=1), kind="stable").tolist()
    half = SHOWN_RANKS // 2
    return order if len(order) <= SHOWN_RANKS else [*order[:half], *order[-half:]]


def draw_sharding(found: ShardingPlan) -> Figure:
    """What each rank has to do: lookups and updates of its tables, exchange of rows, and dense layers, in milliseconds.

    Args:
        found: the plan.
    """
    shown = shown_ranks(found)
    lookups, moved = found.work[shown, :2].T / 1e3
    longest_us = float(found.work[:, :2].max(axis=0).sum())
    dense = max(found.prediction.predicted_us - longest_us, 0.0) / 1e3
    parts = {"lookups": lookups, "exchange": moved, "dense layers and waits": dense + 0 * moved}
    colours = series_colours(list(parts))
    board = Board([0.6 + ROW * len(shown)])
    (axes,) = board.panels
    begin = 0.0 * moved
    for name, values in parts.items():
        axes.barh([f"rank {rank}" for rank in shown], values, left=begin, color=colours[name])
        begin = begin + values
    axes.invert_yaxis()
    board.names(axes, "ms", "")
    board.title(axes, found.summary)
    board.legend(marks(colours.values()), list(colours))
    board.note(
        "Lookups and exchange by the law that balances them; the rest is the simulated step without"
        " the longest of both."
    )
    return board.figure


def write_sharding(found: ShardingPlan, path: Path) -> Path:
    """Write the plan as YAML, which `parallel.sharding=FILE` reads, and TorchRec's plan beside it as JSON.

    Returns:
        The path of TorchRec's plan.

    Raises:
        InputError: a file cannot be written.
    """
    beside = path.with_suffix(".json")
    write_text(path, as_list(found.plan))
    write_text(beside, as_torchrec(found.plan, found.question.table_work.tables))
    return beside
