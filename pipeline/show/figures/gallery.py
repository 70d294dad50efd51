"""All figures of a grid: each with its table, or the reason why it cannot be drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from pipeline.prediction import Prediction
from pipeline.schemas import write_text
from pipeline.show.figures import costs
from pipeline.show.figures import figure_data as tables
from pipeline.show.figures import step_times as steps
from pipeline.show.figures.board import NARROW, WIDE, Page, add_note, headline_of, save
from pipeline.show.figures.roofline import draw_roofline, roofline_table
from pipeline.show.figures.scaling import draw_scaling, scaling_table
from pipeline.show.figures.throughput import over_batches
from pipeline.show.figures.throughput import throughput as draw_throughput
from pipeline.show.figures.waterfall import draw_difference
from pipeline.show.sentences import weakest
from pipeline.summary_rows import predictions_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INDEX = "figures.json"
"""File that lists the figures that were drawn, and the reasons for those that were not."""

NARROW_FOLDER = "narrow"
"""Folder of the same figures for narrow screens."""

STEPS, TIME, ACCURACY = CATEGORIES = ("Steps", "Where time goes", "Accuracy")
"""Parts of the report, in their order."""


@dataclass(frozen=True)
class Artifacts:
    """Contents of the artifacts that the figures use.

    Attributes:
        summary: `summary` table of the grid.
        detailed: steps to look into, with their calls, the slower first; two where the grid has two GPUs.
        parts: errors of measured points by part of the step, for figures of errors.
    """

    summary: pd.DataFrame
    detailed: tuple[Prediction, ...] = ()
    parts: pd.DataFrame = field(default_factory=pd.DataFrame)

    def steps(self) -> pd.DataFrame:
        """The `steps` table of the grid."""
        return steps.steps(predictions_of(self.summary))


@dataclass(frozen=True)
class Entry:
    """One figure.

    Attributes:
        name: name of its files.
        title: its name for people.
        category: its part of the report, one of `CATEGORIES`.
        table: makes its table.
        draw: draws its table on a page.
        missing: the missing evidence, for an empty table.
        note: what the figure leaves out, as a sentence; empty where it leaves out nothing.
    """

    name: str
    title: str
    category: str
    table: Callable[[Artifacts], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Page], Figure]
    missing: str
    note: Callable[[Artifacts, pd.DataFrame], str] = lambda _, __: ""


_NO_PRICE = "no GPU of this grid has a price that fits it: docs/prices.md says how to give one"
_ONE_GPU = "every point of this grid is on one GPU; devices=1,2,4,8 asks for several"

GALLERY = (
    Entry(
        "step_times",
        "Step times",
        STEPS,
        Artifacts.steps,
        steps.step_times,
        "no point was predicted",
        lambda a, _: f"{weakest(predictions_of(a.summary))}.",
    ),
    Entry(
        "throughput",
        "Throughput",
        STEPS,
        lambda a: over_batches(a.steps()),
        draw_throughput,
        "every model of this grid has one batch size",
    ),
    Entry(
        "scaling",
        "Scaling over GPUs",
        STEPS,
        lambda a: scaling_table(predictions_of(a.summary)),
        draw_scaling,
        _ONE_GPU,
    ),
    Entry(
        "cost",
        "Throughput for the money",
        STEPS,
        lambda a: tables.value_for_money(a.steps()),
        costs.value_for_money,
        _NO_PRICE,
    ),
    Entry(
        "breakdown",
        "Time by kernel family",
        TIME,
        lambda a: tables.families(predictions_of(a.summary)),
        steps.breakdown,
        "no kernel was predicted",
    ),
    Entry(
        "difference",
        "Why one GPU is faster",
        TIME,
        lambda a: tables.difference_table(a.detailed),
        lambda table, page: draw_difference(table.attrs[tables.DRAWN], page),
        "not a grid of two GPUs",
    ),
    Entry(
        "roofline",
        "What limits the kernels",
        TIME,
        lambda a: roofline_table(a.detailed),
        lambda table, page: draw_roofline(table.attrs[tables.DRAWN], page),
        "the grid has no predicted step with products",
    ),
)
"""Every figure of the product, in the order of the report; `evaluation.figures` adds those of errors."""


def category_of(name: str, entries: Sequence[Entry] = GALLERY) -> str:
    """The report's category of one of these figures.

    Raises:
        KeyError: there is no figure of this name.
    """
    return {entry.name: entry.category for entry in entries}[name]


def draw(entry: Entry, artifacts: Artifacts, table: pd.DataFrame, page: Page) -> Figure:
    """One figure with its note."""
    figure = entry.draw(table, page)
    if note := entry.note(artifacts, table):
        add_note(figure, note)
    return figure


def draw_all(
    artifacts: Artifacts, folder: Path, entries: Sequence[Entry] = GALLERY
) -> dict[str, str]:
    """Draw every figure that has data as SVG and PNG, with its table as CSV; list the others with the reason.

    The folder `narrow` gets the same figures for narrow screens, as SVG.

    Args:
        artifacts: what the figures show.
        folder: where to write them.
        entries: the figures, in the order of the report.

    Returns:
        The reason for each figure that was not drawn, by name.
    """
    narrow = folder / NARROW_FOLDER
    narrow.mkdir(parents=True, exist_ok=True)
    drawn, absent = {}, {}
    for entry in entries:
        table = entry.table(artifacts)
        if table.empty:
            absent[entry.name] = entry.missing
            continue
        figure = draw(entry, artifacts, table, WIDE)
        save(figure, folder, entry.name)
        save(draw(entry, artifacts, table, NARROW), narrow, entry.name, kinds=("svg",))
        table.to_csv(folder / f"{entry.name}.csv", index=False, lineterminator="\n")
        drawn[entry.name] = {
            "title": entry.title,
            "category": entry.category,
            "says": headline_of(figure),
            "rows": len(table),
        }
    index = {"drawn": drawn, "not_drawn": absent}
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
    return absent
