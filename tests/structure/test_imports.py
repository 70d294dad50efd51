"""The structure of the package: imports go from higher rooms to lower ones, without circles, at the top of each module."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.paths import project_dir

ROOT = project_dir()

ROOMS = (
    "private_names", "arrays", "errors", "palette", "readable", "yaml_text", "paths", "schemas",
    "user_cache", "plotter", "model_files", "hardware", "work", "prices", "prediction_parts",
    "prediction_rows", "prediction", "summary_rows", "question", "as_on_cuda", "workloads",
    "trace", "families",
    "kernels", "graph", "measured", "datasets", "transfer",
    "overheads", "simulate", "answers", "flow", "scripting", "show", "completion", "terminal",
    "collect", "commands", "cli", "__main__", "evaluation.published", "evaluation.workloads",
    "evaluation.training", "evaluation.checks", "evaluation.figures", "evaluation.pages",
    "evaluation.compare_published", "evaluation.golden", "soak",
)  # fmt: skip
"""Rooms and single modules, from the lowest to the highest: each imports from those before it alone. The product comes first."""

PACKAGES = ("pipeline", "evaluation", "soak")

HEAVY = {
    "torch", "mlflow", "matplotlib", "snakemake", "hydra", "omegaconf", "lightgbm", "sklearn",
    "transformers", "timm", "torchvision", "peft",
}  # fmt: skip
"""Libraries that take long to import: a module that does without one imports late what loads it."""

ABSENT_ON_MEASURED_MACHINES = {"yaml", "orjson", "scipy", "safetensors", "rich", "typer"}
"""Libraries that the `collect` room must do without: it runs on machines that have torch, numpy, pandas and pyarrow only."""


class Import(NamedTuple):
    source: str
    target: str
    late: bool
    typing: bool


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[:2] == ("evaluation", "scripts"):
            continue
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(
        each
        for name, path in modules().items()
        for each in imports_of(name, path.read_text("utf-8"))
    )


def imports_of(name: str, text: str) -> Iterator[Import]:
    """Imports of own modules, wherever they stand in the text."""

    def visit(node: ast.AST, late: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            types = typing or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            )
            if (
                isinstance(child, ast.ImportFrom)
                and (child.module or "").partition(".")[0] in PACKAGES
            ):
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    yield Import(
                        name, whole if whole in modules() else str(child.module), late, types
                    )
            yield from visit(child, inside, types)

    yield from visit(ast.parse(text), False, False)


def dispatches(name: str, text: str) -> Iterator[Import]:
    """Names of own modules and of their functions in strings: what may be imported by a string."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and (found := NAMED_MODULE.match(str(node.value))):
            yield Import(name, found[0].rstrip("."), True, False)


NAMED_MODULE = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+\.?(?=(:\w+)?$)")
"""A string that is the name of an own module or function, or begins one."""


def room(module: str) -> str:
    """The room of a module: `kernels`, `evaluation.checks`, `soak`; none for a package itself."""
    package, _, inner = module.partition(".")
    room = inner.partition(".")[0]
    if package == "soak":
        return package
    return room if package == "pipeline" or not room else f"{package}.{room}"


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other."""
    reach = {name: reached(name, arrows) for name in arrows}
    groups = {
        frozenset(x for x in reach[a] if a in reach.get(x, ())) | {a}
        for a in arrows
        if a in reach[a]
    }
    return sorted(sorted(group) for group in groups)


def reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += arrows.get(name, ())
    return found


LATE_IN_TRACE = {"pandas", "pyarrow"}
"""Libraries that reading a trace does without: they take more memory than most traces."""


def climbing(found: tuple[Import, ...]) -> list[str]:
    inner = [each for each in found if room(each.source) and room(each.target)]
    return [f"{a} -> {b}" for a, b, *_ in inner if ROOMS.index(room(b)) > ROOMS.index(room(a))]


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(name) for name in modules()} - {""} == set(ROOMS)


def test_imports_lead_to_lower_rooms_alone() -> None:
    assert not climbing(imports())
    texts = {name: path.read_text("utf-8") for name, path in modules().items()}
    named = [each for name, text in texts.items() for each in dispatches(name, text)]
    assert len(named) > 20 and not climbing(tuple(named))


def test_only_commands_import_what_measures() -> None:
    """What predicts reads the results of campaigns (`measured`), and never the code that measures them."""
    inner = [each for each in imports() if each.source.startswith("pipeline.")]
    users = {room(source) for source, target, *_ in inner if room(target) == "collect"}
    assert users == {"collect", "commands"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows: dict[str, set[str]] = {}
    for source, target, *_ in imports():
        if source != target:
            arrows.setdefault(source, set()).add(target)
    assert not circles(arrows)


def test_a_climb_and_a_circle_would_be_found() -> None:
    up = (
        "def f():\n    from pipeline.answers.tracker import track\n    from"
        " evaluation.checks.surfer_pairs import in_layer\n"
    )
    assert climbing(tuple(imports_of("pipeline.trace.load", up))) == [
        "pipeline.trace.load -> pipeline.answers.tracker",
        "pipeline.trace.load -> evaluation.checks.surfer_pairs",
    ]
    named = (
        "NAMES = [f'pipeline.commands.{name}_commands' for name in 'ab']\n"
        "def f():\n    return import_module('pipeline.show.comparison').compare\n"
        "DRAW = {'step': 'pipeline.show.figures.python_plots:draw_step'}\n"
    )
    assert sorted(climbing(tuple(dispatches("pipeline.prediction", named)))) == [
        "pipeline.prediction -> pipeline.commands",
        "pipeline.prediction -> pipeline.show.comparison",
        "pipeline.prediction -> pipeline.show.figures.python_plots",
    ]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_own_modules_are_imported_at_the_top_unless_they_load_a_heavy_library() -> None:
    libraries = {name: set(libraries_of(path)) for name, path in modules().items()}
    arrows: dict[str, set[str]] = {}
    for source, target, late, typing in imports():
        if not late and not typing:
            arrows.setdefault(source, set()).add(target)

    def loads(name: str) -> set[str]:
        parents = {name.rsplit(".", up)[0] for up in range(1, name.count("."))}
        names = {name, *parents} | set().union(
            *(reached(each, arrows) for each in {name, *parents})
        )
        return set().union(*(libraries.get(each, set()) for each in names))

    needless = []
    for source, target, late, typing in imports():
        if (
            late or typing
        ) and source != "pipeline":  # the facade imports its functions at their first use
            banned = HEAVY | {"collect": ABSENT_ON_MEASURED_MACHINES, "trace": LATE_IN_TRACE}.get(
                room(source), set()
            )
            if not (loads(target) - loads(source)) & banned:
                needless.append(f"{source} -> {target}")
    assert not needless


def libraries_of(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_every_module_name_occurs_once() -> None:
    names = [path.stem for path in modules().values() if path.stem not in ("__init__", "__main__")]
    assert sorted(names) == sorted(set(names))


def test_workloads_that_benchmarks_and_published_steps_name_exist() -> None:
    pages = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "docs" / "accuracy").glob("*.md")]
    named = {
        found
        for page in pages
        for found in re.findall(r'model\.target(?:": "|=)([\w.]+):(\w+)', page.read_text("utf-8"))
    }
    assert len(named) == 4
    assert all(
        callable(getattr(importlib.import_module(module), function)) for module, function in named
    )
