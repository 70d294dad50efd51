"""Captured graphs and their device calls, stored between runs in the user's cache folder.

A graph depends on the workload's configuration, the batch size, the code that captures it, the versions of PyTorch and
`transformers`, and the user's own files. The name of an entry is a hash of all these, so an entry is never out of date.
A step that was asked before is predicted without PyTorch.

$STEPTIME_CACHE names another folder; `none` switches the cache off. A cache that cannot be used never stops a prediction:
the graph is captured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from pipeline.digest import module_digest
from pipeline.errors import SteptimeError, SteptimeWarning, TableError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.table import Graph
from pipeline.hardware.spec import GpuSpec
from pipeline.paths import cache_dir
from pipeline.schemas import read_table, write_table
from pipeline.workloads.workload_files import file_digests

Held = TypeVar("Held")

MAX_BYTES = 512 << 20
"""Size of the cache in bytes at which its oldest entries are deleted: a graph takes 20 to 200 kB."""

KEPT_SHARE = 0.8
"""Share of `MAX_BYTES` that stays when entries are deleted, so that this happens rarely."""

_WARNED: set[str] = set()
"""Cache folders for which this process has already said that they cannot be written."""

LIBRARIES = ("torch", "transformers")
"""Packages whose code runs in a captured step."""


def captured(config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of a workload's step, from the cache or captured now.

    Args:
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.

    Raises:
        SteptimeError: the workload cannot be made (see `pipeline.workloads.make_step`).
    """
    path = _entry(graph_key(config, batch_size), "graph")
    graph = _read(path, read_graph)
    if graph is None:
        graph = capture(config, batch_size)
        _store(path, lambda place: write_graph(graph, place))
    return graph


def calls_of(graph: Graph, config: Mapping[str, Any], batch_size: int, gpu: GpuSpec) -> pd.DataFrame:
    """Device calls of a captured graph on a GPU (`calls` schema), from the cache or mapped now.

    Args:
        graph: the graph that `captured` returns for this configuration and batch size.
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.
        gpu: the GPU whose kernels are chosen.
    """
    target = f"calls-{gpu.architecture}-{gpu.compute_capability}-{gpu.sms}"
    path = _entry(graph_key(config, batch_size), target)
    calls = _read(path, lambda place: read_table(place, "calls"))
    if calls is None:
        calls = map_calls(graph, gpu, graph.device)
        _store(path, lambda place: write_table(calls, place, "calls"))
    return calls


def graph_key(config: Mapping[str, Any], batch_size: int) -> str:
    """Hash of everything that a captured graph and its calls depend on, besides the GPU."""
    parts = {
        "config": config,
        "batch_size": batch_size,
        "code": module_digest("pipeline.graph.graph_cache"),
        "libraries": _installed() if config.get("architecture") == "custom" else [_version(name) for name in LIBRARIES],
        "files": file_digests(config),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


@cache
def _version(package: str) -> str:
    """Version of an installed package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def _installed() -> list[str]:
    """Names and versions of all installed packages: the user's own step may use any of them."""
    folders = [Path(folder) for folder in sys.path if Path(folder).is_dir()]
    return sorted(path.name for folder in folders for path in folder.glob("*.dist-info"))


def _entry(key: str, name: str) -> Path | None:
    folder = cache_dir()
    return None if folder is None else folder / "graphs" / key[:2] / f"{key}.{name}.parquet"


def _read(path: Path | None, read: Callable[[Path], Held]) -> Held | None:
    """What an entry holds; None if there is none. A damaged entry is deleted."""
    if path is None or not path.is_file():
        return None
    try:
        found = read(path)
    except TableError:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the oldest entries are deleted first
    return found


def _store(path: Path | None, write: Callable[[Path], None]) -> None:
    """Write an entry. If this fails, one warning of the process says why."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        _bound(path.parents[1])
    except (SteptimeError, OSError) as error:
        _warn_once(str(cache_dir()), str(error))


def _warn_once(folder: str, reason: str) -> None:
    if folder in _WARNED:
        return
    _WARNED.add(folder)
    warnings.warn(
        f"the cache {folder} cannot be written ({reason}), so graphs are captured again; set $STEPTIME_CACHE to another "
        "folder, or to none",
        SteptimeWarning,
        stacklevel=2,
    )


def _bound(folder: Path) -> None:
    """Delete the entries that were not used for longest if the cache is larger than `MAX_BYTES`."""
    entries = []
    for path in folder.glob("*/*.parquet"):
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
