"""The code stays small and open enough to live in: syntax nodes, the width of lines, modules and functions."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipeline.paths import project_dir

ROOT = project_dir()
LIMITS = tomllib.loads((Path(__file__).parent / "limits.toml").read_text(encoding="utf-8"))

PRODUCT, AROUND, TESTS = ("pipeline", "steptime"), ("evaluation", "benchmarks", "soak"), ("tests",)
ALL = (*PRODUCT, *AROUND, *TESTS, "workflow")
COLUMNS = 100
DENSE_FROM_LINES = 100

LITERALS = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.Name, ast.Attribute,
    ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
"""Syntax of a table of values, in which `fmt: skip` may stand."""


@cache
def modules(*folders: str) -> dict[str, tuple[str, ast.Module]]:
    """Text and syntax tree of every Python file below these folders, by path."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if not {"__pycache__", "_data"} & set(path.parts)
    }
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def docstrings(tree: ast.Module) -> Iterator[ast.stmt]:
    """The texts that stand as statements: docstrings of modules, classes, functions, and constants."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node


def counted(tree: ast.Module) -> list[ast.expr | ast.stmt]:
    """The nodes that count: expressions and statements without docstrings."""
    left_out = {id(node) for text in docstrings(tree) for node in ast.walk(text)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt)))
    return [node for node in nodes if id(node) not in left_out]


def nodes_in(*folders: str) -> int:
    return sum(len(counted(tree)) for _, tree in modules(*folders).values())


def nodes_per_line(tree: ast.Module) -> tuple[int, float]:
    """Lines of code, and syntax nodes on each in the mean."""
    nodes = counted(tree)
    lines = {line for node in nodes for line in (node.lineno, node.end_lineno)}
    return len(lines), len(nodes) / max(len(lines), 1)


def wide_lines(text: str, tree: ast.Module) -> list[int]:
    """Numbers of the lines whose code is too wide; comments, docstrings and texts of several lines do not count."""
    texts = {node.lineno for node in docstrings(tree)}
    ends: dict[int, int] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_code = token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)
        if is_code and token.start[0] == token.end[0]:
            ends[token.end[0]] = token.end[1]
    return [number for number, end in ends.items() if end > COLUMNS and number not in texts]


def misused_marks(text: str, tree: ast.Module) -> list[int]:
    """Lines of `fmt: skip` that end something else than a module's table of values."""
    tables = {
        node.end_lineno
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        if all(isinstance(part, LITERALS) for part in ast.walk(node.value))
    }
    marked = (n for n, line in enumerate(text.splitlines(), 1) if re.search(r"# fmt: skip$", line))
    return [number for number in marked if number not in tables]


def functions(path: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each function of a module, and its number of lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield f"{path}:{node.name}", node.end_lineno - node.lineno + 1


@pytest.mark.parametrize(
    ("folders", "limit"),
    [(PRODUCT, "product_nodes"), (AROUND, "around_nodes"), (TESTS, "test_nodes")],
)
def test_the_house_keeps_its_size(folders: tuple[str, ...], limit: str) -> None:
    assert nodes_in(*folders) <= LIMITS[limit]


def test_lines_of_code_are_open() -> None:
    dense = {path: nodes_per_line(tree) for path, (_, tree) in modules(*ALL).items()}
    limit = LIMITS["nodes_per_line"]
    assert not {
        p: found for p, found in dense.items() if found[0] > DENSE_FROM_LINES and found[1] > limit
    }


def test_lines_of_code_are_narrow() -> None:
    wide = {path: wide_lines(text, tree) for path, (text, tree) in modules(*ALL).items()}
    assert not {path: lines for path, lines in wide.items() if lines}


def test_only_tables_of_values_are_formatted_by_hand() -> None:
    marked = {path: misused_marks(text, tree) for path, (text, tree) in modules(*ALL).items()}
    assert not {path: lines for path, lines in marked.items() if lines}


def test_a_module_fits_in_one_sitting() -> None:
    lengths = {path: text.count("\n") for path, (text, _) in modules(*ALL).items()}
    longer = {path: lines for path, lines in lengths.items() if lines > LIMITS["module_lines"]}
    assert set(longer) == set(LIMITS["longer_modules"]), longer


def test_a_function_fits_on_a_page() -> None:
    trees = ((path, tree) for path, (_, tree) in modules(*ALL).items())
    lengths = dict(length for path, tree in trees for length in functions(path, tree))
    longer = {name: lines for name, lines in lengths.items() if lines > LIMITS["function_lines"]}
    assert set(longer) == set(LIMITS["longer_functions"]), longer


def test_what_is_counted() -> None:
    text = '"""A docstring."""\nx = 1\n"""Of a constant."""\n'
    text += '\n\ndef f():\n    """Another."""\n    return x + 1\n'
    tree = ast.parse(text)
    assert len(counted(tree)) == 3 + 5  # x = 1; a definition, a return, x + 1 with its two operands
    assert nodes_per_line(tree)[0] == 3
    assert dict(functions("a.py", tree)) == {"a.py:f": 3}


def test_what_is_wide_or_marked_is_found() -> None:
    text = f"x = '{'a' * 100}'\n# {'a' * 120}\n"
    text += "y = (1,\n     2)  # fmt: skip\nz = [i for i in y]  # fmt: skip\n"
    assert wide_lines(text, ast.parse(text)) == [1]
    assert misused_marks(text, ast.parse(text)) == [5]
