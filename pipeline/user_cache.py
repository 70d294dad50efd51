"""Results that are kept between runs in the user's cache folder, each named by a hash of all that it depends on.

$STEPTIME_CACHE names another folder; `none` switches the cache off. A cache that cannot be used never stops a command: the
result is computed again. Entries are written completely or not at all, so that many processes may share a cache, and a
damaged entry is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import SteptimeError, SteptimeWarning
from pipeline.paths import cache_dir

Held = TypeVar("Held")

MAX_BYTES = 512 << 20
"""Size of the cache in bytes at which its oldest entries are deleted: a captured graph takes 20 to 200 kB."""

KEPT_SHARE = 0.8
"""Share of `MAX_BYTES` that stays when entries are deleted, so that this happens rarely."""

LISTED = "0"
"""Last digits of keys (one of 16) whose entries bound the cache: to list 5,000 entries takes 0.04 s of CPU time."""

_WARNED: set[str] = set()
"""Cache folders for which this process has already said that they cannot be written."""


def key_of(parts: Mapping[str, Any]) -> str:
    """Hash of everything that an entry depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def kept(
    name: str,
    parts: Mapping[str, Any] | str,
    make: Callable[[], Held],
    read: Callable[[Path], Held],
    write: Callable[[Held, Path], None],
) -> Held:
    """A result from the cache, or made now and stored.

    Args:
        name: kind of the entry, with the suffix of its file, such as `graph.parquet`.
        parts: everything that the result depends on, or its key (`key_of`).
        make: computes the result.
        read: reads an entry, which is never None; an error of reading or of its content counts as damage.
        write: writes an entry, completely or not at all.
    """
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
        if key[-1] in LISTED:
            _bound(folder)
    except (SteptimeError, OSError) as error:
        _warn_once(str(folder), str(error))


def _path(folder: Path, key: str, name: str) -> Path:
    return folder / key[:2] / f"{key}.{name}"


def _warn_once(folder: str, reason: str) -> None:
    if folder in _WARNED:
        return
    _WARNED.add(folder)
    warnings.warn(
        f"the cache {folder} cannot be written ({reason}), so results are computed again; set $STEPTIME_CACHE to another "
        "folder, or to none",
        SteptimeWarning,
        stacklevel=2,
    )


def _bound(folder: Path) -> None:
    """Delete the entries that were not used for longest if the cache is larger than `MAX_BYTES`."""
    entries = []
    for path in folder.glob("??/*.*"):
        with contextlib.suppress(OSError):  # another process deleted it
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= MAX_BYTES:
        return
    for _, size, path in sorted(entries):
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
        if total <= KEPT_SHARE * MAX_BYTES:
            return
