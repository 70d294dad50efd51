"""The report of a grid: one HTML page with its numbers, figures, tables and rules, which opens offline."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pipeline.paths import project_dir
from pipeline.schemas import write_text
from pipeline.show.comparison import Comparison
from pipeline.show.explore_page import STYLE, explore_part, page_points, policy_of
from pipeline.show.figures.gallery import ACCURACY, CATEGORIES, INDEX, NARROW_FOLDER, STEPS
from pipeline.show.figures.step_times import steps as step_table
from pipeline.show.sentences import answers, grid_title

TEMPLATES = "workflow/report"
PAGE, CAPTIONS = "page.html.j2", "figures.rst"
"""The page's template, and the captions of the figures, which Snakemake's own report shows too."""

SCRIPT = re.compile(r"<script type=\"module\">(.*?)</script>", re.DOTALL)
"""The script of the part to play with, and of a timeline's page; a frame is bound by the policy of the page around it."""

NOT_OF_THE_GRID = (
    "replays",
    "whole_models",
    "transfer_steps",
    "transfer_models",
    "transfer_kernels",
)
"""Figures of other models than those of the grid; the page folds them."""


@dataclass(frozen=True)
class Drawn:
    """A figure of the page: SVG for wide and for narrow screens as data URIs, and its caption as HTML."""

    name: str
    title: str
    says: str
    wide: str
    narrow: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, a description of the table below it, and the table as text; `rows` is empty if there is no data."""

    title: str
    says: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_report(
    page: str | Path,
    comparison: Comparison,
    figures: str | Path,
    tables: Sequence[Section],
    rules: Mapping[str, Sequence[str]],
    timelines: Mapping[str, str],
) -> None:
    """Write the report.

    Args:
        page: the HTML file to write.
        comparison: the grid's points.
        figures: folder of the figures that `draw_all` wrote.
        tables: sections of the accuracy report; none in an installed wheel.
        rules: each rule of the run with those whose outputs it reads.
        timelines: HTML page of each point's timeline, by the point's name.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(project_dir() / TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    predictions = comparison.predictions
    played = explore_part(page_points(predictions, comparison.usable_bytes))
    text = environment.get_template(PAGE).render(
        title=grid_title(predictions),
        said=answers(step_table(map(comparison.one_host.of, predictions)), predictions),
        hosts=comparison.hosts,
        policy=page_policy([played, *timelines.values()]),
        style=STYLE.read_text(encoding="utf-8"),
        played=played,
        steps=_steps_section(comparison),
        parts={
            name: part
            for name, part in figures_by_category(Path(figures)).items()
            if part or (name == ACCURACY and tables)
        },
        accuracy=ACCURACY,
        folded=NOT_OF_THE_GRID,
        tables=[part for part in tables if part.title != STEPS],
        rules=rules,
        timelines=timelines,
        missing=not_drawn(Path(figures)),
    )
    write_text(page, text)


def _steps_section(comparison: Comparison) -> Section:
    """The table of steps, with their memory, throughput and bound."""
    heading, heads, rows = comparison.cells(comparison.predictions)
    sentences = [heading, *(note.plain for note in comparison.notes(()))]
    notes = " ".join(f"{text.rstrip('.')}." for text in sentences if text)
    return Section(STEPS, notes, tuple(heads), tuple(map(tuple, rows)))


def page_policy(pages: Iterable[str]) -> str:
    """The page's Content-Security-Policy, which lets exactly the scripts of these parts and frames run."""
    return policy_of(script for page in pages for script in SCRIPT.findall(page))


def read_sections(path: str | Path) -> list[Section]:
    """Read the sections of accuracy tables, as a rule of `evaluation/` writes them."""
    return msgspec.json.decode(Path(path).read_bytes(), type=list[Section])


def figures_by_category(folder: Path) -> dict[str, list[Drawn]]:
    """The figures of a folder by part of the report, in its order; some parts have none."""
    index: dict[str, dict[str, Any]] = json.loads((folder / INDEX).read_text(encoding="utf-8"))[
        "drawn"
    ]
    parts: dict[str, list[Drawn]] = {category: [] for category in CATEGORIES}
    for name, facts in index.items():
        wide, narrow = (
            _data_uri(where / f"{name}.svg") for where in (folder, folder / NARROW_FOLDER)
        )
        figure = Drawn(name, facts["title"], facts["says"], wide, narrow, caption(name))
        parts[facts["category"]].append(figure)
    return parts


def not_drawn(folder: Path) -> dict[str, str]:
    """Reason for each figure that was not drawn."""
    reasons: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["not_drawn"]
    return reasons


def caption(name: str) -> str:
    """The caption of a figure as HTML, from the file that Snakemake's own report reads."""
    from docutils.core import publish_parts
    from jinja2 import Environment

    text = (project_dir() / TEMPLATES / CAPTIONS).read_text(encoding="utf-8")
    rst = (
        Environment(autoescape=False)
        .from_string(text)
        .render(snakemake={"wildcards": {"figure": name}})
    )
    return str(
        publish_parts(rst, writer="html5", settings_overrides={"report_level": 3})["fragment"]
    )


def point_name(artifact: str | Path) -> str:
    """Name of a point, from the path of one of its artifacts: `<GPU>/<model>/<variant>/b<batch>/<file>`."""
    gpu, model, variant, batch = Path(artifact).parts[-5:-1]
    return f"{model} on {gpu}, batch {batch.removeprefix('b')}" + (
        "" if variant == "default" else f", {variant}"
    )


def _data_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
