"""Figure of a pipeline: what the GPU of each stage does in a step, and where it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import InputError
from pipeline.palette import PHASES
from pipeline.prediction import Prediction
from pipeline.readable import milliseconds
from pipeline.show.figures.board import WIDE, Board, marks, rows_height
from pipeline.simulate.schedule import idle_shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_stages(prediction: Prediction) -> Figure:
    """The passes of all stages of a pipeline, a row each; white: the bubble.

    `communication` is the exchange of a stage's gradients behind its last pass.

    Raises:
        InputError: the step has no pipeline.
    """
    table = prediction.stages
    if table is None:
        raise InputError("plot('stages'): this step has no pipeline; give parallel.pp above 1")
    idle = idle_shares(table)
    names = [f"stage {stage}, {share:.0%} idle" for stage, share in idle.items()]
    board = Board([rows_height(names, WIDE)])
    (axes,) = board.panels
    board.label_rows(axes, names)
    shown = {phase: PHASES[phase] for phase in PHASES if phase in set(table["phase"])}
    for phase, colour in shown.items():
        for stage in idle:
            own = table[(table["phase"] == phase) & (table["stage"] == stage)]
            begin, length = own["begin_us"], own["end_us"] - own["begin_us"]
            spans = list(zip(begin / 1000, length / 1000, strict=True))
            axes.broken_barh(spans, (stage - 0.4, 0.8), color=colour, ec="white", lw=0.4)
    board.legend(marks(shown.values()), list(shown))
    board.names(axes, "time of one step (ms)")
    board.number_ticks(axes)
    mean = f"stages idle {sum(idle.values()) / len(idle):.0%} of the step in the mean"
    board.title(axes, f"{prediction.title}: {milliseconds(prediction.predicted_us)}, {mean}")
    return board.figure
