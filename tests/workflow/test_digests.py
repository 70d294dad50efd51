"""Snakemake reruns a rule when library code that the rule uses has changed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pipeline.paths import project_dir

ROOT = project_dir()
PLUMBING = {"scripting.py", "schemas.py", "packs.py", "config.py", "report/grid.py", "graph/store.py"}
"""Reading, writing and naming: what they hand on is an input or a param of its own."""


def given(rules: str, text: str) -> set[str]:
    """Rooms and modules in the arguments of `FLOW.code`; a tuple's name stands for what it holds."""
    named = dict(re.findall(r"^([A-Z]+) = \((.*?)\)", rules, re.MULTILINE | re.DOTALL))
    found = re.search(r"FLOW\.code\((.*?)\)", text, re.DOTALL)
    if found is None:
        return set()
    texts = [found[1], *(named[name] for name in re.findall(r"\*([A-Z]+)", found[1]))]
    return {room for each in texts for room in re.findall(r'"([^"]+)"', each)}


def imported(script: Path) -> set[str]:
    """Modules of the package that a script names."""
    found = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline."):
            path = Path(*node.module.split("."))
            inside = [path / f"{alias.name}.py" for alias in node.names if (ROOT / path / f"{alias.name}.py").is_file()]
            found |= {str(each.relative_to("pipeline")) for each in inside or [path.with_suffix(".py")]}
    return found


def rules() -> list[tuple[str, str, set[str]]]:
    files = sorted((ROOT / "workflow/rules").glob("*.smk"))
    everything = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = []
    for part in re.split(r"^(?=(?:use )?rule )", everything, flags=re.MULTILINE)[1:]:
        name, script = re.match(r"(?:use )?rule (\w+)", part), re.search(r"scripts/(\w+\.py)", part)
        if name and script and "FLOW.code" in part:
            found.append((name[1], script[1], given(everything, part)))
    return found


@pytest.mark.parametrize(
    ("name", "script", "rooms"), rules(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_digest_of_a_rule_holds_what_its_script_imports(name: str, script: str, rooms: set[str]) -> None:
    for module in imported(ROOT / "workflow/scripts" / script) - PLUMBING:
        if name == "map_calls" and module == "api.py":
            continue  # for `gpu_of`, which hands on a GPU of the params
        assert any(module == room or module.startswith(f"{room}/") for room in rooms), module


def test_rules_are_found() -> None:
    assert len(rules()) > 15
    rooms = {name: rooms for name, _, rooms in rules()}
    assert {"kernels", "collect/reader.py"} <= rooms["predict"]
    assert {"kernels/embedding.py", "workloads"} <= rooms["capture_graph"]
