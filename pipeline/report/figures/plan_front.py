"""The figure of a plan: time and cost of the best points, with the front that no other point beats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.answers.plan_results import Choice, Plan
from pipeline.errors import InputError
from pipeline.palette import ACTIVE, series_colours
from pipeline.report.figures.layout import WIDE, Page, board, finish, footnote, legend_of
from pipeline.report.figures.style import MARKERS, plain_ticks, save

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

KINDS = ("svg", "png")


def check_figure(path: Path) -> None:
    """Refuse a file that cannot be written, before the search.

    Raises:
        InputError: the suffix is no kind of figure, or the folder does not exist.
    """
    if path.suffix.removeprefix(".") not in KINDS:
        raise InputError(f"--figure {path}: give a name that ends in .svg or .png")
    if not path.parent.is_dir():
        raise InputError(f"--figure {path}: there is no folder {path.parent}")


def write_plan_front(plan: Plan, path: Path) -> None:
    """Draw a plan to an SVG or PNG file.

    Raises:
        InputError: as `check_figure`.
    """
    check_figure(path)
    save(plan_front(plan), path.parent, path.stem, (path.suffix.removeprefix("."),))


def plan_front(plan: Plan, page: Page = WIDE) -> Figure:
    """Time against cost of a million samples: the front as a line, and the other best points.

    Without any price, time against batch size.
    """
    shown = list({id(each.point): each for each in (*plan.front, *plan.contenders)}.values())
    priced = [each for each in shown if each.cost_per_sample is not None]

    def place(each: Choice) -> tuple[float, float]:
        return each.us_per_sample, 1e6 * each.cost_per_sample if each.cost_per_sample else each.point.batch_size

    shown = priced or shown
    figure, (axes,) = board([3.2], page, grid="both")
    handles: list[Artist] = []
    colours = series_colours(each.point.gpu for each in shown)
    for (gpu, colour), marker in zip(colours.items(), MARKERS * len(colours), strict=False):
        places = [place(each) for each in shown if each.point.gpu == gpu]
        handles += axes.plot(*zip(*places, strict=True), marker, color=colour, label=gpu)
    if priced:
        line = [place(each) for each in plan.front if each.cost_per_sample is not None]
        handles += axes.plot(*zip(*line, strict=True), "-", color=ACTIVE, linewidth=1, zorder=1, label="front")
    if plan.best in shown:
        axes.annotate("best", place(plan.best), xytext=(6, 6), textcoords="offset points", fontsize=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis, axes.yaxis)
    axes.set_xlabel("time of a million samples (s)")
    axes.set_ylabel(f"cost of a million samples ({plan.currency})" if priced else "batch size")
    legend_of(figure, handles, [str(handle.get_label()) for handle in handles])
    footnote(figure, f"{plan.points:,} points, objective {plan.objective}. {'; '.join(plan.prices)}")
    return finish(figure)
