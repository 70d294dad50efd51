"""Scripts, benchmarks and Python in the docs, which the type checker does not read, use names that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipeline.paths import project_dir

ROOT = project_dir()
FOLDERS = ("workflow", "benchmarks", "tests", "soak", "evaluation/scripts")
PACKAGES = ("pipeline", "evaluation", "soak", "tests")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of each script, test and complete example of the docs."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in FENCE.findall(page.read_text("utf-8")):
            try:
                ast.parse(block)
            except SyntaxError:  # the page shows a part of a program
                continue
            yield str(page.relative_to(ROOT)), block


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def names_in(module: str) -> set[str]:
    """Names that a module of the project defines or imports; the strings in it too, for names that it looks up."""
    file = file_of(module)
    tree = ast.parse(file.read_text("utf-8")) if file else ast.Module([], [])
    names = {"__file__", "__doc__", "__name__", "__path__"}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.Constant(value=str()):
                names.add(node.value)
    return names


def missing(text: str) -> Iterator[str]:
    """Names that a text imports from the project, or reads of its modules, and that are not there."""
    tree = ast.parse(text)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if file_of(module) or (ROOT / module.replace(".", "/")).is_dir():
                    modules[alias.asname or alias.name] = module
                elif alias.name not in names_in(str(node.module)):
                    yield module
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            module = modules[node.value.id]
            if node.attr not in names_in(module) and not file_of(f"{module}.{node.attr}"):
                yield f"{module}.{node.attr}"


def test_names_of_the_project_exist() -> None:
    faults = {(name, fault) for name, text in texts() for fault in missing(text)}
    assert not faults


def test_a_missing_name_is_noticed() -> None:
    text = (
        "from pipeline import errors as e, nothing\nfrom pipeline.errors import"
        " InputError\ne.InputError, e.no_error"
    )
    assert list(missing(text)) == ["pipeline.nothing", "pipeline.errors.no_error"]
