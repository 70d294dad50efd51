"""Files outside the project that shape a workload: what its configuration names, and what that imports.

Snakemake sees the configuration alone; with a digest of these files among a rule's params, an edit to them makes the graph
anew. Nothing is imported here: a module of the user's may do anything when it is.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from pipeline.packs import file_digest
from pipeline.paths import project_dir

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")


def file_digests(model: Mapping[str, Any]) -> dict[str, str]:
    """Digest by path, from the current folder, of each file that a workload's configuration names.

    These are table configurations, and the user's own module with those of its folder that it imports, directly or not.

    Args:
        model: the `model` section of a point. A file or module that is not there is left out: whoever builds the step
            says so.
    """
    found: list[Path] = []
    if model.get("table_configs"):
        found.append(table_configs_path(model["table_configs"]))
    if model.get("target"):
        found += _modules(str(model["target"]).partition(":")[0])
    return {os.path.relpath(path): file_digest(path)[:16] for path in found if path.is_file()}


def table_configs_path(named: object) -> Path:
    """Where `model.table_configs` lies: in the current folder, else in the project's."""
    path = Path(str(named))
    return path if path.is_absolute() or path.is_file() else project_dir() / path


def _modules(target: str) -> list[Path]:
    """The file of a module and those that it imports from the folder in which it was found."""
    top = target.partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) if top else None
    places = [*(spec.submodule_search_locations or []), spec.origin] if spec else []
    if not places or not places[0]:
        return []
    root, waiting, seen = Path(places[0]).parent, [target], dict[Path, None]()
    installed = any(part in _INSTALLED for part in root.parts)  # next to it lies everything else that is installed
    while waiting:
        name = waiting.pop()
        if installed and name.partition(".")[0] != top:
            continue
        for path in _files(root, name):
            if path not in seen and _PACKAGE not in path.resolve().parents:
                seen[path] = None
                waiting += _imported(path, root)
    return list(seen)


def _files(root: Path, name: str) -> Iterator[Path]:
    """The module's file below a folder, after those of the packages around it; nothing for a module from elsewhere."""
    place = root
    for part in name.split("."):
        place = place / part
        for path in (place / "__init__.py", place.with_name(f"{part}.py")):
            if path.is_file():
                yield path


def _imported(path: Path, root: Path) -> list[str]:
    """Dotted names that a module imports anywhere in its code; of `from a import b`, `b` may be a module too."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # said when the step is built
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
