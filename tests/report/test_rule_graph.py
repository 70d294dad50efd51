"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

import itertools
import subprocess
from xml.etree import ElementTree

import pytest

from evaluation.pages.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.report.markdown import block
from pipeline.report.rule_graph import edges_of, svg


def set_of(graph: str) -> set[tuple[str, str]]:
    return set(edges_of(graph))


def test_the_page_holds_the_rule_graph_of_the_snakefile() -> None:
    drawn = rule_graph()
    assert {("collect_step", "predict"), ("fit_measured_kernels", "predict"), ("summary", "figures")} <= set_of(drawn)
    shown = block((project_dir() / RULES_PAGE).read_text(encoding="utf-8"), RULES_MARKER)
    assert shown.startswith("```mermaid\nflowchart TB") and shown.endswith("```")
    assert set_of(shown) == set_of(drawn), "run `make readme`"


def test_a_graph_that_cannot_be_drawn_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Error\n  in line 3: no such rule\n\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SteptimeError, match=r"could not draw it: in line 3: no such rule$"):
        rule_graph()


def test_the_drawing_has_every_rule_once_and_no_edge_that_a_longer_path_implies() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c"), ("x", "c")]
    drawn = ElementTree.fromstring(svg(edges))
    names = [text.text for text in drawn.iter("text")]
    assert sorted(filter(None, names)) == ["a", "b", "c", "d", "x"]
    assert len([path for path in drawn.iter("path") if path.get("class") == "edge"]) == 5
    assert svg([]) == ""


def test_boxes_of_a_drawing_do_not_overlap_and_lie_inside() -> None:
    edges = [("s", f"rule_with_a_long_name_{number}") for number in range(5)] + [
        ("rule_with_a_long_name_0", "t"),
        ("s", "t"),
    ]
    drawn = ElementTree.fromstring(svg(edges))
    *_, width, height = map(float, str(drawn.get("viewBox")).split())
    boxes = [[float(str(box.get(key))) for key in ("x", "y", "width", "height")] for box in drawn.iter("rect")]
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    for (x0, y0, w0, h0), (x1, y1, w1, h1) in itertools.combinations(boxes, 2):
        assert x0 + w0 <= x1 or x1 + w1 <= x0 or y0 + h0 <= y1 or y1 + h1 <= y0
