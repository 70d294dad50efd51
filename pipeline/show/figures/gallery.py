"""All figures of a grid: each with its table, or the reason why it cannot be drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.prediction import Prediction
from pipeline.schemas import write_text
from pipeline.show.figures import costs
from pipeline.show.figures import figure_data as tables
from pipeline.show.figures import kernel_errors as kernels
from pipeline.show.figures import overhead_plots as overheads
from pipeline.show.figures import step_times as steps
from pipeline.show.figures.board import NARROW, WIDE, Page, add_note, headline_of, save
from pipeline.show.figures.roofline import draw_roofline, roofline_table
from pipeline.show.figures.scaling import draw_scaling, scaling_table
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

STEPS, TIME, ACCURACY, KERNELS, HOST, TRANSFER = CATEGORIES = (
    "Steps", "Where time goes", "Accuracy", "Kernel models", "Host overheads", "Transfer",
)  # fmt: skip
"""Parts of the report, in their order."""


@dataclass(frozen=True)
class Artifacts:
    """Contents of the artifacts that the figures use.

    Attributes:
        summary: `summary` table of the grid.
        observations: `overhead_samples` of the grid's hosts, with a `gpu` column that names the host.
        models: (GPU, model folder) pairs of fitted kernel models.
        operators: calls per step of the grid's models, with the columns model, op, calls.
        workloads: the grid's workloads, by the names that overhead observations have.
        further: tables that only figures outside of `GALLERY` use, by name.
        detailed: steps to look into, with their calls, the slower first; two where the grid has two GPUs.
    """

    summary: pd.DataFrame
    observations: pd.DataFrame = field(default_factory=pd.DataFrame)
    models: tuple[tuple[str, Path], ...] = ()
    operators: pd.DataFrame = field(default_factory=pd.DataFrame)
    workloads: tuple[str, ...] = ()
    further: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    detailed: tuple[Prediction, ...] = ()

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


def _observations(make: Callable[[Artifacts], pd.DataFrame]) -> Callable[[Artifacts], pd.DataFrame]:
    return lambda artifacts: (
        make(artifacts) if len(artifacts.observations) else artifacts.observations
    )


def _without_models(artifacts: Artifacts, table: pd.DataFrame) -> str:
    """GPUs of the grid that a figure of kernel models lacks."""
    have = set(table["gpu"].astype(str).str.split(" ").str[0])
    lacking = [gpu for gpu in dict.fromkeys(artifacts.summary["gpu"]) if gpu not in have]
    if not lacking:
        return ""
    return (
        f"Without models fitted to their own samples: {', '.join(lacking)}; their kernels rest on"
        " other GPUs or a roofline."
    )


def _other_hosts(artifacts: Artifacts, table: pd.DataFrame) -> str:
    """Which hosts the figure shows, for GPUs without a host of their own, and workloads that were not profiled."""
    have = set(table["gpu"])
    hosts = {
        p.gpu: p.host for p in predictions_of(artifacts.summary) if p.gpu not in have and p.host
    }
    lines = [f"{gpu} is predicted with {host}." for gpu, host in hosts.items()]
    if "workload" in table and not set(artifacts.observations["workload"]) & set(
        artifacts.workloads
    ):
        lines.append(
            "None of the grid's workloads was profiled: these are the profiled workloads of the"
            " host."
        )
    return " ".join(lines)


def _as_in_steps(artifacts: Artifacts, table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the grid's order of GPUs, so that a GPU has the same colour as in the figures of steps."""
    order_of = {gpu: number for number, gpu in enumerate(dict.fromkeys(artifacts.summary["gpu"]))}
    gpu = (
        table["gpu"].astype(str).str.split(" ").str[0]
    )  # the choice of models follows the name, if there are several
    order = np.argsort(gpu.map(order_of).fillna(len(order_of)).to_numpy(), kind="stable")
    return table.iloc[order].reset_index(drop=True)


_NO_PRICE = "no GPU of this grid has a price that fits it: docs/prices.md says how to give one"
_ONE_GPU = "every point of this grid is on one GPU; devices=1,2,4,8 asks for several"
_NO_FIT = "no kernel model of this grid's GPUs was fitted here or shipped"
_NO_TRACE = "no profiler trace of these hosts has this type of overhead"

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
        Artifacts.steps,
        draw_throughput,
        "no point was predicted",
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
    Entry(
        "kernel_errors",
        "Held-out errors",
        KERNELS,
        lambda a: _as_in_steps(a, tables.kernel_errors(a.models)),
        kernels.family_errors,
        _NO_FIT,
        _without_models,
    ),
    Entry(
        "error_histograms",
        "Distribution of errors",
        KERNELS,
        lambda a: _as_in_steps(a, tables.error_histograms(a.models)),
        kernels.error_histograms,
        "no model folder of this grid has its held-out errors; older packs have only metrics",
        _without_models,
    ),
    Entry(
        "dominant_operators",
        "Operators with the most host time",
        HOST,
        _observations(lambda a: tables.dominant_operators(a.observations, a.operators)),
        overheads.dominant_operators,
        _NO_TRACE,
        _other_hosts,
    ),
    Entry(
        "t1_by_workload",
        "T1: between operators",
        HOST,
        _observations(lambda a: tables.t1_by_workload(a.observations, a.workloads)),
        overheads.t1_by_workload,
        _NO_TRACE,
        _other_hosts,
    ),
    Entry(
        "t4_by_api",
        "T4: runtime calls",
        HOST,
        _observations(lambda a: tables.t4_by_api(a.observations)),
        overheads.t4_by_api,
        _NO_TRACE,
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
