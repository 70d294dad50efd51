"""The code stays small enough to live in: lines, files, the longest module and function, against `limits.toml`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pipeline.paths import project_dir

ROOT = project_dir()
LIMITS = tomllib.loads((Path(__file__).parent / "limits.toml").read_text(encoding="utf-8"))

PRODUCT = ("pipeline", "steptime")
FOLDERS = (*PRODUCT, "evaluation", "soak", "benchmarks", "tests", "workflow")


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file below these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"__pycache__", "_data"} & set(path.parts):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def lines_of(*folders: str) -> int:
    return sum(text.count("\n") for _, text in modules(*folders))


def functions(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Each function of a module, and its number of lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield f"{path}:{node.name}", node.end_lineno - node.lineno + 1


def test_the_product_keeps_its_size() -> None:
    assert lines_of(*PRODUCT) <= LIMITS["pipeline_lines"]
    assert len(list(modules(*PRODUCT))) <= LIMITS["pipeline_files"]


def test_all_python_keeps_its_size() -> None:
    assert lines_of(*FOLDERS) <= LIMITS["python_lines"]


def test_a_module_fits_in_one_sitting() -> None:
    lengths = {path: text.count("\n") for path, text in modules(*FOLDERS)}
    assert not {path: lines for path, lines in lengths.items() if lines > LIMITS["module_lines"]}


def test_a_function_fits_on_a_page() -> None:
    lengths = {name: lines for path, text in modules(*FOLDERS) for name, lines in functions(path, text)}
    long = {name: lines for name, lines in lengths.items() if lines > LIMITS["function_lines"]}
    assert set(long) == set(LIMITS["longer_functions"]), long


def test_a_long_function_would_be_found() -> None:
    text = "def short():\n    pass\n\n\nclass A:\n    def long(self):\n" + "        x = 1\n" * 60
    assert dict(functions("a.py", text)) == {"a.py:short": 2, "a.py:long": 61}
