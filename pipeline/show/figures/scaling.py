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


def scaling_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Scaling efficiency over the number of GPUs, from 1 on: line, devices, efficiency.

    A line is a GPU, model, batch size and options, and is named by what not all predictions share. It is empty if no step is on
    several GPUs.
    """
    words = [_words(p) for p in predictions]
    several = len(set(map(tuple, words))) > 1
    rows: dict[tuple[str, int], float] = {}
    for p, named in zip(predictions, words, strict=True):
        parts = [word for word in named if not several or not all(word in other for other in words)]
        if p.several is not None and p.several.efficiency is not None:
            line = " ".join(parts)
            rows |= {(line, 1): 1.0, (line, p.devices): p.several.efficiency}
    table = pd.DataFrame(
        [(*key, share) for key, share in rows.items()], columns=["line", "devices", "efficiency"]
    )
    groups = [part.sort_values("devices") for _, part in table.groupby("line", sort=False)]
    return pd.concat(groups, ignore_index=True) if groups else table


def _words(prediction: Prediction) -> list[str]:
    """What is the same along a line: all but the number of GPUs."""
    options = [
        text.removeprefix("model.")
        for text in prediction.overrides
        if not text.startswith(("devices=", "nodes="))
    ]
    return [prediction.model, prediction.gpu, f"b{prediction.batch_size}", *options]


def draw_scaling(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Scaling efficiency over the number of GPUs, a line per GPU, model, batch size and options.

    Args:
        table: `scaling_table`.
    """
    lines = {str(name): part for name, part in table.groupby("line", sort=False)}
    colours, counts = series_colours(list(lines)), sorted(set(table["devices"]))
    board = Board([2.6], page, grid="y")
    (axes,) = board.panels
    for (name, part), marker in zip(lines.items(), MARKERS * len(lines), strict=False):
        shown, colour = 100 * part["efficiency"], colours[name]
        axes.plot(part["devices"], shown, f"{marker}-", color=colour, markersize=6, linewidth=1.4)
        axes.annotate(
            f"{shown.iloc[-1]:.1f} %",
            (part["devices"].iloc[-1], shown.iloc[-1]),
            xytext=(8, -3),
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 1.2, counts[-1] * 1.6)
    axes.set_ylim(bottom=min(90.0, 5 * (100 * table["efficiency"].min() // 5)), top=101)
    board.names(axes, "GPUs", "scaling efficiency (%)")
    board.title(axes, _sentence(table))
    board.legend(marks(colours.values()), list(colours))
    board.note(
        "Throughput of all GPUs over that of as many single ones, with the same batch on each."
    )
    return board.figure


def _sentence(table: pd.DataFrame) -> str:
    """Which line keeps most on its largest number of GPUs, and which least."""
    ends = table.drop_duplicates("line", keep="last").set_index("line")
    shares, counts = ends["efficiency"], ends["devices"]
    best, worst = str(shares.idxmax()), str(shares.idxmin())
    text = f"{best} keeps {shares[best]:.1%} on {counts[best]:,} GPUs"
    return text if best == worst else f"{text}, {worst} {shares[worst]:.1%} on {counts[worst]:,}"
