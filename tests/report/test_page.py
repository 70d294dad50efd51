"""Snakemake's report of a small workflow with our captions opens offline, on a desk and on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.paths import project_dir
from pipeline.report.figures.gallery import Artifacts, draw_all
from pipeline.report.html_report import write_report

WORKFLOW = """
from pipeline.report.figures.gallery import category_of
report: "{captions}/workflow.rst"
rule figures:
    output:
        folder=report(directory("figures"), patterns=["{{figure}}.svg"], caption="{captions}/figures.rst",
                      category=lambda wildcards: category_of(wildcards.figure), labels={{"figure": "{{figure}}"}}),
    shell: "false"
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def report(page: Path, artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of one workflow with few figures; written once."""
    target = page / "report.html"
    if not target.is_file():
        (page / "Snakefile").write_text(WORKFLOW.format(captions=project_dir() / "workflow/report"))
        draw_all(Artifacts(artifacts.summary.head(2)), page / "figures")
        monkeypatch.chdir(page)
        write_report(str(page / "Snakefile"), {}, ["figures"], target)
    return target


def test_the_page_needs_no_other_file(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?://", text)
    assert 'name="viewport"' in text


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_width_of_a_screen(
    browse: Callable[..., str], report: Path, tmp_path: Path, width: int
) -> None:
    frame = tmp_path / "frame.html"  # a headless browser's window has a least width: the frame is as narrow as asked
    frame.write_text(
        f"<iframe id=f src='{report.as_uri()}' width={width} height=800></iframe><p id=wide></p><script>"
        "const look = (left) => {const d = document.getElementById('f').contentDocument;"
        "const text = d.body.innerText.replace(/\\s+/g, ' ');"
        "if (left && !text.includes('Steps')) {setTimeout(() => look(left - 1), 500); return}"  # a busy machine builds it later
        "document.getElementById('wide').textContent = 'wide=' + d.documentElement.scrollWidth + ' text=' + text};"
        "setTimeout(() => look(20), 3000)</script>"
    )
    shown = browse(frame.as_uri(), wait_ms=16000, flags=("--allow-file-access-from-files",))
    found = re.search(r"wide=(\d+) text=([^<]*)", shown)
    assert found is not None
    assert int(found[1]) <= width
    assert "Steps" in found[2]
    assert "how long one training step takes" in found[2]
