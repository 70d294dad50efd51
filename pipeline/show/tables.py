"""A prediction, and lists, as tables for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.prediction import Prediction
from pipeline.readable import in_ms, milliseconds, shares, three_digits

MAX_TITLE, FRAME = 70, 6
"""Width of the longest title of a prediction's frame, and the part of a line that the frame takes, in characters."""

MOST_FAMILIES = 5
"""Number of kernel families that a prediction's table lists."""

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


def interval(low_us: float, high_us: float) -> str:
    """An interval in ms, such as `7.01-8.87`."""
    return f"{in_ms(low_us)}-{in_ms(high_us)}"


def one(prediction: Prediction, width: int = PIPE_WIDTH, why: bool = False) -> RenderableType:
    """A single prediction, with its parts and its evidence.

    Args:
        prediction: what was predicted.
        width: characters of a line. A title that does not fit becomes rows of the table.
        why: as of `Prediction.rows`.
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
    for label, value in p.rows(why):
        more = "   (more: --why)" if label == "how sure" and not why else ""
        table.add_row(label, _styled(p, label, value + more))
    return Panel(
        Group(table, Text(), families(p)),
        title=Text(title) or None,
        title_align="left",
        expand=False,
    )


def show_one(prediction: Prediction, paths: Mapping[str, str], why: bool = False) -> None:
    """Print a single prediction, and the paths of its artifacts by name."""
    screen = console()
    screen.print(one(prediction, screen.width, why), crop=False)
    show_paths(paths)


def show_paths(paths: Mapping[str, str]) -> None:
    """Print the paths of artifacts by name, a line each."""
    for name, path in paths.items():
        console().print(
            Text.assemble((f"{name}:", "dim"), f" {path}"), soft_wrap=True, highlight=False
        )


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


def families(prediction: Prediction) -> Table:
    """The largest kernel families with their share of the step."""
    total = prediction.predicted_us
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("largest kernel families", overflow="fold")
    table.add_column("time", no_wrap=True)
    table.add_column("of the step", no_wrap=True, overflow="crop")
    for name, us in list(prediction.families_us.items())[:MOST_FAMILIES]:
        table.add_row(
            name, milliseconds(us), Text(f"{us / total:4.0%} " + "█" * round(24 * us / total))
        )
    return table


def by_module(modules: pd.DataFrame, prediction: Prediction, depth: int) -> RenderableType:
    """The modules of a step, one unit per column, and a sentence that says what adds up.

    Args:
        modules: `Prediction.modules`.
        prediction: the step.
        depth: the deepest level that is shown; the rows above contain the rest.
    """
    trains = bool((modules["backward_us"] > 0).any())
    times = ("forward\nms", "backward\nms") if trains else ("time\nms",)
    numbers = ("params\nM", *times, "of\nstep", "of\npeak", "bytes\nGB", "kept\nMiB")
    rows = [
        (int(row["depth"]), row["module"].split(".")[-1], _module_cells(row, trains))
        for row in modules[modules["depth"] <= depth].to_dict("records")
    ]
    cells = [
        dict(zip(("module", *numbers, "evidence"), ("  " * level + name, *cells), strict=True))
        for level, name, cells in _equal_merged(rows, 0)
    ]
    table = Catalogue(
        cells, optional=("bytes\nGB", "params\nM", "kept\nMiB"), folded=("evidence",), right=numbers
    )
    deepest = modules["depth"].max()
    deeper = (
        f" Deeper modules are in the rows above them; --depth {deepest} shows all."
        if depth < deepest
        else ""
    )
    explained = (
        "Rows without indent add up to the active time,"
        f" {milliseconds(prediction.active_us)}.{deeper}"
    )
    return Group(Text(str(prediction), style="bold"), table, Text(explained, style="dim"))


_Row = tuple[int, str, tuple[str, ...]]
"""Depth, name and cells of a module."""


def _module_cells(row: Mapping[Any, Any], trains: bool) -> tuple[str, ...]:
    times = [row["forward_us"], row["backward_us"]] if trains else [row["active_us"]]
    peak = "" if pd.isna(row["peak_share"]) else f"{row['peak_share']:.1%}"
    return (
        three_digits(row["parameters"] / 1e6),
        *(three_digits(us / 1000) for us in times),
        f"{row['share']:.1%}",
        peak,
        three_digits(row["bytes"] / 1e9),
        three_digits(row["kept_bytes"] / 2**20) if row["kept_bytes"] else "",
        shares(row["evidence"]).split(",")[0],
    )


def _equal_merged(rows: Sequence[_Row], level: int) -> list[_Row]:
    """Rows with those modules of a level as one that follow each other and have equal cells, their parts included."""
    merged: list[_Row] = []
    starts = [at for at, row in enumerate(rows) if row[0] == level] + [len(rows)]
    blocks = [rows[start:end] for start, end in itertools.pairwise(starts)]
    for _, group in itertools.groupby(blocks, lambda block: [block[0][2], *block[1:]]):
        equal = list(group)
        first, last = equal[0][0], equal[-1][0]
        name = first[1] if len(equal) == 1 else f"{first[1]} to {last[1]}, each"
        merged += [(level, name, first[2]), *_equal_merged(equal[0][1:], level + 1)]
    return merged


@dataclass(frozen=True)
class Catalogue:
    """Rows of plain values as a table without lines, in a layout that fits the terminal."""

    rows: Sequence[Mapping[str, Any]]
    optional: Sequence[str] = ("aliases", "peaks", "architecture")
    """Columns that are left out of a table that is too wide, in this order."""
    folded: Sequence[str] | None = None
    """Columns whose cells may go on in the next line; None for all."""
    right: Sequence[str] = ()
    """Columns of text that are aligned to the right, as numbers are."""
    bold: Sequence[int] = ()
    """Numbers of the rows in bold type."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        shown = self.shown(options.max_width)
        needed = sum(self._least(name) + 1 for name in shown) - 1
        gap = 2 if self._width(shown) + len(shown) - 1 <= options.max_width else 1
        drawn = Table(header_style="bold", box=None, padding=(0, gap, 0, 0), pad_edge=False)
        for name in shown:
            numbers = all(
                isinstance(row[name], (int, float)) or row[name] == "" for row in self.rows
            )
            drawn.add_column(
                name,
                justify="right" if name in self.right or numbers else "left",
                min_width=self._least(name),
                overflow="fold",
                no_wrap=not self._folds(name),
            )
        for number, row in enumerate(self.rows):
            cells = (plain(row[name]) for name in shown)
            drawn.add_row(*cells, style="bold" if number in self.bold else "")
        wide = options.update(max_width=max(options.max_width, needed))
        yield from console.render(drawn, wide)  # type: ignore[misc]
        if hidden := self.hidden(options.max_width):
            named = ", ".join(name.replace("\n", " ") for name in hidden)
            yield Text(f"Not shown: {named} (a wider terminal, or --json).", style="dim")

    def shown(self, width: int) -> list[str]:
        """The columns that fit a width: optional ones are left out one by one."""
        optional = [name for name in self.optional if name in self._names]
        for count in range(len(optional) + 1):  # the last one, if none fits
            shown = [name for name in self._names if name not in optional[:count]]
            if self._width(shown) <= width:
                break
        return shown

    def hidden(self, width: int) -> list[str]:
        """Columns that are left out at a width."""
        shown = self.shown(width)
        return [name for name in self._names if name not in shown]

    @property
    def _names(self) -> list[str]:
        return list(self.rows[0]) if self.rows else ["nothing"]

    def _width(self, names: Sequence[str]) -> int:
        return sum(self._wanted(name) + 1 for name in names) - 1

    def _folds(self, name: str) -> bool:
        return self.folded is None or name in self.folded

    def _wanted(self, name: str) -> int:
        """Width, in characters, at which few cells of a column need more than two lines."""
        longest = max(
            (len(line) for cell in self._cells(name) for line in cell.splitlines()), default=0
        )
        return max(min(longest, 24), self._least(name)) if self._folds(name) else longest

    def _least(self, name: str) -> int:
        """Width, in characters, of the longest word in a column; a path may be broken over lines."""
        if not self._folds(name):
            return self._wanted(name)
        return min(
            max((len(word) for cell in self._cells(name) for word in cell.split()), default=0), 30
        )

    def _cells(self, name: str) -> list[str]:
        return [name, *(plain(row[name]) for row in self.rows)]


def plain(value: Any) -> str:
    """A value as text for a table's cell."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
