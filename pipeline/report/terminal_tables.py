"""Predictions as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.config import LOCAL_GPU
from pipeline.prediction import Prediction
from pipeline.readable import gibibytes, html_table, milliseconds, rate

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


def interval(low_us: float, high_us: float) -> str:
    """An interval in ms such as `7.01-8.87`; whole numbers if both ends are long."""
    return (
        f"{low_us / 1000:,.0f}-{high_us / 1000:,.0f}" if low_us >= 1e5 else f"{low_us / 1000:.2f}-{high_us / 1000:.2f}"
    )


def one(prediction: Prediction) -> RenderableType:
    """A single prediction, with its parts and its evidence."""
    p = prediction
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for label, value in p.rows():
        table.add_row(label, _styled(p, label, value))
    title = p.title
    if p.variant != "default" and len(p.named) + len(title) <= 60:
        title += f" ({p.named})"
    elif p.variant != "default":
        table.add_row("options", p.named)
    return Panel(Group(table, Text(), families(p)), title=Text(title), title_align="left", expand=False)


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
    return text


def families(prediction: Prediction, most: int = 5) -> Table:
    """The largest kernel families with their share of the device's kernel time."""
    total = sum(prediction.families.values()) or 1.0
    table = Table("largest kernel families", "time", "share", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, us in list(prediction.families.items())[:most]:
        table.add_row(name, milliseconds(us), Text(f"{us / total:4.0%} " + "█" * round(24 * us / total)))
    return table


@dataclass(frozen=True)
class Comparison:
    """Predictions side by side, in the widest layout that fits the terminal; the best of each model is marked."""

    predictions: Sequence[Prediction]
    largest: Mapping[str, int | None] = field(default_factory=dict)
    costs: Sequence[float | None] = ()
    """Cost of a million samples, in `currency`; the table has this column if any cost is known."""
    currency: str = ""

    def _repr_html_(self) -> str:
        cells = [{k: v for k, v in self._cells(p).items() if k != "variant"} for p in self.predictions]
        return html_table(self._legend().plain, [list(row.values()) for row in cells], list(cells[0]) if cells else ())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wide = self._table(self.predictions, ("variant",), boxed=True)
        if _fits(wide, console, options):
            yield wide
            yield self._legend()
            return
        for model in dict.fromkeys(p.model for p in self.predictions):
            group = [p for p in self.predictions if p.model == model]
            gpus, variants = {p.gpu for p in group}, {p.named for p in group}
            shared = ["model", *(["GPU"] if len(gpus) == 1 else []), *(["variant"] if len(variants) == 1 else [])]
            heading = " ".join(
                [model, *(variants if len(variants) == 1 else ()), *(f"on {g}" for g in gpus if len(gpus) == 1)]
            )
            for left_out in range(len(HIDDEN_WHEN_NARROW) + 1):
                table = self._table(group, (*shared, *HIDDEN_WHEN_NARROW[:left_out]), boxed=False)
                if _fits(table, console, options):
                    break
            yield Text(" ".join(heading.split()), style="bold")
            yield table
        yield self._legend()

    def _legend(self) -> Text:
        notes = ["★ most samples per second of the model"] if any(map(self._best, self.predictions)) else []
        notes += ["✗ more than the GPU's memory"] if not all(p.fits for p in self.predictions) else []
        notes += [f"cost/M: {self.currency} per million samples"] if any(c is not None for c in self.costs) else []
        return Text(", ".join(notes), style="dim")

    def _table(self, rows: Sequence[Prediction], left_out: Sequence[str], boxed: bool) -> Table:
        cells = [{k: v for k, v in self._cells(p).items() if k not in left_out} for p in rows]
        table = Table(
            header_style="bold", box=box.HEAVY_HEAD if boxed else None, padding=(0, 1) if boxed else (0, 1, 0, 0)
        )
        for name in cells[0] if cells else ():
            left = name in ("GPU", "model", "variant", "bound", "evidence")
            whole = name not in ("model", "variant")
            table.add_column(name, justify="left" if left else "right", no_wrap=whole, overflow="fold")
        for p, row in zip(rows, cells, strict=True):
            table.add_row(*row.values(), style="bold" if self._best(p) else None)
        return table

    def _cells(self, p: Prediction) -> dict[str, str]:
        top = max(p.evidence, key=lambda k: p.evidence[k], default="none")
        cells = {
            "GPU": p.gpu,
            "model": f"{p.model} {p.named}".strip(),
            "variant": p.named or "default",
            "batch": str(p.batch_size),
            "step": milliseconds(p.predicted_us),
            "p10-p90 ms": interval(p.p10_us, p.p90_us),
            "busy": f"{p.active_us / p.predicted_us:.0%}",
            "bound": p.bound,
            "samples/s": f"{rate(p.samples_per_s)}{' ★' if self._best(p) else ''}",
            "memory": gibibytes(p.memory_bytes) + ("" if p.fits else " ✗"),
            "evidence": f"{top} {p.evidence.get(top, 0):.0%}",
        }
        if self.largest:
            most = self.largest.get(f"{p.gpu}/{p.model}/{p.variant}")
            cells["max batch"] = f"{most:,}" if most else "" if p.gpu == LOCAL_GPU else "none"
        if any(cost is not None for cost in self.costs):
            cost = next(cost for other, cost in zip(self.predictions, self.costs, strict=True) if other is p)
            cells["cost/M"] = "" if cost is None else rate(cost)
        if any(other.measured_us is not None for other in self.predictions):
            cells["measured"] = "" if p.error is None else f"{milliseconds(p.measured_us or 0)} ({p.error:+.0%})"
        return cells

    def _best(self, p: Prediction) -> bool:
        rivals = [other.samples_per_s for other in self.predictions if other.model == p.model and other.fits]
        return p.fits and len(self.predictions) > 1 and p.samples_per_s == max(rivals)


def _fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether a table is not wider than the terminal."""
    return Measurement.get(console, options.update(max_width=1000), table).maximum <= options.max_width


HIDDEN_WHEN_NARROW = ("evidence", "busy", "bound", "p10-p90 ms")
"""Columns that are left out on a narrow terminal, in this order. Each model then gets its own table, and values that
are equal in all its rows are printed above it."""


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


def show(predictions: Sequence[Prediction], places: Mapping[str, str] | None = None) -> None:
    """Print one prediction in full or several as a table, and the paths of the artifacts."""
    screen = console()
    screen.print(one(predictions[0]) if len(predictions) == 1 else Comparison(predictions))
    for name, place in (places or {}).items():
        screen.print(Text.assemble((f"{name}:", "dim"), f" {place}"), soft_wrap=True, highlight=False)
