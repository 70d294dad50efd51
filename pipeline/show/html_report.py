"""The report of a grid: one HTML page with its numbers, figures, tables and rules, which opens offline."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.paths import project_dir
from pipeline.prediction import Prediction
from pipeline.readable import listed, short_time, span
from pipeline.schemas import atomic_path
from pipeline.show.figures.figure_data import mean_shares
from pipeline.show.figures.gallery import ACCURACY, CATEGORIES, INDEX, NARROW_FOLDER
from pipeline.show.figures.step_times import percentages

TEMPLATES = "workflow/report"
PAGE, CAPTIONS = "page.html.j2", "figures.rst"
"""The page's template, and the captions of the figures, which Snakemake's own report shows too."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the page may do: neither fetch nor run anything. A frame is bound by it too, so scripts of timelines are named."""

SCRIPT = re.compile(r"<script type=\"module\">(.*?)</script>", re.DOTALL)
"""The script of a timeline's page."""

FIRST = "step_times"
"""The figure at the head of the page."""


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
class Number:
    """A large number at the head of the page, what it is, and what to know about it."""

    value: str
    what: str
    more: str


@dataclass(frozen=True)
class Section:
    """A heading, a description of the table below it, and the table as text; `rows` is empty if there is no data."""

    title: str
    says: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_report(
    page: str | Path,
    predictions: Sequence[Prediction],
    figures: str | Path,
    tables: Sequence[Section],
    models: pd.DataFrame,
    rules: Mapping[str, Sequence[str]],
    timelines: Mapping[str, str] | None = None,
    hosts: str | None = None,
) -> None:
    """Write the report.

    Args:
        page: the HTML file to write.
        predictions: the grid's points.
        figures: folder of the figures that `draw_all` wrote.
        tables: sections of the accuracy report; none in an installed wheel.
        models: `kernel_errors` of the grid's kernel models.
        rules: each rule of the run with those whose outputs it reads.
        timelines: HTML page of each point's timeline, by the point's name.
        hosts: a line on hosts that differ, from `host_note`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(project_dir() / TEMPLATES), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    parts = figures_by_category(Path(figures))
    everything = [figure for part in parts.values() for figure in part]
    text = environment.get_template(PAGE).render(
        title=grid_title(predictions),
        hosts=hosts,
        policy=page_policy((timelines or {}).values()),
        numbers=[step_number(predictions), error_number(predictions, models), evidence_number(predictions)],
        first=next((figure for figure in everything if figure.name == FIRST), None),
        parts={
            name: [figure for figure in part if figure.name != FIRST]
            for name, part in parts.items()
            if part or (name == ACCURACY and tables)
        },
        accuracy=ACCURACY,
        tables=tables,
        rules=rules,
        timelines=dict(timelines or {}),
        missing=not_drawn(Path(figures)),
    )
    with atomic_path(Path(page)) as part:
        part.write_text(text, encoding="utf-8")


def page_policy(timelines: Iterable[str]) -> str:
    """The page's Content-Security-Policy, which lets exactly the scripts of these timelines' pages run."""
    scripts = dict.fromkeys(script for page in timelines for script in SCRIPT.findall(page))
    sources = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    return f"{POLICY}; script-src {' '.join(sources)}" if sources else POLICY


def read_sections(path: str | Path) -> list[Section]:
    """Read the sections of accuracy tables, as a rule of `evaluation/` writes them."""
    sections = json.loads(Path(path).read_text(encoding="utf-8"))
    return [Section(s["title"], s["says"], tuple(s["header"]), tuple(map(tuple, s["rows"]))) for s in sections]


def figures_by_category(folder: Path) -> dict[str, list[Drawn]]:
    """The figures of a folder by part of the report, in its order; some parts have none."""
    index: dict[str, dict[str, Any]] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["drawn"]
    parts: dict[str, list[Drawn]] = {category: [] for category in CATEGORIES}
    for name, facts in index.items():
        wide, narrow = (_data_uri(where / f"{name}.svg") for where in (folder, folder / NARROW_FOLDER))
        parts[facts["category"]].append(Drawn(name, facts["title"], facts["says"], wide, narrow, caption(name)))
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
    rst = Environment(autoescape=False).from_string(text).render(snakemake={"wildcards": {"figure": name}})
    return str(publish_parts(rst, writer="html5", settings_overrides={"report_level": 3})["fragment"])


def grid_title(predictions: Sequence[Prediction]) -> str:
    """The grid in words: models, GPUs and batch sizes."""
    models, gpus = (listed(list(dict.fromkeys(getattr(p, name) for p in predictions))) for name in ("model", "gpu"))
    sizes = listed([f"{size:,}" for size in sorted({p.batch_size for p in predictions})])
    return f"{models} on {gpus}, batch {sizes}"


def point_name(artifact: str | Path) -> str:
    """Name of a point, from the path of one of its artifacts: `<GPU>/<model>/<variant>/b<batch>/<file>`."""
    gpu, model, variant, batch = Path(artifact).parts[-5:-1]
    return f"{model} on {gpu}, batch {batch.removeprefix('b')}" + ("" if variant == "default" else f", {variant}")


def step_number(predictions: Sequence[Prediction]) -> Number:
    """The predicted step: of one point with its interval, else the range over the points and the shortest of them."""
    best = min(predictions, key=lambda p: p.predicted_us)
    interval = f"p10 to p90: {short_time(best.p10_us)} to {short_time(best.p90_us)}"
    if len(predictions) == 1:
        return Number(short_time(best.predicted_us), "predicted step", f"{interval}; {best.bound}-bound")
    longest = max(p.predicted_us for p in predictions)
    return Number(f"{short_time(best.predicted_us)} to {short_time(longest)}", f"predicted steps of {len(predictions)} points",
                  f"shortest: {best.title}; {interval}")  # fmt: skip


def error_number(predictions: Sequence[Prediction], models: pd.DataFrame) -> Number:
    """The error of measured points; without one, the held-out error of the kernel models."""
    errors = [p.error for p in predictions if p.error is not None]
    if len(errors) == 1:
        measured = next(p for p in predictions if p.error is not None)
        return Number(f"{100 * errors[0]:+.0f} %".replace("-", "−"), "predicted against measured",
                      f"{short_time(measured.measured_us or 0.0)} measured without a profiler")  # fmt: skip
    if errors:
        mean = 100 * sum(map(abs, errors)) / len(errors)
        return Number(
            f"{mean:.0f} %", "mean error of measured steps", f"{len(errors)} of {len(predictions)} points were measured"
        )
    if models.empty:
        return Number(
            "unknown", "error of the step", "no step of this grid was measured, and no kernel model was fitted"
        )
    gpus = listed(list(dict.fromkeys(models["gpu"])))
    error = 100 * models["gmae"]
    return Number(span(float(error.min()), float(error.max()), " %"), "error of a kernel on held-out shapes",
                  f"kernel models of {gpus}; no step of this grid was measured")  # fmt: skip


def evidence_number(predictions: Sequence[Prediction]) -> Number:
    """The kind of evidence on which most device time rests, and all kinds per GPU."""
    whole = mean_shares([p.evidence for p in predictions])
    if not whole:
        return Number("unknown", "evidence of the device time", "")
    kind = max(whole, key=lambda name: whole[name])
    more = []
    for gpu in dict.fromkeys(p.gpu for p in predictions):
        of_gpu = [p for p in predictions if p.gpu == gpu]
        device, host = (
            percentages(mean_shares([getattr(p, name) for p in of_gpu])) for name in ("evidence", "host_evidence")
        )
        hosts = ", ".join(dict.fromkeys(p.host for p in of_gpu if p.host))
        more.append(f"{gpu}: {device}; host {hosts} {host}".replace("  ", " "))
    return Number(f"{100 * whole[kind]:.0f} % {kind}", "evidence of the device time", ". ".join(more))


def _data_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
