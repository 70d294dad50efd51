"""A plan for people: tables for a terminal, and the files that a workflow run asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from pipeline.answers.plan_results import Choice, Plan
from pipeline.schemas import atomic_path, write_table, write_text
from pipeline.show.figures.board import save_as
from pipeline.show.figures.costs import plan_front
from pipeline.show.tables import UNFOLDED, Catalogue, console


def plan_table(plan: Plan) -> pd.DataFrame:
    """The points of the front and the best points, `plan` schema: the best first, then the rest of the front."""
    shown = {choice.question: choice for choice in (*plan.contenders, *plan.front)}
    ranks = {choice.question: rank for rank, choice in enumerate(plan.contenders, 1)}
    front = {choice.question for choice in plan.front}
    rows = [
        {
            **choice.as_dict(plan.limits.samples),
            "variant": key.variant,
            "overrides": " ".join(key.overrides),
            "evidence": json.dumps(choice.prediction.evidence),
            "rank": ranks.get(key),
            "on_front": key in front,
        }
        for key, choice in shown.items()
    ]
    return pd.DataFrame(rows).astype({"rank": "Int64"})


def write_plan(
    plan: Plan, table: Path, summary: Path, text: Path, figure: Path, provenance: Mapping[str, Any]
) -> None:
    """Write the table (parquet), all that the plan found (JSON), what is printed of it, and time against cost as a figure.

    Raises:
        InputError, TableError: a file cannot be written.
    """
    write_table(plan_table(plan), table, "plan", provenance)
    write_text(summary, json.dumps(plan.as_dict(), indent=1) + "\n")
    with atomic_path(text) as part, part.open("w", encoding="utf-8") as file:
        show_plan(plan, Console(file=file, width=UNFOLDED, markup=False, emoji=False))
    save_as(plan_front(plan), figure)


def show_plan(plan: Plan, screen: Console | None = None) -> None:
    """Print the winner, the best points, the front of time against cost or energy, and why the others lost."""
    screen = screen or console()
    screen.print(Text(plan.summary, style="bold"))
    _show_table(screen, plan, plan.contenders, "best points")
    if len(plan.front) > 1:
        _show_table(
            screen, plan, plan.front, f"front of time against {plan.objective.spent}, fastest first"
        )
    lost = ", ".join(f"{reason}: {count:,}" for reason, count in plan.lost.items())
    if lost:
        screen.print(Text(f"others lost: {lost}", style="dim"))
    warned = dict.fromkeys(
        f"warning: {note}" for choice in plan.contenders for note in choice.prediction.warnings
    )
    computed = f"the best is computed with {plan.best.prediction.assumed}"
    for note in [computed, *plan.prices, *([plan.hosts] if plan.hosts else []), *warned]:
        screen.print(Text(note, style="dim"))


def _show_table(screen: Console, plan: Plan, choices: Sequence[Choice], title: str) -> None:
    rows = plan.rows(choices)
    right = [name for name in rows[0] if name not in ("GPU", "options", "bound")]
    screen.print(Text(title, style="italic"))
    table = Catalogue(
        rows, optional=("memory\nGiB", "bound"), folded=(), copied="options", right=right
    )
    screen.print(table, crop=False)
