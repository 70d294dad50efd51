"""Captured graphs and their device calls, kept between runs in the user's cache folder (`pipeline.user_cache`).

A graph depends on the workload's configuration, the batch size, the code that captures it, the versions of PyTorch and
`transformers`, and the user's own files. A step that was asked before is predicted without PyTorch.

A shipped workload is captured at three batch sizes. If they show that its graph lies on a line over the batch size
(`pipeline.graph.batch_line`), all other graphs on this line are computed, also without PyTorch. Small graphs are captured
three times at the first question, others at the second batch size. Never computed are the user's own steps, and steps with
sparse gradients: how many rows a batch uses is no line.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.digest import module_digest
from pipeline.errors import SteptimeError
from pipeline.graph.batch_line import LOW, MIDDLE, GraphLine, MemoryLine, NotOnALineError, highest
from pipeline.graph.capture import capture, needs_fake_tensors
from pipeline.graph.device_calls import map_calls
from pipeline.graph.edit_options import edited
from pipeline.graph.equal_layers import memory_by_layers
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.symbolic_batch import same_at_any_batch
from pipeline.graph.table import Graph, Memory
from pipeline.hardware.spec import GpuSpec
from pipeline.model_files import DIGEST_KEY, read_json, write_json
from pipeline.paths import cache_dir
from pipeline.schemas import read_table, write_table
from pipeline.settings import EditSettings
from pipeline.user_cache import find, keep, kept, key_of
from pipeline.workloads.workload_files import file_digests

NO_EDITS = EditSettings()

LIBRARIES = ("torch", "transformers")
"""Packages whose code runs in a captured step."""

GRAPH, LINE, MEMORY = "graph.parquet", "line.json", "memory.json"
"""Names of entries in the cache: a graph, what is known of a workload's line over the batch size, and the memory need of a
step whose graph is not known."""

MADE_ANEW = "it is made anew"
"""What happens to a damaged entry, for messages that nobody sees."""

SMALL_GRAPH = 1000
"""Operators of a graph up to which a workload is captured three times at once: that takes 0.1 s of CPU time each."""

LineState = MemoryLine | int | None
"""What is known of a workload's line: its ends, False if there is none, the only batch size that was captured so far, or
None."""


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
        return edited(captured(config, batch_size), edit) if edit else _made(config, batch_size)

    return kept(GRAPH, graph_key(config, batch_size, edit), make, read_graph, write_graph)


def memory_need(config: Mapping[str, Any], batch_size: int) -> Memory:
    """The memory need of a workload's step; its graph is only made if nothing else tells its memory need.

    That is the memory at other batch sizes, or that of a few layers (`pipeline.graph.equal_layers`). Arguments and errors
    are those of `captured`. Edits do not change the memory need.
    """
    state = _line_state(config) if _may_have_line(config) else None
    if isinstance(state, MemoryLine) and batch_size in state:
        return state.at(batch_size)
    if type(state) is int and state != batch_size:
        key = graph_key(config, batch_size)
        found = find(MEMORY, key, _read_memory)
        first = find(GRAPH, graph_key(config, state), read_graph) if found is None else None
        if first is not None:
            found = memory_by_layers(config, batch_size, first)
            if found is not None:
                keep(MEMORY, key, found, _write_memory)
        if found is not None:
            return found
    return captured(config, batch_size).memory


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


def _made(config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of a step that is not in the cache: computed from others if that is exact, else captured."""
    if not _may_have_line(config):
        return capture(config, batch_size)
    state = _line_state(config)
    if type(state) is int and state != batch_size:
        first = find(GRAPH, graph_key(config, state), read_graph)
        state = _find_line(config, first) if first is not None else None
    if isinstance(state, MemoryLine) and state.low < batch_size < state.high:
        try:
            return _line(graph_key(config, state.low), graph_key(config, state.high), cache_dir()).at(batch_size)
        except (LookupError, NotOnALineError):  # the graphs of its ends are gone
            pass
    graph = capture(config, batch_size)
    if state is None:
        if len(graph.table) <= SMALL_GRAPH:
            _find_line(config, graph)
        else:
            _keep_state(config, batch_size)
    return graph


def _may_have_line(config: Mapping[str, Any]) -> bool:
    own = config.get("architecture") == "custom"
    return cache_dir() is not None and not own and not needs_fake_tensors(config)


def _find_line(config: Mapping[str, Any], graph: Graph) -> LineState:
    """Capture a step at the ends of its line, and keep the line if it is one. Says what is known then.

    Args:
        config: as for `captured`.
        graph: the graph of the step at any batch size.
    """
    high = highest(graph)
    state: LineState = False
    if high is not None and same_at_any_batch(config):
        try:
            ends = [capture(config, size) for size in (LOW, high)]
            inside = graph if LOW < graph.batch_size < high else capture(config, MIDDLE)
            line = GraphLine(*ends)
        except (NotOnALineError, SteptimeError):  # such as too little memory for the larger batch
            pass
        else:
            if line.holds(inside):
                state = line.memory
                for end in ends:
                    keep(GRAPH, graph_key(config, end.batch_size), end, write_graph)
    _keep_state(config, state)
    return state


@lru_cache(maxsize=8)
def _line(low: str, high: str, folder: Path) -> GraphLine:
    """The line between two graphs in the cache, by their keys.

    Raises:
        LookupError: one of them is not there.
    """
    ends = [find(GRAPH, key, read_graph) for key in (low, high)]
    if ends[0] is None or ends[1] is None:
        raise LookupError("no such graph")
    return GraphLine(ends[0], ends[1])


def _line_state(config: Mapping[str, Any]) -> LineState:
    return find(LINE, graph_key(config, 0), _read_state)


def _keep_state(config: Mapping[str, Any], state: LineState) -> None:
    keep(LINE, graph_key(config, 0), state, _write_state)


def _read_state(path: Path) -> LineState:
    """Read what `_write_state` wrote; every SteptimeError, ValueError, LookupError and TypeError means damage."""
    stored = read_json(path, MADE_ANEW, (DIGEST_KEY,))
    if "line" not in stored:
        return int(stored["captured"])
    if stored["line"] is None:
        return False
    low, high, *needs = stored["line"]
    return MemoryLine(int(low), int(high), *(Memory(**need) for need in needs))


def _write_state(state: LineState, path: Path) -> None:
    found = None
    if isinstance(state, MemoryLine):
        found = [state.low, state.high, asdict(state.at_low), asdict(state.at_high)]
    stored = {"captured": state} if type(state) is int else {"line": found}
    write_json(path, stored, sealed=True)


def _read_memory(path: Path) -> Memory:
    return Memory(**{part: int(size) for part, size in read_json(path, MADE_ANEW, (DIGEST_KEY,)).items()})


def _write_memory(memory: Memory, path: Path) -> None:
    write_json(path, asdict(memory), sealed=True)


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
