"""The rule graph is drawn from what Snakemake prints, without Graphviz."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from pipeline.report.figures.style import save
from pipeline.report.rule_graph import draw, layers, parse, reduced

DOT = """digraph snakemake_dag {
    graph[bgcolor=white, margin=0];
    0[label = "report", color = "0.5 0.6 0.85", style="rounded"];
    1[label = "predict", color = "0.5 0.6 0.85", style="rounded"];
    2[label = "fit_kernels", color = "0.5 0.6 0.85", style="rounded"];
    3[label = "capture_graph", color = "0.5 0.6 0.85", style="rounded"];
    4[label = "public_samples", color = "0.5 0.6 0.85", style="rounded"];
    1 -> 0
    2 -> 1
    3 -> 1
    3 -> 2
    4 -> 2
}"""
# capture -> fit -> predict -> report; the edge capture -> predict says nothing new; samples feed the fit alone


def test_rules_and_edges_are_read() -> None:
    rules, edges = parse(DOT)
    assert rules == ["capture_graph", "fit_kernels", "predict", "public_samples", "report"]
    assert ("capture_graph", "predict") in edges and len(edges) == 5
    lines = DOT.splitlines()
    assert parse("\n".join([*lines[:2], *reversed(lines[2:-1]), lines[-1]])) == (rules, edges)


def test_an_edge_that_a_longer_way_implies_is_left_out() -> None:
    assert ("capture_graph", "predict") not in reduced(parse(DOT)[1])
    assert len(reduced(parse(DOT)[1])) == 4


def test_every_rule_stands_below_what_it_needs() -> None:
    rules, edges = parse(DOT)
    found, ways = layers(rules, edges)
    level = {place: number for number, layer in enumerate(found) for place in layer}
    assert all(level[a] < level[b] for a, b in edges)
    assert level["public_samples"] == level["fit_kernels"] - 1
    assert all(level[b] == level[a] + 1 for way in ways for a, b in zip(way, way[1:], strict=False))
    assert any(len(way) == 3 for way in ways), "the long edge has a place of its own between"


def test_the_picture_names_every_rule_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        figure = draw(DOT)
        shown = {text.get_text() for text in figure.axes[0].texts}
        save(figure, tmp_path / name, "rules", kinds=("svg",))
    assert {"report", "predict", "fit kernels", "capture graph", "public samples"} <= shown
    ElementTree.parse(tmp_path / "one/rules.svg")
    assert (tmp_path / "one/rules.svg").read_bytes() == (tmp_path / "two/rules.svg").read_bytes()
