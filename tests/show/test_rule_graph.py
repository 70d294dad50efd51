"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

import subprocess

import pytest

from evaluation.pages.markdown import block
from evaluation.pages.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.show.run_snakemake import edges_of, rule_inputs


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


def test_rules_are_listed_in_the_order_of_running_each_with_what_it_reads() -> None:
    arrows = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c"), ("x", "c")]
    ids = {name: f"id{number}" for number, name in enumerate("abcdx")}
    text = "\n".join([*(f"{ids[name]}[{name}]" for name in ids), *(f"{ids[a]} --> {ids[b]}" for a, b in arrows)])
    inputs = rule_inputs(text)
    assert inputs == {"a": [], "b": ["a"], "c": ["b", "d", "x"], "d": ["a"], "x": []}
    assert list(inputs).index("a") < list(inputs).index("d") < list(inputs).index("c")
    assert rule_inputs("flowchart TB") == {}
