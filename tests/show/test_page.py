"""The report of a grid opens offline, on a screen and on a phone."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from evaluation.figures.accuracy_gallery import ENTRIES
from evaluation.pages.chromium import Page
from pipeline.show.brief import brief, faster
from pipeline.show.comparison import Comparison
from pipeline.show.explore_page import POLICY
from pipeline.show.figures.gallery import CATEGORIES, Artifacts, draw_all
from pipeline.show.html_report import (
    SCRIPT,
    caption,
    point_name,
    write_report,
)
from pipeline.show.sentences import grid_title
from pipeline.summary_rows import predictions_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def report(folder: Path, artifacts: Artifacts) -> Path:
    """The report of a grid with few figures; written once."""
    target = folder / "report.html"
    if not target.is_file():
        draw_all(Artifacts(artifacts.summary), folder / "figures", ENTRIES)
        points = predictions_of(artifacts.summary)
        comparison = Comparison(points, usable_bytes=[30 << 30] * len(points))
        timelines = {"dlrm_default on V100": "<p>a 'timeline' & more</p>"}
        write_report(target, comparison, folder / "figures", timelines, faster(points[0], "tf32"))
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


def test_the_head_of_the_page_says_what_it_is_about(report: Path) -> None:
    head = report.read_text(encoding="utf-8").partition("<main>")[0]
    assert "dlrm_default and resnet50 on V100 and P100, batch 512 and 2,048" in head
    asks = re.findall(r"<dt>([^<]+)</dt>", head)
    says = [
        unescape(re.sub("<[^>]+>", " ", text)).strip()
        for text in re.findall(r"<dd>(.*?)</dd>", head)
    ]
    said = dict(zip(asks, says, strict=True))
    assert says[0].startswith("dlrm_default: V100 reaches 323,000 samples/s at batch 2,048;")
    assert said["Does it fit?"].startswith("Batch 2,048 does not fit the P100.")
    assert said["What makes it faster?"].startswith("tf32:  steptime advise gpu=V100")
    assert "p10 to p90 is at most −10 % to +20 % of a step" in said["How sure?"]


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
    parts = [name for name in CATEGORIES if name in headings]
    assert headings == ["Compare", *parts, "Timeline"]


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


def test_the_answers_of_one_point_are_its_own(artifacts: Artifacts) -> None:
    point = predictions_of(artifacts.summary)[0]
    assert grid_title([point]) == "dlrm_default on V100, batch 512"
    fastest, cheapest, limit, room, faster, sure = brief([point], [point], [30 << 30])
    assert fastest.says == "V100 reaches 146,000 samples/s at batch 512."
    assert limit.says == "The GPU limits every step." and limit.bars == [
        ("V100, batch 512", pytest.approx(0.44, abs=0.01), "44 % busy")
    ]
    assert room.says == "Every point fits." and "price.GPU=" in cheapest.says
    assert faster.command == "steptime advise gpu=V100 model=dlrm_default batch_size=512"
    assert sure.says.startswith("It is good (glossary: how sure); p10 to p90 is at most −10 % to")
    elsewhere = replace(point, p10_us=0.1 * point.p10_us)  # on the host of a comparison
    assert brief([elsewhere], [point], [30 << 30])[-1].says == sure.says


def test_a_timeline_has_the_name_of_its_point() -> None:
    assert (
        point_name("results/V100/dlrm_default/default/b512/timeline.html")
        == "dlrm_default on V100, batch 512"
    )


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
