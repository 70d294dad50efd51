"""The rule graph of ARCHITECTURE.md is the one that Snakemake draws."""

from __future__ import annotations

from evaluation.pages.markdown import block
from evaluation.pages.readme_tables import RULES_MARKER, RULES_PAGE, rule_graph
from pipeline.paths import project_dir
from pipeline.show.run_snakemake import rule_inputs


def test_the_page_holds_the_rule_graph_of_the_snakefile() -> None:
    drawn = rule_graph()
    assert "\tcollect_step --> predict" in drawn.splitlines()
    assert block((project_dir() / RULES_PAGE).read_text(encoding="utf-8"), RULES_MARKER) == drawn, (
        "run `make readme`"
    )


def test_rules_are_listed_in_the_order_of_running_each_with_what_it_reads() -> None:
    inputs = rule_inputs("id2[c]\nid0[a]\nid1[b]\nid0 --> id1\nid1 --> id2\nid0 --> id2")
    assert list(inputs.items()) == [("a", []), ("b", ["a"]), ("c", ["b"])], "a is reached through b"
