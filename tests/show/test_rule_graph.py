"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

import subprocess

import pytest

from evaluation.pages.markdown import block
from evaluation.pages.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.show.run_snakemake import rule_inputs


def test_the_page_holds_the_rule_graph_of_the_snakefile() -> None:
    drawn = rule_graph()
    assert {"\tcollect_step --> predict", "\tfit_measured_kernels --> predict"} <= set(
        drawn.splitlines()
    )
    assert drawn.startswith("```mermaid\nflowchart TB\n") and drawn.endswith("\n```")
    assert block((project_dir() / RULES_PAGE).read_text(encoding="utf-8"), RULES_MARKER) == drawn, (
        "run `make readme`"
    )


def test_the_text_of_a_graph_does_not_depend_on_the_order_of_snakemake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = (
        (
            "flowchart TB\n\tid0[report]\n\tid1[b]\n\tid2[a]\n\tstyle id0 fill:#D98D57\n\tid1 -->"
            " id0\n\tid2 --> id1"
        ),
        "flowchart TB\n\tid0[a]\n\tid1[report]\n\tid2[b]\n\tid0 --> id2\n\tid2 --> id1",
    )
    texts = set()
    for order in orders:
        run = subprocess.CompletedProcess([], 0, stdout=order, stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *_, run=run, **__: run)
        texts.add(rule_graph())
    assert texts == {"```mermaid\nflowchart TB\n\ta --> b\n\tb --> report\n```"}


def test_a_graph_that_cannot_be_drawn_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess(
        [], 1, stdout="", stderr="Error\n  in line 3: no such rule\n\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SteptimeError, match=r"could not draw it: in line 3: no such rule$"):
        rule_graph()


def test_rules_are_listed_in_the_order_of_running_each_with_what_it_reads() -> None:
    arrows = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c"), ("x", "c")]
    ids = {name: f"id{number}" for number, name in enumerate("abcdx")}
    text = "\n".join(
        [*(f"{ids[name]}[{name}]" for name in ids), *(f"{ids[a]} --> {ids[b]}" for a, b in arrows)]
    )
    inputs = rule_inputs(text)
    assert inputs == {"a": [], "b": ["a"], "c": ["b", "d", "x"], "d": ["a"], "x": []}
    assert list(inputs).index("a") < list(inputs).index("d") < list(inputs).index("c")
    assert rule_inputs("flowchart TB") == {}
