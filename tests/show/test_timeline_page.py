"""The page of a predicted timeline: a browser opens it without a network, and answers to mouse and keys."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import numpy as np
import pytest

from evaluation.pages.chromium import Page
from pipeline.show.html_report import page_policy
from pipeline.simulate.timeline_page import write_timeline
from tests.show.timelines import Event, Step, slices


@pytest.fixture(scope="module")
def html(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "timeline.html"
    write_timeline(step.timeline, file, step.calls, title="dlrm <small> & more")
    return file


GPU_ROW = (
    "timeline.data.rows.findIndex(row => row.group === 'predicted GPU' && row.name !== 'module')"
)


def opened(page: Page, file: Path, width: int = 1280) -> None:
    page.size(width, 800)
    page.open(file.as_uri())
    page.wait("window.timeline && timeline.state.drawn > 0")


def test_the_page_needs_no_network_and_draws_every_slice(
    page: Page, html: Path, events: list[Event], step: Step
) -> None:
    assert not re.search(r"https?://", html.read_text()), "one file, nothing loaded"
    before = len(page.requests)
    opened(page, html)
    assert page.errors == []
    assert page.requests[before:] == [html.as_uri()]
    assert page.value("document.title") == "dlrm <small> & more"
    drawn = page.value("timeline.state.drawn")
    assert drawn == page.value("timeline.state.slices") == len(slices(events, lambda e: True))
    calls = step.prediction.calls["device_start_us"].notna().sum()
    assert page.value(f"timeline.data.rows[{GPU_ROW}].at.length") == calls, "the calls of the table"
    assert page.value("timeline.data.arrows.length") == calls


def test_the_timeline_is_drawn_in_the_frame_of_a_report(
    page: Page, html: Path, tmp_path: Path
) -> None:
    text, report = html.read_text(encoding="utf-8"), tmp_path / "report.html"
    policy = escape(page_policy([text]))
    report.write_text(
        f"""<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">
        <iframe style="width: 100%; height: 700px" srcdoc="{escape(text)}"></iframe>""",
        encoding="utf-8",
    )
    page.size(1280, 800)
    page.errors.clear()
    page.open(report.as_uri())
    page.wait("frames[0].timeline && frames[0].timeline.state.drawn > 0")
    assert page.errors == []


def test_pointing_at_a_kernel_names_it_with_its_time_and_sizes(
    page: Page, html: Path, step: Step
) -> None:
    opened(page, html)
    table = step.prediction.calls.dropna(subset=["device_start_us"]).sort_values("device_start_us")
    number = int(np.argmax(np.where(table["family"] == "gemm", table["kernel_us"], 0.0)))
    longest = table.iloc[number]
    at = page.value(f"timeline.place({GPU_ROW}, {number})")
    page.mouse(at["x"], at["y"])
    tip = page.wait(
        "document.getElementById('tip').style.display === 'block' &&"
        " document.getElementById('tip').textContent"
    )
    assert tip.startswith(f"{longest['family']}:{longest['op']}  ·  {longest['kernel_us']:.2f} µs")
    assert f"M={int(step.calls.loc[longest['call'], 'M'])}" in tip and "operator: " in tip
    page.mouse(at["x"], at["y"], "mousePressed", button="left", clickCount=1)
    page.mouse(at["x"], at["y"], "mouseReleased", button="left", clickCount=1)
    assert page.wait("timeline.state.chosen")[1] == number


def test_wheel_keys_and_buttons_change_the_part_that_is_shown(page: Page, html: Path) -> None:
    opened(page, html)
    span = "timeline.view.to - timeline.view.from"
    whole = page.value(span)
    box = page.value(
        "(b => [b.left + b.width / 4, b.top +"
        " 60])(document.getElementById('chart').getBoundingClientRect())"
    )
    width = "document.getElementById('chart').clientWidth"
    time = f"(px => timeline.view.from + px / {width} * ({span}))"
    under = page.value(f"{time}({box[0]})")
    page.mouse(*box, "mouseWheel", deltaX=0, deltaY=-500)
    page.wait(f"{span} < {0.6 * whole}")
    assert page.value(f"{time}({box[0]})") == pytest.approx(under, rel=1e-6), (
        "what lies under the mouse stays there"
    )
    begin = page.value("timeline.view.from")
    page.key("d")
    page.wait(f"timeline.view.from > {begin}")
    page.key("f")
    assert page.wait(f"({span}) === {whole}")
    page.value("document.getElementById('in').click()")
    assert page.value(span) == pytest.approx(whole / 2)


def test_a_search_finds_every_slice_of_that_name_and_goes_to_the_next(
    page: Page, html: Path, events: list[Event]
) -> None:
    opened(page, html)
    page.key("/")
    for letter in "gemm":
        page.key(letter)
    expected = slices(events, lambda e: "gemm" in e["name"])
    kernels = [e["dur"] for e in expected if e["cat"] == "kernel"]
    page.wait(
        f"document.getElementById('found').textContent === '{len(kernels)} kernels,"
        f" {sum(kernels):.2f} µs in all'"
    )
    page.key("Enter")
    page.wait(f"document.getElementById('found').textContent === '1 of {len(expected)}'")
    assert page.value(f"timeline.state.matches[0][0] === {GPU_ROW}"), "kernels come first"


def test_the_page_fits_a_phone(page: Page, html: Path) -> None:
    opened(page, html, 390)
    assert page.value("document.documentElement.scrollWidth") == 390
    assert page.errors == []
