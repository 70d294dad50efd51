"""Advice as a table for a terminal, with the commands that show each gain."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from pipeline.answers.advice import MIN_GAIN, Advice
from pipeline.report.terminal_tables import console


def show_advice(advice: Advice, everything: bool = False) -> None:
    """Print an advice: a line per change, best first, then how to make each change and the command that shows it.

    Args:
        advice: what to print.
        everything: whether candidates that do not help are listed too.
    """
    screen = console()

    def say(text: str, style: str = "") -> None:
        screen.print(Text(text, style=style), soft_wrap=True, highlight=False)  # commands can be copied whole

    say(advice.summary, "bold")
    if advice.lines:
        screen.print(_table(advice))
        say("Gains are the share of the step that is saved, with p10 and p90 of paired draws.", "dim")
        for number, line in enumerate(advice.lines, 1):
            say(f"{number}  {line.how}")
            helps_alone = line.alone is not None and line.alone.share >= MIN_GAIN
            if shown := line.command if helps_alone else line.command_on_top:
                say(f"   {shown}", "dim")
    for each in advice.not_helping if everything else ():
        say(f"{each.change}: {each.reason}" + ("" if each.gain is None else f", alone {each.gain}"), "dim")
    for note in advice.warnings:
        say(f"warning: {note}", "yellow")


def _table(advice: Advice) -> Table:
    rows = advice.rows()
    table = Table(header_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_column("", justify="right")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for number, row in enumerate(rows, 1):
        table.add_row(str(number), *row.values())
    return table
