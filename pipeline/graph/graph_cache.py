"""Captured graphs and their device calls, kept between runs in the user's cache folder (`pipeline.user_cache`).

A graph depends on the workload's configuration, the batch size, the code that captures it, the versions of PyTorch and
`transformers`, and the user's own files. A step that was asked before is predicted without PyTorch.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.digest import module_digest
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.edit_options import edited
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.table import Graph
from pipeline.hardware.spec import GpuSpec
from pipeline.schemas import read_table, write_table
from pipeline.settings import EditSettings
from pipeline.user_cache import kept, key_of
from pipeline.workloads.workload_files import file_digests

NO_EDITS = EditSettings()

LIBRARIES = ("torch", "transformers")
"""Packages whose code runs in a captured step."""


def captured(config: Mapping[str, Any], batch_size: int, edit: EditSettings = NO_EDITS) -> Graph:
    """The graph of a workload's step, from the cache or captured now.

    Args:
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.
        edit: edits of its operators.

    Raises:
        SteptimeError: the workload cannot be made (see `pipeline.workloads.make_step`), or an edit matches no operator.
    """

    def make() -> Graph:
        return edited(captured(config, batch_size), edit) if edit else capture(config, batch_size)

    return kept("graph.parquet", graph_key(config, batch_size, edit), make, read_graph, write_graph)


def calls_of(
    graph: Graph, config: Mapping[str, Any], batch_size: int, gpu: GpuSpec, edit: EditSettings = NO_EDITS
) -> pd.DataFrame:
    """Device calls of a captured graph on a GPU (`calls` schema), from the cache or mapped now.

    Args:
        graph: the graph that `captured` returns for the other arguments.
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.
        gpu: the GPU whose kernels are chosen.
        edit: edits of the operators.

    Raises:
        ConfigError: PyTorch refuses the step on this GPU.
    """
    return kept(
        f"{gpu_kind(gpu)}.parquet",
        graph_key(config, batch_size, edit),
        lambda: map_calls(graph, gpu, graph.device),
        _read_calls,
        lambda calls, path: write_table(calls, path, "calls"),
    )


def _read_calls(path: Path) -> pd.DataFrame:
    """A table of calls; files with equal content give the same table, because many kinds of GPUs launch the same kernels."""
    content = hashlib.sha256(path.read_bytes()).digest()
    if content not in _LAST_READ:
        table = read_table(path, "calls")
        while len(_LAST_READ) >= TABLES_KEPT:
            _LAST_READ.pop(next(iter(_LAST_READ)))
        _LAST_READ[content] = table
    return _LAST_READ[content]


TABLES_KEPT = 4
"""Tables of calls that stay in memory. The calls of a step differ between about two kinds of GPUs."""

_LAST_READ: dict[bytes, pd.DataFrame] = {}
"""The tables that were read last, by the hash of their files."""


def gpu_kind(gpu: GpuSpec) -> str:
    """Name of what decides the calls of a graph: GPUs with the same name of their kind launch the same kernels."""
    return f"calls-{gpu.architecture}-{gpu.compute_capability}-{gpu.sms}"


def graph_key(config: Mapping[str, Any], batch_size: int, edit: EditSettings = NO_EDITS) -> str:
    """Hash of everything that a captured graph and its calls depend on, besides the GPU."""
    own = config.get("architecture") == "custom"
    return key_of(
        {
            "config": config,
            "batch_size": batch_size,
            "edit": edit.texts,
            "code": module_digest("pipeline.graph.graph_cache"),
            "libraries": _installed() if own else [_version(name) for name in LIBRARIES],
            "files": file_digests(config),
        }
    )


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
