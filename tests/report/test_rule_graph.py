"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

import re
import subprocess

import pytest

from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.report.markdown import block
from pipeline.report.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph


def arrows(graph: str) -> set[tuple[str, str]]:
    """(from, to) of every arrow of a Mermaid block, by rule."""
    names = dict(re.findall(r"(id\d+)\[(\w+)\]", graph))
    return {(names[a], names[b]) for a, b in re.findall(r"(id\d+) --> (id\d+)", graph)}


def test_the_page_holds_the_rule_graph_of_the_snakefile() -> None:
    drawn = rule_graph()
    assert {("collect_step", "predict"), ("fit_measured_kernels", "predict"), ("summary", "figures")} <= arrows(drawn)
    shown = block((project_dir() / RULES_PAGE).read_text(encoding="utf-8"), RULES_MARKER)
    assert shown.startswith("```mermaid\nflowchart TB") and shown.endswith("```")
    assert arrows(shown) == arrows(drawn), "run `make readme`"


def test_a_graph_that_cannot_be_drawn_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Error\n  in line 3: no such rule\n\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SteptimeError, match=r"could not draw it: in line 3: no such rule$"):
        rule_graph()
