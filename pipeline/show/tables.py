"""A prediction, and lists, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.prediction import Prediction
from pipeline.readable import in_ms, milliseconds

MAX_TITLE, FRAME = 70, 6
"""Width of the longest title of a prediction's frame, and the part of a line that the frame takes, in characters."""

UNFOLDED = 1000
"""Width of a table whose cells are not folded, in characters."""

PIPE_WIDTH = 140
"""Width of a table, in characters, when the output is not a terminal."""


def console() -> Console:
    """The console for output. Text is printed without markup, because names and paths contain brackets.

    Output to a file or a pipe has the width of a wide terminal.
    """
    screen = Console(markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = max(screen.width, PIPE_WIDTH)
    return screen


@dataclass(frozen=True)
class Unfolded:
    """A table whose cells can be copied: on a narrow terminal its lines go on, to be printed with `crop=False`."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from console.render(self.table, options.update(max_width=UNFOLDED))  # type: ignore[misc]


def interval(low_us: float, high_us: float) -> str:
    """An interval in ms, such as `7.01-8.87`."""
    return f"{in_ms(low_us)}-{in_ms(high_us)}"


def one(prediction: Prediction, width: int = PIPE_WIDTH) -> RenderableType:
    """A single prediction, with its parts and its evidence.

    Args:
        prediction: what was predicted.
        width: characters of a line. A title that does not fit becomes rows of the table.
    """
    p = prediction
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    room = min(width, MAX_TITLE) - FRAME
    title = f"{p.title} ({p.named})" if p.named else p.title
    if len(title) > room:
        table.add_row("options", p.named) if p.named else None
        title = p.title
    if len(title) > room:
        table.add_row("step of", title)
        title = ""
    for label, value in p.rows():
        table.add_row(label, _styled(p, label, value))
    return Panel(Group(table, Text(), families(p)), title=Text(title) or None, title_align="left", expand=False)


def _styled(prediction: Prediction, label: str, value: str) -> Text:
    """The value of a row. The step is bold, a small error green, and a step that does not fit red."""
    text = Text(value)
    if label == "step time" or label.startswith("measured"):
        end = value.index("   (")
        text.stylize("bold", 0, end)
        if prediction.error is not None and label != "step time":
            text.stylize("green" if abs(prediction.error) < 0.2 else "yellow", end)
    elif label == "memory" and not prediction.fits:
        text.stylize("red", value.index("does not fit"))
    elif label == "memory" and prediction.tight:
        text.stylize("yellow", value.index("tight"))
    elif label == "warning":
        text.stylize("yellow")
    return text


def families(prediction: Prediction, most: int = 5) -> Table:
    """The largest kernel families with their share of the device's kernel time."""
    total = sum(prediction.families_us.values()) or 1.0
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("largest kernel families", overflow="fold")
    table.add_column("time", no_wrap=True)
    table.add_column("share", no_wrap=True, overflow="crop")
    for name, us in list(prediction.families_us.items())[:most]:
        table.add_row(name, milliseconds(us), Text(f"{us / total:4.0%} " + "█" * round(24 * us / total)))
    return table


@dataclass(frozen=True)
class Catalogue:
    """Rows of plain values as a table without lines; columns in `optional` are left out on a narrow terminal."""

    rows: Sequence[Mapping[str, Any]]
    optional: Sequence[str] = ("aliases", "peaks", "architecture")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        names = list(self.rows[0]) if self.rows else ["nothing"]
        left_out: list[str] = []
        for name in ["", *(name for name in self.optional if name in names)]:
            left_out += [name] if name else []
            shown = [column for column in names if column not in left_out]
            if sum(self._wanted(column) + 1 for column in shown) <= options.max_width:
                break
        gap = 2 if sum(self._wanted(column) + 2 for column in shown) <= options.max_width else 1
        table = Table(header_style="bold", box=None, padding=(0, gap, 0, 0))
        for name in shown:
            numbers = all(isinstance(row[name], (int, float)) or row[name] == "" for row in self.rows)
            table.add_column(name, justify="right" if numbers else "left", min_width=self._least(name), overflow="fold")
        for row in self.rows:
            table.add_row(*(plain(row[name]) for name in shown))
        yield table
        if left_out:
            yield Text(f"Not shown: {', '.join(left_out)} (a wider terminal, or --json).", style="dim")

    def _wanted(self, name: str) -> int:
        """Width, in characters, at which few cells of a column need more than two lines."""
        longest = max((len(plain(row[name])) for row in self.rows), default=0)
        return max(min(longest, 24), self._least(name))

    def _least(self, name: str) -> int:
        """Width, in characters, of the longest word in a column; a path may be broken over lines."""
        words = [word for row in self.rows for word in plain(row[name]).split()] if self.rows else []
        return min(max(map(len, [*words, *name.split()])), 30)


def plain(value: Any) -> str:
    """A value as text for a table's cell."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
