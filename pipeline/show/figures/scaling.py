"""Figure of predictions on one and several GPUs: what is left of the throughput of as many single GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pipeline.palette import series_colours
from pipeline.prediction import Prediction
from pipeline.show.figures.board import MARKERS, WIDE, Board, Page, marks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def efficiencies(predictions: Sequence[Prediction]) -> dict[str, dict[int, float]]:
    """Scaling efficiency by number of GPUs, from 1 on, for each GPU, model, batch size and options.

    A name has what not all predictions share. What has no efficiency is left out.
    """
    words = [_words(p) for p in predictions]
    several = len({tuple(named) for named in words}) > 1
    lines: dict[str, dict[int, float]] = {}
    for p, named in zip(predictions, words, strict=True):
        parts = [word for word in named if not several or not all(word in other for other in words)]
        if p.several is not None and p.several.efficiency is not None:
            lines.setdefault(" ".join(parts), {1: 1.0})[p.devices] = p.several.efficiency
    return {name: dict(sorted(line.items())) for name, line in lines.items()}


def _words(prediction: Prediction) -> list[str]:
    """What is the same along a line: all but the number of GPUs."""
    options = [
        text.removeprefix("model.")
        for text in prediction.overrides
        if not text.startswith(("devices=", "nodes="))
    ]
    return [prediction.model, prediction.gpu, f"b{prediction.batch_size}", *options]


def scaling_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """`efficiencies` as a table: line, devices, efficiency; empty if no step is on several GPUs."""
    lines = efficiencies(predictions)
    rows = [
        (name, devices, share) for name, line in lines.items() for devices, share in line.items()
    ]
    return pd.DataFrame(rows, columns=["line", "devices", "efficiency"])


def draw_scaling(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Scaling efficiency over the number of GPUs, a line per GPU, model, batch size and options.

    Args:
        table: `scaling_table`.
    """
    lines: dict[str, dict[int, float]] = {
        str(name): dict(zip(part["devices"], part["efficiency"], strict=True))
        for name, part in table.groupby("line", sort=False)
    }
    counts = sorted({count for line in lines.values() for count in line})
    colours, markers = (
        series_colours(list(lines)),
        dict(zip(lines, MARKERS * len(lines), strict=False)),
    )
    board = Board([2.6], page, grid="y")
    (axes,) = board.panels
    for name, line in lines.items():
        shown = [100 * efficiency for efficiency in line.values()]
        axes.plot(
            list(line), shown, f"{markers[name]}-", color=colours[name], markersize=6, linewidth=1.4
        )
        axes.annotate(
            f"{shown[-1]:.1f} %",
            (list(line)[-1], shown[-1]),
            xytext=(8, -3),
            textcoords="offset points",
            fontsize=8.5,
            color=colours[name],
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 1.2, counts[-1] * 1.6)
    axes.set_ylim(
        bottom=min(90.0, 5 * (min(100 * e for line in lines.values() for e in line.values()) // 5)),
        top=101,
    )
    board.names(axes, "GPUs", "scaling efficiency (%)")
    board.title(axes, _sentence(lines))
    board.legend(marks(colours.values()), list(colours))
    board.note(
        "Throughput of all GPUs over that of as many single ones, with the same batch on each."
    )
    return board.figure


def _sentence(lines: dict[str, dict[int, float]]) -> str:
    """Which line keeps most on its largest number of GPUs, and which least."""
    ends = {name: (max(line), line[max(line)]) for name, line in lines.items()}
    best, worst = (
        max(ends, key=lambda name: ends[name][1]),
        min(ends, key=lambda name: ends[name][1]),
    )
    text = f"{best} keeps {ends[best][1]:.1%} on {ends[best][0]:,} GPUs"
    return text if best == worst else f"{text}, {worst} {ends[worst][1]:.1%} on {ends[worst][0]:,}"
