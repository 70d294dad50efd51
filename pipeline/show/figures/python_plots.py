"""Figures of predictions in memory: where the time of one step goes, and several steps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pipeline.palette import IDLE, MEASURED, OTHER, family_colour, text_on
from pipeline.prediction import Prediction
from pipeline.readable import milliseconds
from pipeline.show.figures.layout import WIDE, Board, rows_height
from pipeline.show.figures.scaling import draw_scaling
from pipeline.show.figures.step_times import MIN_LABEL, step_times, steps

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


def draw_step(prediction: Prediction) -> Figure:
    """Device time by kernel family and idle time, host time, and the interval of a step, as horizontal bars in ms.

    Kernels of several streams may overlap. Their segments are then scaled to the active time, and a line below says so.
    """
    p = prediction
    rows = ["device", "host"]
    board = Board([1.5 * rows_height(rows, WIDE)])
    (axes,) = board.panels
    handles: list[Any] = []
    left = 0.0
    for name, us in device_parts(p).items():
        shade = IDLE if name == "idle" else OTHER if name == OTHERS else family_colour(name)
        bar = axes.barh(
            0, us / 1000, left=left / 1000, height=0.6, color=shade, edgecolor="white", linewidth=0.8, label=name
        )
        handles.append(bar[0])
        if 100 * us >= MIN_LABEL * p.predicted_us:
            percent = f"{100 * us / p.predicted_us:.0f} %"
            axes.bar_label(bar, [percent], label_type="center", fontsize=8, color=text_on(shade))
        left += us
    handles.append(axes.barh(1, p.host_us / 1000, height=0.6, color=HOST, label="host")[0])
    low, high = p.predicted_us - p.p10_us, p.p90_us - p.predicted_us
    handles.append(
        axes.errorbar(p.predicted_us / 1000, 0, xerr=[[max(low, 0) / 1000], [max(high, 0) / 1000]], fmt="none",
                      ecolor="black", capsize=3, label="p10 to p90")
    )  # fmt: skip
    names = [*device_parts(p), "host", "p10 to p90"]
    if p.measured_us is not None:
        handles += axes.plot(p.measured_us / 1000, 0, "D", color=MEASURED, markersize=6)
        names.append("measured")
    board.label_rows(axes, rows)
    axes.set_xlim(0, 1.03 * max(p.p90_us, p.host_us, p.measured_us or 0.0) / 1000)
    board.names(axes, "time of one step (ms)")
    board.number_ticks(axes)
    named = f" ({p.named})" if p.named else ""
    board.title(axes, f"{p.title}{named}: {milliseconds(p.predicted_us)}, {verdict(p)}")
    board.legend(handles, names)
    if p.several:
        board.note("Of collectives, the part is drawn that no kernel hides.")
    elif sum(p.families_us.values()) > OVERLAP * p.active_us:
        board.note("Kernels overlap: their times are scaled to the time in which any of them runs.")
    return _shown_by_notebooks(board.figure)


def draw_steps(predictions: Sequence[Prediction]) -> Figure:
    """Several predicted steps as bars with their intervals, or how they scale where their numbers of GPUs differ."""
    scales = len({p.devices for p in predictions}) > 1
    return _shown_by_notebooks(draw_scaling(predictions) if scales else step_times(steps(predictions)))


def _shown_by_notebooks(figure: Figure) -> Figure:
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
    p = prediction
    exposed = p.several.exposed_communication_us if p.several else 0.0
    families_us = {name: us for name, us in p.families_us.items() if not p.several or name != "collective"}
    total = sum(families_us.values())
    scale = (p.active_us - exposed) / total if total else 0.0
    ordered = sorted(families_us.items(), key=lambda item: -item[1])
    parts = {name: us * scale for name, us in ordered[:NAMED]}
    rest = sum(us for _, us in ordered[NAMED:]) * scale
    parts |= {OTHERS: rest} if rest > 0 else {}
    return parts | ({"collective": exposed} if exposed > 0 else {}) | {"idle": p.idle_us}


def verdict(prediction: Prediction) -> str:
    """What bounds the step, with the share of it in which the device idles."""
    idle = prediction.idle_us / prediction.predicted_us
    return f"{prediction.bound}-bound, the device idles {idle:.0%} of it"
