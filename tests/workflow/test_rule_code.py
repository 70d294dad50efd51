"""The digest that a rule has for its `code` holds every module that its script uses; files that rules name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.paths import project_dir
from pipeline.user_cache import PLUMBING, code_of

ROOT = project_dir()


def rules_with_scripts() -> Iterator[tuple[str, str, str]]:
    """Name, text and script of each rule that runs a script."""
    for file in sorted(ROOT.glob("*/rules/*.smk")):
        for block in re.split(r"^rule ", file.read_text(encoding="utf-8"), flags=re.M)[1:]:
            if script := re.search(r"scripts/(\w+)\.py", block):
                yield block.partition(":")[0], block, script[1]


@pytest.mark.parametrize(
    ("rule", "block", "script"), [pytest.param(*r, id=r[0]) for r in rules_with_scripts()]
)
def test_a_rule_has_the_digest_of_its_own_script(rule: str, block: str, script: str) -> None:
    named = re.search(r'code=FLOW\.code\("(\w+)"\)', block)
    if named:
        assert named[1] == script, rule


def loaded(script: str) -> set[str]:
    """Own modules that Python would import for a script, anywhere in a file, by the syntax tree."""
    found: set[str] = set()
    waiting = list(ROOT.glob(f"*/scripts/{script}.py"))
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                ("pipeline", "evaluation")
            ):
                continue
            for name in (str(node.module), *(f"{node.module}.{each.name}" for each in node.names)):
                path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
                path = path if path.is_file() else ROOT.joinpath(*name.split("."), "__init__.py")
                relative = path.relative_to(ROOT).as_posix()
                if path.is_file() and relative not in found | PLUMBING:
                    found.add(relative)
                    waiting.append(path)
    return found


@pytest.mark.parametrize("script", sorted({script for *_, script in rules_with_scripts()}))
def test_the_digest_follows_every_import_also_late_ones(script: str) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in code_of(script)}
    assert {name for name in files if name.endswith(".py")} == loaded(script)


def test_data_files_count() -> None:
    assert ROOT / "pipeline/graph/opmap.yaml" in code_of("map_calls")


@pytest.mark.parametrize(
    "file", [ROOT / "Snakefile", *sorted(ROOT.glob("*/rules/*.smk"))], ids=lambda file: file.name
)
def test_every_file_that_a_rule_names_exists(file: Path) -> None:
    """Captions too, which Snakemake reads only for `--report`, from the folder of the rule."""
    named = re.findall(r'"([\w./-]+\.(?:rst|py|yaml|smk))"', file.read_text(encoding="utf-8"))
    assert not [name for name in named if not (file.parent / name).is_file()]
