"""A plan for people: tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pipeline.answers.plan_results import Choice, Plan
from pipeline.show.tables import Catalogue, console


def show_plan(plan: Plan) -> None:
    """Print the winner, the best points, the front of time against cost or energy, and why the others lost."""
    screen = console()
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
        rows, optional=("memory\nGiB", "bound", "p10-p90\nms"), folded=("options",), right=right
    )
    screen.print(table, crop=False)
