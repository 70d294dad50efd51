"""Digest of the library code that a script uses, so that Snakemake runs a rule again when that code has changed.

The imports of the script are followed through the package, also those inside functions, so no rule has to list modules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pipeline.paths import project_dir

ROOT = Path(__file__).resolve().parents[1]

SCRIPTS = tuple(project_dir() / room / "scripts" for room in ("evaluation", "workflow"))
"""Folders of the rules' scripts. In a checkout, a script of `evaluation` goes before one of the same name."""

PLUMBING = frozenset(
    f"pipeline/{name}.py"
    for name in (
        "digest",
        "errors",
        "model_files",
        "packs",
        "paths",
        "question/compose",
        "question/question",
        "schemas",
        "scripting",
        "user_cache",
        "yaml_text",
    )
)
"""Modules that find, check and store files. No result depends on them, so their edits do not refit kernel models."""

DRAWING = ("pipeline/show/figures/", "pipeline/palette.py")
"""The figures' code and colours. It counts for rules that draw figures, not for rules that log a figure with a fit."""

_IMPORT = re.compile(r"^[ \t]*from ((?:pipeline|evaluation)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


@cache
def code_digest(script: str, drawing: bool = False) -> str:
    """Hash of every module that a rule's script imports, directly or through other modules.

    Args:
        script: file name without `.py`.
        drawing: whether the code of figures counts too.

    Raises:
        FileNotFoundError: there is no such script.
    """
    return _hash(code_of(script, drawing))


@cache
def module_digest(module: str) -> str:
    """Hash of a module and of every module of the package that it imports, directly or through other modules."""
    return _hash(_code_behind(ROOT / f"{module.replace('.', '/')}.py", False))


def code_of(script: str, drawing: bool = False) -> list[Path]:
    """The files that `code_digest` hashes: modules and the data files beside them (such as `opmap.yaml`), in a fixed order."""
    files = [folder / f"{script}.py" for folder in SCRIPTS]
    return _code_behind(next((file for file in files if file.is_file()), files[0]), drawing)


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _code_behind(start: Path, drawing: bool) -> list[Path]:
    """Modules that a file imports, directly or indirectly, and the data files beside them."""
    waiting = [start]
    files = set[Path]() if start.parent in SCRIPTS else {start}
    while waiting:
        for path in _imported(waiting.pop()):
            name = path.relative_to(ROOT).as_posix()
            if path not in files and name not in PLUMBING and (drawing or not name.startswith(DRAWING)):
                files.add(path)
                waiting.append(path)
    data = {
        file
        for folder in {path.parent for path in files}
        for file in folder.iterdir()
        if file.suffix in (".yaml", ".csv", ".html")
    }
    return sorted(files | data)


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Files of the package that a file imports, at its top or inside functions."""
    return tuple(_imports_of(path.read_text(encoding="utf-8")))


def _imports_of(code: str) -> Iterator[Path]:
    for module, names in _IMPORT.findall(code):
        words = [name.split()[0] for name in names.strip("()").split(",") if name.split()]
        for dotted in (module, *(f"{module}.{word}" for word in words)):
            file_stem = ROOT.joinpath(*dotted.split("."))
            file = file_stem.with_suffix(".py") if file_stem.with_suffix(".py").is_file() else file_stem / "__init__.py"
            if file.is_file():
                yield file
