"""Files outside the project that define a workload: files that its configuration names, and their imports.

Snakemake sees only the configuration. A rule has a digest of these files among its params, so that the graph is
captured again after an edit. This module imports none of them, because the import of a user's module may run any code.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from pipeline.model_files import file_digest
from pipeline.question.embedding_tables import table_configs_path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")

NAMING_FILES = ("table_configs", "config", "target", "lengths", "distribution")
"""Options of a workload that name files."""

MAX_FILES = 500
"""Largest number of modules of a workload that are read: those of PyTorch itself take a minute."""


def file_digests(model: Mapping[str, Any]) -> dict[str, str]:
    """Path (relative to the current folder) -> digest, for each file that a workload's configuration names.

    These are table configurations, a config.json, the user's own module, and the modules of its folder that it imports directly or
    indirectly.

    Args:
        model: the `model` section of a point. A missing file or module is skipped; it is an error when the step is
            built.
    """
    found = [Path(str(model[name])) for name in ("lengths", "distribution") if name in model]
    if model.get("table_configs"):
        found.append(table_configs_path(model["table_configs"]))
    if model.get("config"):
        named = Path(str(model["config"]))
        found.append(named / "config.json" if named.is_dir() else named)
    if model.get("target"):
        found += _modules(str(model["target"]).partition(":")[0])
    return {os.path.relpath(path): file_digest(path)[:16] for path in found if path.is_file()}


def _modules(target: str) -> list[Path]:
    """The file of a module, and the files that it imports from its own folder."""
    top = target.partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) if top else None
    places = [*(spec.submodule_search_locations or []), spec.origin] if spec else []
    if not places or not places[0]:
        return []
    root = Path(places[0]).parent
    waiting = [target]
    seen = dict[Path, None]()
    installed = any(
        part in _INSTALLED for part in root.parts
    )  # all other installed packages are in the same folder
    while waiting and len(seen) < MAX_FILES:
        name = waiting.pop()
        if installed and name.partition(".")[0] != top:
            continue
        for path in _files(root, name):
            if path not in seen and _PACKAGE not in path.resolve().parents:
                seen[path] = None
                waiting += _imported(path, root)
    return list(seen)


def _files(root: Path, name: str) -> Iterator[Path]:
    """Yield the files of the enclosing packages and the module below a folder; none if the module is elsewhere."""
    place = root
    for part in name.split("."):
        place = place / part
        for path in (place / "__init__.py", place.with_name(f"{part}.py")):
            if path.is_file():
                yield path


def _imported(path: Path, root: Path) -> list[str]:
    """Dotted names that a module imports anywhere in its code; in `from a import b`, `b` may also be a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # the error is reported when the step is built
        return []
    package = path.parent.relative_to(root).parts
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*around, *([node.module] if node.module else [])])
            names += [".".join(filter(None, [base, alias.name])) for alias in node.names]
    return names
