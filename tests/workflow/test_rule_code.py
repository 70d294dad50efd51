"""Whether the digest that a rule has for its `code` holds the modules that its script uses.

What a rule reruns for is named by hand: followed by itself, imports lead from most scripts through `pipeline/answers/predict_point.py` to
most of the package, so that an edit anywhere would refit kernel models. Here the imports are followed as far as Python
does when it loads a script's modules; what functions import later is for the rule's author to name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.digest import code_digest
from pipeline.paths import project_dir

ROOT = project_dir()
PACKAGE = ROOT / "pipeline"

NO_NUMBER = {
    "config.py", "config_checks.py", "errors.py", "answers/sources.py", "packs.py", "paths.py", "prediction.py", "schemas.py",
    "scripting.py", "yaml_text.py",
}  # fmt: skip
"""Modules that find, check, name and store: a rule may name them, and need not."""

DRAWING = {"figures", "accuracy"}
"""Rules that show the numbers of finished tables: of the models' modules they use names and labels."""


def modules(statement: ast.stmt) -> Iterator[Path]:
    """Files of the package that an import statement loads, packages' own `__init__` aside."""
    names: list[str] = []
    if isinstance(statement, ast.Import):
        names = [each.name for each in statement.names]
    elif isinstance(statement, ast.ImportFrom) and statement.module:
        names = [statement.module, *(f"{statement.module}.{each.name}" for each in statement.names)]
    for name in names:
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith("pipeline.") and path.is_file():
            yield path


def loaded(script: Path) -> set[str]:
    """Modules of the package that a script loads, relative to it; what stands in a function is loaded later."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        statements = list(ast.parse(waiting.pop().read_text()).body)
        while statements:
            statement = statements.pop()
            if isinstance(statement, (ast.With, ast.If)) and "TYPE_CHECKING" not in ast.dump(statement):
                statements += statement.body
            new = set(modules(statement)) - found
            found |= new
            waiting += new
    return {path.relative_to(PACKAGE).as_posix() for path in found}


def rules_with_code() -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Name, script and named code of each rule that has a digest."""
    rules = "\n".join(path.read_text() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")))
    shared = {
        name: ast.literal_eval(value) for name, value in re.findall(r"^([A-Z]+) = (\(\s*\"[^()]*\))", rules, re.M)
    }
    for block in re.split(r"^rule ", rules, flags=re.M)[1:]:
        named, script = re.search(r"code=FLOW\.code\((.*?)\),\n", block, re.S), re.search(r"scripts/\w+\.py", block)
        if named and script:
            yield block.partition(":")[0], ROOT / "workflow" / script[0], eval(f"({named[1]},)", shared)


@pytest.mark.parametrize(("rule", "script", "named"), [pytest.param(*each, id=each[0]) for each in rules_with_code()])
def test_a_rule_reruns_for_the_code_that_it_uses(rule: str, script: Path, named: tuple[str, ...]) -> None:
    code_digest(*named)  # what is named is there
    rooms = tuple(name if name.endswith(".py") else f"{name}/" for name in named)
    lacks = [] if rule in DRAWING else sorted(loaded(script) - NO_NUMBER)
    lacks = [name for name in lacks if not name.startswith(rooms)]
    assert not lacks, f"{rule} ({script.name})"


def test_imports_are_followed_through_modules_and_not_into_functions() -> None:
    found = loaded(ROOT / "workflow" / "scripts" / "overhead_statistics.py")
    assert {"report/overhead_runs.py", "report/mlflow_tracking.py", "answers/predict_point.py"} <= found, "the script's own, and theirs"
    assert "report/figures/overhead_plots.py" not in found, "imported in a function"
    assert "overheads/overhead_model.py" not in found, "for types alone"
