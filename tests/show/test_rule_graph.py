"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

from evaluation.pages.markdown import block
from evaluation.pages.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph
from pipeline.paths import project_dir


def test_the_page_holds_the_rule_graph_of_the_snakefile() -> None:
    drawn = rule_graph()
    assert "\tcollect_step --> predict" in drawn.splitlines()
    assert block((project_dir() / RULES_PAGE).read_text(encoding="utf-8"), RULES_MARKER) == drawn, (
        "run `make readme`"
    )
