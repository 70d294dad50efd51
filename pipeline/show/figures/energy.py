"""Figure of steps under several power limits: what a sample costs in time and in energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pipeline.palette import series_colours
from pipeline.prediction import Prediction
from pipeline.show.figures.board import MARKERS, Board, marks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def energy_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Energy and time of a sample: line, option, samples_per_s, joules, checked, knee; empty where no limit or clock was asked for.

    A line is a GPU, model, batch size and options. Its knee is the point of the least energy times time, where measurements check
    the power of the card.
    """
    rows = []
    for p in predictions if any(p.run_at for p in predictions) else ():
        if p.power is not None:
            line = " ".join(p.line(*filter(None, [p.run_at])))
            unit = "MHz" if "clock" in p.run_at else "W"
            value = p.run_at.partition("=")[2] or f"{p.power.limit_w:g}"
            joules = p.devices * p.power.joules / p.global_batch
            checked = p.power.evidence != "assumed"
            rows.append((line, f"{value} {unit}", p.samples_per_s, joules, checked))
    table = pd.DataFrame(rows, columns=["line", "option", "samples_per_s", "joules", "checked"])
    table = table.sort_values(["line", "samples_per_s"], ignore_index=True)
    cost = table["joules"] / table["samples_per_s"]
    least = cost == cost.groupby(table["line"]).transform("min")
    return table.assign(knee=least & table["checked"].astype(bool))


def draw_energy(table: pd.DataFrame) -> Figure:
    """Energy of a sample over throughput, a line per GPU, model, batch size and options; the knee of each is marked.

    Args:
        table: `energy_table`.
    """
    lines = {str(name): part for name, part in table.groupby("line", sort=False)}
    colours = series_colours(list(lines))
    board = Board([3.0], grid="y")
    (axes,) = board.panels
    for (name, part), marker in zip(lines.items(), MARKERS * len(lines), strict=False):
        axes.plot(part["samples_per_s"], part["joules"], f"{marker}-", color=colours[name])
        knee = part[part["knee"]]
        (ring,) = axes.plot(knee["samples_per_s"], knee["joules"], "o", color=colours[name])
        ring.set(markersize=14, fillstyle="none")
        points = part[["option", "samples_per_s", "joules"]].to_numpy(object)
        for option, *where in points:
            axes.annotate(
                option, tuple(where), xytext=(6, -13), textcoords="offset points", fontsize=8
            )
    axes.margins(x=0.12, y=0.16)
    board.names(axes, "samples per second", "joules per sample")
    (least,) = table.nsmallest(1, "joules").to_dict("records")
    at = f" at {least['option']}" if least["checked"] else ""
    board.title(axes, f"{least['line']} needs least{at}: {least['joules']:.3g} J a sample")
    board.legend(marks(colours.values()), list(colours))
    board.note("Of the GPUs alone. Circle: the least energy times time.")
    if not table["checked"].all():
        board.note("No circle on cards whose power no measurement checks.")
    return board.figure
