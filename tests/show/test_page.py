"""The report of a grid opens offline, on a screen and on a phone."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import pytest

from evaluation.figures.accuracy_data import error_parts, errors_by_part
from evaluation.figures.accuracy_gallery import ENTRIES
from evaluation.pages.chromium import Page
from evaluation.pages.grid_accuracy import sections, write_sections
from pipeline.show.comparison import Comparison
from pipeline.show.explore_page import POLICY
from pipeline.show.figures import figure_data as tables
from pipeline.show.figures import step_times as step_table
from pipeline.show.figures.gallery import CATEGORIES, Artifacts, draw_all
from pipeline.show.html_report import (
    SCRIPT,
    Section,
    caption,
    page_policy,
    point_name,
    read_sections,
    write_report,
)
from pipeline.show.sentences import answers, grid_title
from pipeline.summary_rows import predictions_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


def accuracy_tables(found: Artifacts) -> list[Section]:
    by_part = error_parts(found.summary)
    return sections(
        step_table.steps(predictions_of(found.summary)),
        errors_by_part(by_part),
        by_part,
        tables.kernel_errors(found.models),
        ["P100: nothing was measured"],
    )


@pytest.fixture
def report(folder: Path, artifacts: Artifacts) -> Path:
    """The report of a grid with few figures; written once."""
    target = folder / "report.html"
    if not target.is_file():
        draw_all(Artifacts(artifacts.summary, models=artifacts.models), folder / "figures", ENTRIES)
        points = predictions_of(artifacts.summary)
        comparison = Comparison(points, usable_bytes=[30 << 30] * len(points))
        rules, timelines = (
            {"map_calls": [], "predict": ["map_calls"]},
            {"dlrm_default on V100": "<p>a 'timeline' & more</p>"},
        )
        write_report(
            target, comparison, folder / "figures", accuracy_tables(artifacts), rules, timelines
        )
    return target


def test_the_page_needs_no_other_file(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    addresses = re.findall(r"(?:src|srcset|href)=[\"']([^\"']{0,40})", text)
    assert addresses and all(address.startswith(("#", "data:")) for address in addresses)
    assert 'name="viewport"' in text
    assert not re.search(r"<script[^>]* src", text)


def test_the_page_forbids_the_browser_to_fetch_anything_and_names_its_one_script(
    report: Path,
) -> None:
    text = report.read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    (script,) = SCRIPT.findall(text)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert unescape(policy) == f"{POLICY}; script-src 'sha256-{digest}'"
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_the_page_lets_the_scripts_of_its_timelines_run_and_no_other() -> None:
    """A frame is bound by the policy of the page around it."""
    script = "\nconst a = '<b>';\n"
    pages = [
        f'<script id="data" type="application/json">{n}</script><script'
        f' type="module">{script}</script>'
        for n in "12"
    ]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert page_policy(pages) == f"{POLICY}; script-src 'sha256-{digest}'"
    assert page_policy(["<p>no script</p>"]) == POLICY


def test_the_head_of_the_page_says_what_it_is_about(report: Path) -> None:
    head = report.read_text(encoding="utf-8").partition("<main>")[0]
    assert "dlrm_default and resnet50 on V100 and P100, batch 512 and 2,048" in head
    said = [unescape(text) for text in re.findall(r"<li>([^<]+)</li>", head)]
    assert said[0].startswith(
        "dlrm_default: V100 and P100 tie at batch 512: they take the same time; V100 is 1.7 times"
        " as fast as P100"
    )
    assert "dlrm_default: batch 2,048 does not fit the P100" in said
    assert said[-1].startswith(
        "How sure: p10 to p90 is at most −10 % to +20 % of a step. The weakest,"
    )


def test_the_page_answers_first_and_says_last_how_it_was_computed(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    order = [
        text.index(mark)
        for mark in ('id="explore"', "<h2>Steps</h2>", "<h2>Kernel models</h2>", 'id="rules"')
    ]
    assert order == sorted(order)


def test_the_steps_are_a_table_with_memory_throughput_and_bound(report: Path) -> None:
    table = (
        report.read_text(encoding="utf-8")
        .partition("<h3>All steps</h3>")[2]
        .partition("</table>")[0]
    )
    heads = re.findall(r"<th>([^<]+)</th>", table)
    rows = [
        re.findall(r'<td data-name="[^"]+">([^<]*)</td>', row) for row in table.split("<tr>")[2:]
    ]
    first = dict(zip(heads, rows[3], strict=True))
    assert (first["GPU"], first["batch"], first["step ms"], first["bound"]) == (
        "P100",
        "2048",
        "10.6",
        "device",
    )
    assert first["mem GiB"] == "2 ✗" and first["samples/s"] == "192,000"


def test_every_figure_has_its_caption_below_it_in_the_order_of_the_parts(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    shown = re.findall(r'<figure class="figure" id="(\w+)">', text)
    drawn = [entry.name for entry in ENTRIES if f'id="{entry.name}"' in text]
    assert shown == drawn and len(drawn) >= 6
    assert len(re.findall(r"<figcaption><p>\w", text)) == len(shown)
    headings = re.findall(r"<h2>([^<]+)</h2>", text)
    assert headings == [
        "Compare",
        *(name for name in CATEGORIES if name in headings),
        "Timeline",
        "How it was computed",
    ]


def test_figures_are_there_for_wide_and_for_narrow_screens(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    pictures = re.findall(
        r'srcset="data:image/svg\+xml;base64,([^"]+)"><img'
        r' src="data:image/svg\+xml;base64,([^"]+)"',
        text,
    )
    assert pictures
    for narrow, wide in pictures:
        widths = [
            float(re.search(rb'width="([\d.]+)pt"', base64.b64decode(each))[1])
            for each in (narrow, wide)
        ]  # type: ignore[index]
        assert widths[0] < 0.7 * widths[1]


def test_tables_survive_their_way_through_a_file(artifacts: Artifacts, tmp_path: Path) -> None:
    written = accuracy_tables(artifacts)
    write_sections(written, tmp_path / "accuracy.json")
    assert read_sections(tmp_path / "accuracy.json") == written


def test_the_answers_of_one_point_are_its_own(artifacts: Artifacts) -> None:
    point = predictions_of(artifacts.summary)[0]
    assert grid_title([point]) == "dlrm_default on V100, batch 512"
    said = answers(step_table.steps([point]), [point])
    assert (
        said[0]
        == "dlrm_default on V100, batch 512: 3.50 ms (p10 to p90: 3.15 ms to 4.20 ms), 146,000"
        " samples/s"
    )
    assert said[1] == "The GPU limits the step: the GPU idles 56 % of it"
    assert said[2] == "It needs 2.0 GiB: fits. It is good (glossary: how sure)"


def test_a_timeline_has_the_name_of_its_point() -> None:
    assert (
        point_name("results/V100/dlrm_default/default/b512/timeline.html")
        == "dlrm_default on V100, batch 512"
    )
    assert point_name("r/T4/m/dtype-fp16/b8/timeline.html") == "m on T4, batch 8, dtype-fp16"


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_width_of_a_screen(page: Page, report: Path, width: int) -> None:
    page.size(width, 800)
    page.open(report.as_uri())
    assert page.value("document.documentElement.scrollWidth") <= width
    cut = (
        "[...document.querySelectorAll('h1,h2,h3,td,nav a,b')].filter("
        "e => e.getBoundingClientRect().right > document.documentElement.clientWidth).length"
    )
    assert page.value(cut) == 0, "headings and cells end inside the page"


def test_every_caption_is_a_text_of_its_own() -> None:
    captions = [caption(entry.name) for entry in ENTRIES]
    assert len(set(captions)) == len(captions)
    assert all("system-message" not in text and len(text) > 80 for text in captions)
