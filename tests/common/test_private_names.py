"""Private names of other packages are used only where `pyproject.toml` bounds the package's version from above."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from pipeline.as_on_cuda.torch_names import LATER, NAMES
from pipeline.paths import project_dir


def dotted_names(tree: ast.Module) -> Iterator[str]:
    """Names (`torch._ops`) that a module imports or looks up in what it imports."""
    packages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    names = (ast.unparse(node) for node in attributes if node.attr.startswith("_"))
    yield from (name for name in names if name.split(".")[0] in packages and "(" not in name)


OPERATORS = re.compile(r"torch\.(_foreach_\w+|ops\..*)")
"""Operators, whose names are those of traces and of the operator map."""


@cache
def used() -> set[tuple[str, str, str]]:
    """(package, dotted name, file) of every private name of another package in the project's code."""
    root = project_dir()
    uses = set()
    for path in [*root.glob("pipeline/**/*.py"), *root.glob("workflow/scripts/*.py")]:
        for name in dotted_names(ast.parse(path.read_text())):
            package, *parts = name.split(".")
            private = any(re.match(r"_[^_]", part) for part in parts) and not OPERATORS.fullmatch(
                name
            )
            if private and package != "pipeline" and package not in sys.stdlib_module_names:
                uses.add((package, name, path.relative_to(root).as_posix()))
    return uses


def test_private_names_are_of_packages_with_an_upper_bound() -> None:
    stated = tomllib.loads((project_dir() / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    bounded = {re.split(r"[<>=!~ ]", each)[0] for each in stated if "<" in each or "==" in each}
    assert {package for package, _, _ in used()} <= bounded


def test_private_names_of_pytorch_are_in_one_module() -> None:
    assert {path for package, _, path in used() if package == "torch"} == {
        "pipeline/as_on_cuda/torch_names.py"
    }
    text = "\n".join(path.read_text() for path in Path(project_dir() / "pipeline").rglob("*.py"))
    assert "unittest.mock" not in text and "import mock" not in text


@pytest.mark.parametrize("private", NAMES)
def test_listed_private_names_exist_where_the_list_says_so(private: str) -> None:
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    try:
        assert pkgutil.resolve_name(private) is not None
    except (AttributeError, ImportError):
        assert release < LATER.get(private, (2, 6))
