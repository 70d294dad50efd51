"""Predictions as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.prediction import Prediction

PIPE_WIDTH = 140
"""Columns of a table that no terminal shows."""


def console() -> Console:
    """The terminal; output that goes to a file or a pipe is as wide as a wide terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=max(found.width, PIPE_WIDTH))


def milliseconds(us: float) -> str:
    """Time in ms with three significant digits or so."""
    ms = us / 1000
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 100 else f"{ms:,.0f} ms"


def gibibytes(size: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def shares(parts: Mapping[str, float]) -> str:
    """`fitted 92 %, roofline 8 %`, largest first."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005) or "none"


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
        measured.append(f"   (prediction is off by {p.error:+.1%})", style=style)
        table.add_row("measured, unprofiled", measured)
    busy = p.active_us / p.predicted_us
    table.add_row("device active / idle", f"{milliseconds(p.active_us)} / {milliseconds(p.idle_us)}  ({busy:.0%} busy)")
    table.add_row("host done after", f"{milliseconds(p.host_us)}   → {p.bound}-bound")
    table.add_row("throughput", f"{p.samples_per_s:,.0f} samples/s")
    verdict = "fits" if p.fits else Text("does not fit this GPU", style="red")
    memory = Text(f"{gibibytes(p.memory_bytes)}, ").append_text(verdict if isinstance(verdict, Text) else Text(verdict))
    table.add_row("memory", memory)
    table.add_row("device time rests on", shares(p.evidence))
    table.add_row("host time rests on", shares(p.host_evidence))
    if p.unmodelled_share > 0:
        names = ", ".join(list(p.unmodelled)[:3])
        table.add_row("not modelled", f"{p.unmodelled_share:.1%} of device time{f' ({names})' if names else ''}")
    title = f"{p.model} on {p.gpu}, batch {p.batch_size}" + ("" if p.variant == "default" else f" ({p.variant})")
    return Panel(Group(table, Text(), families(p)), title=title, title_align="left", expand=False)


def families(prediction: Prediction, most: int = 5) -> Table:
    """The largest kernel families with their share of the device's kernel time."""
    total = sum(prediction.families.values()) or 1.0
    table = Table("largest kernel families", "time", "share", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, us in list(prediction.families.items())[:most]:
        table.add_row(name, milliseconds(us), Text(f"{us / total:4.0%} " + "█" * round(24 * us / total)))
    return table


def many(predictions: Sequence[Prediction], largest: Mapping[str, int | None] | None = None) -> Table:
    """Several predictions side by side; the highest throughput of each model is marked."""
    best = {m: max((p.samples_per_s for p in predictions if p.model == m and p.fits), default=0.0)
            for m in {p.model for p in predictions}}  # fmt: skip
    table = Table(header_style="bold", title_justify="left")
    for name in ("GPU", "model", "batch"):
        table.add_column(name, overflow="fold")
    for name in ("step", "p10-p90", "busy", "bound", "samples/s", "memory", "evidence"):
        table.add_column(name, justify="left" if name in ("bound", "evidence") else "right")
    if largest:
        table.add_column("largest batch", justify="right")
    if any(p.measured_us is not None for p in predictions):
        table.add_column("measured", justify="right")
    for p in predictions:
        mark = " ★" if p.fits and p.samples_per_s == best[p.model] and len(predictions) > 1 else ""
        name = p.model if p.variant == "default" else f"{p.model} {p.variant}"
        top = max(p.evidence, key=lambda k: p.evidence[k], default="none")
        cells = [p.gpu, name, str(p.batch_size), milliseconds(p.predicted_us),
                 f"{p.p10_us / 1000:.2f}-{p.p90_us / 1000:.2f}", f"{p.active_us / p.predicted_us:.0%}", p.bound,
                 f"{p.samples_per_s:,.0f}{mark}", gibibytes(p.memory_bytes) + ("" if p.fits else " ✗"),
                 f"{top} {p.evidence.get(top, 0):.0%}"]  # fmt: skip
        if largest:
            cells.append(str(largest.get(f"{p.gpu}/{p.model}/{p.variant}") or "none"))
        if any(q.measured_us is not None for q in predictions):
            cells.append("" if p.error is None else f"{milliseconds(p.measured_us or 0)} ({p.error:+.0%})")
        table.add_row(*cells, style="bold" if mark else None)
    return table


def show(predictions: Sequence[Prediction], places: Mapping[str, str] | None = None) -> None:
    """Print one prediction in full or several as a table, and where the artifacts lie."""
    screen = console()
    screen.print(one(predictions[0]) if len(predictions) == 1 else many(predictions))
    for name, place in (places or {}).items():
        screen.print(f"[dim]{name}:[/dim] {place}", soft_wrap=True, highlight=False)
