"""The report of a grid: one HTML page with its numbers, figures and tables, which opens offline."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.answers.advice import Predict, advice_for
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.schemas import write_text
from pipeline.show.brief import Fact, brief, faster
from pipeline.show.comparison import Comparison
from pipeline.show.explore_page import STYLE, explore_part, page_points, policy_of
from pipeline.show.figures.gallery import CATEGORIES, INDEX, NARROW_FOLDER, STEPS
from pipeline.show.sentences import grid_title

TEMPLATES = "workflow/report"
PAGE, CAPTIONS = "page.html.j2", "figures.rst"
"""The page's template, and the captions of the figures, which Snakemake's own report shows too."""

SCRIPT = re.compile(r"<script type=\"module\">(.*?)</script>", re.DOTALL)
"""The script of the part to play with, and of a timeline's page; a frame is bound by the policy of the page around it."""


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
    timelines: Mapping[str, str],
    advice: Fact | None = None,
) -> None:
    """Write the report.

    Args:
        page: the HTML file to write.
        comparison: the grid's points.
        figures: folder of the figures that `draw_all` wrote.
        timelines: HTML page of each point's timeline, by the point's name.
        advice: what makes the fastest point faster.
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
    index = json.loads((Path(figures) / INDEX).read_text(encoding="utf-8"))
    played = explore_part(page_points(predictions, comparison.usable_bytes))
    text = environment.get_template(PAGE).render(
        title=grid_title(predictions),
        brief="".join(
            fact.html()
            for fact in brief(comparison.alike, predictions, comparison.usable_bytes, advice)
        ),
        policy=page_policy([played, *timelines.values()]),
        style=STYLE.read_text(encoding="utf-8"),
        played=played,
        steps=_steps_section(comparison),
        parts=figures_by_category(Path(figures), index["drawn"]),
        timelines=timelines,
        missing=index["not_drawn"],
    )
    write_text(page, text)


def _steps_section(comparison: Comparison) -> Section:
    """The table of steps, with their memory, throughput and bound."""
    heading, heads, rows = comparison.cells(comparison.rows)
    sentences = [heading, *(note.plain for note in comparison.notes(()))]
    notes = " ".join(f"{text.rstrip('.')}." for text in sentences if text)
    return Section(STEPS, notes, tuple(heads), tuple(map(tuple, rows)))


def advised(
    asked: Sequence[Question], points: Sequence[Prediction], predicting: Predict
) -> Fact | None:
    """The first line of advice on the point with most samples per second that fits; None where it cannot be advised."""
    pairs = zip(asked, points, strict=True)
    question, p = min(pairs, key=lambda pair: (not pair[1].fits, -pair[1].samples_per_s))
    try:
        lines = advice_for(question, predicting=predicting, most=1).lines
    except SteptimeError:  # such as gpu=local
        return None
    if not lines:
        return faster(p, f"On {p.gpu}, nothing that is known to help")
    gain = lines[0].on_top
    share, low, high = (f"{100 * value:.0f} %" for value in (gain.share, gain.p10, gain.p90))
    says = f"On {p.gpu}, {lines[0].change} saves {share} of the step ({low} to {high})"
    return faster(p, says, lines[0].command)


def page_policy(pages: Iterable[str]) -> str:
    """The page's Content-Security-Policy, which lets exactly the scripts of these parts and frames run."""
    return policy_of(script for page in pages for script in SCRIPT.findall(page))


def figures_by_category(
    folder: Path, drawn: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Drawn]]:
    """The figures of a folder by part of the report, in its order; `drawn` is of its index."""
    figures = {category: list[Drawn]() for category in CATEGORIES}
    for name, facts in drawn.items():
        wide, narrow = (
            _data_uri(where / f"{name}.svg") for where in (folder, folder / NARROW_FOLDER)
        )
        figure = Drawn(name, facts["title"], facts["says"], wide, narrow, caption(name))
        figures[facts["category"]].append(figure)
    return {category: part for category, part in figures.items() if part}


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
