"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from pipeline.answers.plan_results import Choice, Plan
from pipeline.report.terminal_tables import console


def show_plan(plan: Plan) -> None:
    """Print the winner, the best points, the front of time against cost, and why the others lost."""
    screen = console()
    screen.print(Text(plan.summary, style="bold"), soft_wrap=True)
    screen.print(_table(plan, plan.contenders, "best points"))
    if len(plan.front) > 1:
        screen.print(_table(plan, plan.front, "front of time against cost, fastest first"))
    lost = ", ".join(f"{reason}: {count:,}" for reason, count in plan.lost.items())
    if lost:
        screen.print(Text(f"others lost: {lost}", style="dim"), soft_wrap=True)
    notes = list(dict.fromkeys(note for each in plan.contenders for note in each.prediction.warnings))
    for note in [*plan.prices, *(f"warning: {text}" for text in notes)]:
        screen.print(Text(note, style="dim"), soft_wrap=True)


def _table(plan: Plan, choices: Sequence[Choice], title: str) -> Table:
    rows = plan.rows(choices)
    table = Table(title=title, title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        words = name in ("GPU", "options", "bound")
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    return table
