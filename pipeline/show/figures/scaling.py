"""Figure of predictions on one and several GPUs: their throughput beside that of as many single GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pipeline.answers.difference import difference
from pipeline.palette import series_colours
from pipeline.prediction import Prediction
from pipeline.show.figures.board import MARKERS, WIDE, Board, Page, marks, plain_ticks, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST, MOST = 0.005, 3
"""Smallest share of the step on several GPUs, and number, of the parts that are named as longer than on one."""


def scaling_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Throughput of all GPUs over their number, from 1 on.

    A line is a GPU, model, batch size and options, and is named by what not all predictions share. It is empty if no step is on
    several GPUs.

    Returns:
        `line`, `devices`, `samples_per_s` with p10 and p90 (`low`, `high`), `ideal` and `lost`. The ideal is the throughput of as
        many single GPUs. Lost are the parts that take longer than on one GPU, where that step is among the predictions.
    """
    words = [p.line("devices=", "nodes=") for p in predictions]
    several = len(set(map(tuple, words))) > 1
    alone = {tuple(of): p for p, of in zip(predictions, words, strict=True) if p.devices == 1}
    rows: dict[tuple[str, int], tuple[float | str, ...]] = {}
    for p, named in zip(predictions, words, strict=True):
        parts = [word for word in named if not several or not all(word in other for other in words)]
        if p.several is not None and p.several.efficiency is not None:
            line, speed = " ".join(parts), p.samples_per_s
            ideal, one = speed / p.several.efficiency, alone.get(tuple(named))
            each = one.samples_per_s if one else ideal / p.devices
            ends = (one.low_samples_per_s, one.high_samples_per_s) if one else (each, each)
            rows[line, 1] = (each, *ends, each, "")
            lost = ", ".join(longer(one, p)) if one else ""
            ends = p.low_samples_per_s, p.high_samples_per_s
            rows[line, p.devices] = (speed, *ends, ideal, lost)
    names = ["line", "devices", "samples_per_s", "low", "high", "ideal", "lost"]
    table = pd.DataFrame([(*key, *row) for key, row in rows.items()], columns=names)
    groups = [part.sort_values("devices") for _, part in table.groupby("line", sort=False)]
    return pd.concat(groups, ignore_index=True) if groups else table


def longer(one: Prediction, several: Prediction) -> list[str]:
    """The parts that take most time on several GPUs beside that on one, with their share of the step there."""
    parts = [
        part for part in difference(one, several).parts if part.us >= LEAST * several.predicted_us
    ]
    return [f"{part.label} {100 * part.us / several.predicted_us:.1f} %" for part in parts[:MOST]]


def draw_scaling(table: pd.DataFrame, page: Page = WIDE) -> Figure:
    """Samples per second of all GPUs beside the ideal, a line per GPU, model, batch size and options.

    Args:
        table: `scaling_table`.
    """
    lines = {str(name): part for name, part in table.groupby("line", sort=False)}
    colours, counts = series_colours(list(lines)), sorted(set(table["devices"]))
    board = Board([2.8], page, grid="both")
    (axes,) = board.panels
    for (name, part), marker in zip(lines.items(), MARKERS * len(lines), strict=False):
        speed, colour = part["samples_per_s"], colours[name]
        axes.plot(part["devices"], part["ideal"], "--", color=colour, linewidth=0.9)
        axes.errorbar(
            part["devices"],
            speed,
            yerr=spread(*(part[end].to_numpy(float) for end in ("samples_per_s", "low", "high"))),
            fmt=f"{marker}-",
            color=colour,
            markersize=5,
            linewidth=1.4,
            capsize=2,
        )
        axes.annotate(
            f"{100 * speed.iloc[-1] / part['ideal'].iloc[-1]:.0f} %",
            (part["devices"].iloc[-1], speed.iloc[-1]),
            xytext=(8, -4),
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 1.2, counts[-1] * 1.6)
    plain_ticks(axes.yaxis)
    board.names(axes, "GPUs", "samples/s of all, logarithmic")
    board.title(axes, _sentence(table))
    board.legend(marks(colours.values()), list(colours))
    board.note("Dashed: as many single GPUs, with the same batch on each. Whiskers: p10 to p90.")
    return board.figure


def _sentence(table: pd.DataFrame) -> str:
    """Which line keeps most on its largest number of GPUs, and which least, with what takes longer there."""
    ends = table.drop_duplicates("line", keep="last")
    order = (ends["samples_per_s"] / ends["ideal"]).to_numpy().argsort(kind="stable")
    texts = []
    for row in dict.fromkeys([order[-1], order[0]]):
        line, devices, speed, _, _, ideal, lost = ends.iloc[row]
        text = f"{line} keeps {100 * speed / ideal:.0f} % on {devices:,} GPUs".strip()
        texts.append(text + (f" (longer: {lost})" if lost else ""))
    return "; ".join(texts)
