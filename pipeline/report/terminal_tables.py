"""Predictions as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.paths import project_dir
from pipeline.prediction import Prediction

PIPE_WIDTH = 140
"""Width of a table, in characters, when the output is not a terminal."""


def console() -> Console:
    """The console for output. Text is printed without markup, because names and paths contain brackets.

    Output to a file or a pipe has the width of a wide terminal.
    """
    found = Console(markup=False, emoji=False)
    if not found.is_terminal:
        found.width = max(found.width, PIPE_WIDTH)
    return found


def milliseconds(us: float) -> str:
    """Time in ms with about three significant digits."""
    ms = us / 1000
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 100 else f"{ms:,.0f} ms"


def rate(per_second: float) -> str:
    """Samples per second: a whole number from 100 on, else three digits, as large models need seconds per sample."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def interval(low_us: float, high_us: float) -> str:
    """An interval in ms such as `7.01-8.87`; whole numbers if both ends are long."""
    return (
        f"{low_us / 1000:,.0f}-{high_us / 1000:,.0f}" if low_us >= 1e5 else f"{low_us / 1000:.2f}-{high_us / 1000:.2f}"
    )


def gibibytes(size: float) -> str:
    """Bytes as KiB, MiB or GiB."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def shares(parts: Mapping[str, float]) -> str:
    """Shares as text such as `fitted 92%, roofline 8%`, largest first."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005) or "none"


def _short_path(folder: str) -> str:
    """A folder as seen from the project, or as it is where it lies elsewhere."""
    path = Path(folder).absolute()
    return path.relative_to(project_dir()).as_posix() if path.is_relative_to(project_dir()) else folder


def one(prediction: Prediction) -> RenderableType:
    """A single prediction, with its parts and its evidence."""
    p = prediction
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    step = Text(milliseconds(p.predicted_us), style="bold")
    step.append(f"   (p10-p90: {milliseconds(p.p10_us)} to {milliseconds(p.p90_us)})", style="not bold")
    table.add_row("step time", step)
    if p.measured_us is not None and p.error is not None:
        style = "green" if abs(p.error) < 0.2 else "yellow"
        measured = Text(milliseconds(p.measured_us), style="bold")
        measured.append(f"   (error of the prediction: {p.error:+.1%})", style=style)
        table.add_row("measured, unprofiled", measured)
    busy = p.active_us / p.predicted_us
    table.add_row("device active / idle", f"{milliseconds(p.active_us)} / {milliseconds(p.idle_us)}  ({busy:.0%} busy)")
    table.add_row("host done after", f"{milliseconds(p.host_us)}   → {p.bound}-bound")
    table.add_row("throughput", f"{rate(p.samples_per_s)} samples/s")
    verdict = ("fits", "") if p.fits else ("does not fit this GPU", "red")
    table.add_row("memory", Text.assemble(f"{gibibytes(p.memory_bytes)}, ", verdict))
    table.add_row("device time rests on", shares(p.evidence))
    table.add_row("host time rests on", shares(p.host_evidence))
    if p.models_from:
        table.add_row("kernel models from", ", ".join(map(_short_path, p.models_from)))
    if p.unmodelled_share > 0:
        names = ", ".join(list(p.unmodelled)[:3])
        table.add_row("not modelled", f"{p.unmodelled_share:.1%} of device time{f' ({names})' if names else ''}")
    for text in p.warnings:
        table.add_row(Text("warning", style="yellow"), text)
    title = f"{p.model} on {p.gpu}, batch {p.batch_size}"
    if p.variant != "default" and len(p.named) + len(title) <= 60:
        title += f" ({p.named})"
    elif p.variant != "default":
        table.add_row("options", p.named)
    return Panel(Group(table, Text(), families(p)), title=Text(title), title_align="left", expand=False)


def families(prediction: Prediction, most: int = 5) -> Table:
    """The largest kernel families with their share of the device's kernel time."""
    total = sum(prediction.families.values()) or 1.0
    table = Table("largest kernel families", "time", "share", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, us in list(prediction.families.items())[:most]:
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
            shown = [each for each in names if each not in left_out]
            if sum(self._wanted(each) + 1 for each in shown) <= options.max_width:
                break
        gap = 2 if sum(self._wanted(each) + 2 for each in shown) <= options.max_width else 1
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
