"""Private names of other packages are used only where `pyproject.toml` bounds the package's version from above."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pipeline.paths import project_dir


def private_names(tree: ast.Module) -> Iterator[str]:
    """Dotted names with a private part (`torch._ops`) that a module imports or looks up in a package."""
    packages = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {(each.asname or each.name).partition(".")[0]: each.name for each in node.names}
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)
    for node in ast.walk(tree):
        parts, place = [], node
        while isinstance(place, ast.Attribute):
            parts.append(place.attr)
            place = place.value
        if parts and isinstance(place, ast.Name) and place.id in packages:
            yield ".".join([place.id, *reversed(parts)])


def used() -> set[tuple[str, str]]:
    """(package, dotted name) of every private name of another package in the project's code."""
    root = project_dir()
    found = set()
    for path in [*root.glob("pipeline/**/*.py"), *root.glob("workflow/scripts/*.py")]:
        for name in private_names(ast.parse(path.read_text())):
            package, *parts = name.split(".")
            private = any(re.match(r"_[^_]", part) for part in parts)
            if private and package != "pipeline" and package not in sys.stdlib_module_names:
                found.add((package, name))
    return found


def test_private_names_are_of_packages_with_an_upper_bound() -> None:
    stated = tomllib.loads((project_dir() / "pyproject.toml").read_text())["project"]["dependencies"]
    bounded = {re.split(r"[<>=!~ ]", each)[0] for each in stated if "<" in each or "==" in each}
    names = used()
    assert any(package == "torch" for package, _ in names), "the search finds those that there are"
    assert {package for package, _ in names} <= bounded


def test_processes_of_a_pool_are_found_by_public_names() -> None:
    """The standard library bounds nothing: what begins with an underscore there may go with any version."""
    source = "\n".join(path.read_text() for path in Path(project_dir() / "pipeline").rglob("*.py"))
    assert not re.search(r"\._(processes|pool|config|current_process|children|executor_manager\w*)\b", source)
    assert "hydra._internal" not in source
