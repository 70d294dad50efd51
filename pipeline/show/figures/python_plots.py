"""Figures of predictions in memory: where the time of one step goes, and several steps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from pipeline.families import family_colour
from pipeline.palette import ACTIVE, IDLE_STYLE, MEASURED, OTHER
from pipeline.prediction import Prediction
from pipeline.readable import milliseconds
from pipeline.show.figures.board import WIDE, Board, Page, rows_height, spread, value_labels
from pipeline.show.figures.energy import draw_energy, energy_table
from pipeline.show.figures.figure_data import layout_families, step_parts
from pipeline.show.figures.scaling import draw_scaling, scaling_table
from pipeline.show.figures.step_times import breakdown, step_times, steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTEBOOK_DPI = 90

NAMED = 6
"""Number of kernel families with a segment of their own."""

OTHERS = "other families"
HOST = "#555555"
"""Colour of the host's time."""

OVERLAP = 1.01
"""Ratio of the sum of kernel times to the active time from which kernels of several streams overlap."""


def draw_step(prediction: Prediction, page: Page = WIDE) -> Figure:
    """The step with its interval, its parts from left to right, each beside its name, and the host's time; in ms.

    Kernels of several streams may overlap. Their bars are then scaled to the active time, and a line below says so.
    """
    p = prediction
    parts = device_parts(p)
    names = ["step", *parts, "host"]
    board = Board([rows_height(names, page)], page)
    (axes,) = board.panels
    board.label_rows(axes, names)
    times_us = {"step": p.predicted_us, **parts, "host": p.host_us}
    ms = {name: us / 1000 for name, us in times_us.items()}
    left, ends = 0.0, []
    colours = {"step": ACTIVE, "host": HOST, OTHERS: OTHER}
    for row, name in enumerate(names):
        style = (
            IDLE_STYLE if name == "idle" else {"color": colours.get(name) or family_colour(name)}
        )
        apart = name in ("step", "host")
        axes.barh(row, ms[name], left=0.0 if apart else left, height=0.66, label=name, **style)
        left += 0.0 if apart else ms[name]
        ends.append(ms[name] if apart else left)
    low, step, high = np.array([p.p10_us, p.predicted_us, p.p90_us]) / 1000
    axes.errorbar(
        step,
        0,
        xerr=spread(step, low, high),
        fmt="none",
        ecolor="black",
        capsize=3,
        label="p10 to p90",
    )
    ends[0] = max(p.p90_us, p.measured_us or 0.0) / 1000
    if p.measured_us is not None:
        axes.plot(p.measured_us / 1000, 0, "D", color=MEASURED, markersize=6)
    value_labels(axes, ends, [_beside(p, name, ms[name]) for name in names], va="center")
    axes.set_xlim(0, 1.42 * max(ends))
    board.names(axes, "time of one step (ms)")
    board.number_ticks(axes)
    named = f" ({p.named})" if p.named else ""
    board.title(axes, f"{p.title}{named}: {milliseconds(p.predicted_us)}, {verdict(p)}")
    board.note(f"Whisker: p10 to p90. Host {p.host}." if p.host else "Whisker: p10 to p90.")
    if p.several:
        board.note("Of collectives, the part is drawn that no kernel hides.")
    elif sum(p.families_us.values()) > OVERLAP * p.active_us:
        board.note("Kernels overlap: their times are scaled to the time in which any of them runs.")
    return shown_by_notebooks(board.figure)


def _beside(p: Prediction, name: str, ms: float) -> str:
    """The numbers beside a bar of `draw_step`."""
    if name == "step":
        measured = "" if p.measured_us is None else f"; ◆ measured {milliseconds(p.measured_us)}"
        return f"{milliseconds(1000 * ms)}{measured}"
    return milliseconds(1000 * ms) + (
        "" if name == "host" else f", {100_000 * ms / p.predicted_us:.0f} %"
    )


def draw_steps(predictions: Sequence[Prediction], alike: Sequence[Prediction] = ()) -> Figure:
    """Several predicted steps as bars with their intervals; how they scale, their parts, or their energy, where layouts differ.

    Args:
        predictions: what is drawn.
        alike: the same steps on one host, which titles compare; those that are drawn, if they are not given.
    """
    scales = len({p.devices for p in predictions}) > 1
    if len(layouts := layout_families(predictions)):
        return shown_by_notebooks(breakdown(layouts))
    energies = energy_table(predictions)
    if len(energies) > 1:
        return shown_by_notebooks(draw_energy(energies))
    return shown_by_notebooks(
        draw_scaling(scaling_table(predictions))
        if scales
        else step_times(steps(predictions), alike=steps(alike or predictions))
    )


def shown_by_notebooks(figure: Figure) -> Figure:
    """A figure that a notebook shows as a picture; it shows other figures only once pyplot was imported."""

    def picture() -> bytes:
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=NOTEBOOK_DPI)
        return stream.getvalue()

    vars(figure)["_repr_png_"] = picture
    return figure


def device_parts(prediction: Prediction) -> dict[str, float]:
    """The step's device time by kernel family, largest first, then the idle time; in µs, with the step as their sum.

    Of collectives, the part counts in which nothing else runs.
    """
    parts = {"idle": prediction.idle_us, **step_parts(prediction)}
    apart = ("collective", "idle") if prediction.several else ("idle",)
    families = [name for name in parts if name not in apart]
    rest = sum(parts[name] for name in families[NAMED:])
    return (
        {name: parts[name] for name in families[:NAMED]}
        | ({OTHERS: rest} if rest > 0 else {})
        | {name: parts[name] for name in apart if name in parts}
    )


def verdict(prediction: Prediction) -> str:
    """What bounds the step, with the share of it in which the device idles."""
    idle = prediction.idle_us / prediction.predicted_us
    return f"{prediction.bound}-bound, the device idles {idle:.0%} of it"
