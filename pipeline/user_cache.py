"""Results that are kept between runs in the user's cache folder, each named by a hash of all that it depends on.

$STEPTIME_CACHE names another folder; `none` switches the cache off. A cache that cannot be used never stops a command: the
result is computed again. Entries are written completely or not at all, so that many processes may share a cache, and a
damaged entry is made anew.

A result also depends on code: `code_digest` hashes the library code that a rule's script uses, so that Snakemake runs a rule
again when it has changed. The imports are followed through the package, so no rule has to list modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import SteptimeError, SteptimeWarning
from pipeline.paths import cache_dir, project_dir

Held = TypeVar("Held")

MAX_BYTES = 512 << 20
"""Size of the cache in bytes at which its oldest entries are deleted: a captured graph takes 20 to 200 kB."""

KEPT_SHARE = 0.8
"""Share of `MAX_BYTES` that stays when entries are deleted, so that this happens rarely."""

LISTED = "00"
"""End of the keys (one of 256) whose entries bound the cache: to list 5,000 entries takes 0.04 s of CPU time."""

_WARNED: set[Path] = set()
"""Cache folders for which this process has already said that they cannot be written."""


def key_of(parts: Mapping[str, Any]) -> str:
    """Hash of everything that an entry depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def kept(
    name: str,
    parts: Mapping[str, Any] | str | None,
    make: Callable[[], Held],
    read: Callable[[Path], Held],
    write: Callable[[Held, Path], None],
) -> Held:
    """A result from the cache, or made now and stored.

    Args:
        name: kind of the entry, with the suffix of its file, such as `graph.parquet`.
        parts: everything that the result depends on, or its key (`key_of`); None if it is not kept.
        make: computes the result.
        read: reads an entry, which is never None; an error of reading or of its content counts as damage.
        write: writes an entry, completely or not at all.
    """
    if parts is None:
        return make()
    key = parts if isinstance(parts, str) else key_of(parts)
    entry = find(name, key, read)
    if entry is None:
        entry = make()
        keep(name, key, entry, write)
    return entry


def find(name: str, key: str, read: Callable[[Path], Held]) -> Held | None:
    """An entry of the cache; None if there is none, or it was damaged (then it is deleted). Arguments as for `kept`."""
    folder = cache_dir()
    path = None if folder is None else _path(folder, key, name)
    if path is None or not path.is_file():
        return None
    try:
        entry = read(path)
    except (SteptimeError, OSError, ValueError, LookupError, TypeError):
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the oldest entries are deleted first
    return entry


def keep(name: str, key: str, made: Held, write: Callable[[Held, Path], None]) -> None:
    """Store an entry if the cache can be written. Arguments as for `kept`."""
    folder = cache_dir()
    if folder is None:
        return
    path = _path(folder, key, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(made, path)
        if key.endswith(LISTED):
            _bound(folder)
    except (SteptimeError, OSError) as error:
        if folder not in _WARNED:
            _WARNED.add(folder)
            warnings.warn(
                f"the cache {folder} cannot be written ({error}), so results are computed again;"
                " set $STEPTIME_CACHE to another folder, or to none",
                SteptimeWarning,
                stacklevel=2,
            )


def _path(folder: Path, key: str, name: str) -> Path:
    return folder / key[:2] / f"{key}.{name}"


def _bound(folder: Path) -> None:
    """Delete the entries that were not used for longest if the cache is larger than `MAX_BYTES`."""
    entries = []
    for path in folder.glob("??/*.*"):
        with contextlib.suppress(OSError):  # another process deleted it
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    limit = MAX_BYTES if total <= MAX_BYTES else KEPT_SHARE * MAX_BYTES
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


ROOT = Path(__file__).resolve().parents[1]

SCRIPTS = tuple(project_dir() / room / "scripts" for room in ("evaluation", "workflow"))
"""Folders of the rules' scripts. In a checkout, a script of `evaluation` goes before one of the same name."""

PLUMBING = frozenset(
    f"pipeline/{name}.py"
    for name in (
        "errors",
        "model_files",
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

_IMPORT = re.compile(
    r"^[ \t]*from ((?:pipeline|evaluation)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE
)


@cache
def code_digest(script: str) -> str:
    """Hash of every module that a rule's script imports, directly or through other modules.

    Args:
        script: file name without `.py`.

    Raises:
        FileNotFoundError: there is no such script.
    """
    return _hash(code_of(script))


@cache
def module_digest(module: str) -> str:
    """Hash of a module and of every module of the package that it imports, directly or through other modules."""
    return _hash(_code_behind(ROOT / f"{module.replace('.', '/')}.py"))


def code_of(script: str) -> list[Path]:
    """The files that `code_digest` hashes: modules and the data files beside them (such as `opmap.yaml`), in a fixed order."""
    files = [folder / f"{script}.py" for folder in SCRIPTS]
    return _code_behind(next((file for file in files if file.is_file()), files[0]))


def _hash(paths: Iterable[Path]) -> str:
    parts = ((path.relative_to(ROOT).as_posix().encode(), path.read_bytes()) for path in paths)
    return hashlib.sha256(b"".join(part for pair in parts for part in pair)).hexdigest()[:16]


def _code_behind(start: Path) -> list[Path]:
    """Modules that a file imports, directly or indirectly, and the data files beside them."""
    waiting = [start]
    files = set[Path]() if start.parent in SCRIPTS else {start}
    while waiting:
        for path in _imported(waiting.pop()):
            if path not in files and path.relative_to(ROOT).as_posix() not in PLUMBING:
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
    found: list[Path] = []
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        words = [name.split()[0] for name in names.strip("()").split(",") if name.split()]
        for dotted in (module, *(f"{module}.{word}" for word in words)):
            stem = ROOT.joinpath(*dotted.split("."))
            files = (stem.with_suffix(".py"), stem / "__init__.py")
            found += [file for file in files if file.is_file()][:1]
    return tuple(found)
