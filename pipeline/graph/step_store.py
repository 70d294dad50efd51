"""The only owner of captured graphs, their device calls and the memory need of steps, in memory and between runs.

What is kept between runs lies in the user's cache folder (`pipeline.user_cache`). A graph depends on the workload's
configuration, the batch size, the code that captures it, the versions of PyTorch and `transformers`, and the user's own
files. A step that was asked before is predicted without PyTorch.

When a second batch size of a shipped workload is asked, its step is captured at a small and at a large one. If the three graphs
lie on a line over the batch size (`pipeline.graph.batch_line`), all others on it are computed, also without PyTorch. Never
computed are the user's own steps, and steps with sparse gradients: how many rows a batch uses is no line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from pipeline.errors import InputError, SteptimeError
from pipeline.graph.batch_line import (
    LOW,
    MIDDLE,
    GraphLine,
    MemoryLine,
    NotOnALineError,
    highest,
    same_at_any_batch,
)
from pipeline.graph.capture import capture, needs_fake_tensors
from pipeline.graph.compiled_step import OWN, compiled
from pipeline.graph.device_calls import map_calls
from pipeline.graph.edit_options import edited
from pipeline.graph.gpu_memory import needed_bytes, stage_memory
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.step_modules import AS_WRITTEN
from pipeline.graph.table import Graph, Memory
from pipeline.hardware.asked_gpu import capturing_for
from pipeline.hardware.rank_layout import Groups, Layout
from pipeline.hardware.spec import GpuSpec
from pipeline.model_files import DIGEST_KEY, read_json, write_json
from pipeline.paths import cache_dir
from pipeline.question.compiled_target import as_written, with_target
from pipeline.question.options import FREE_OPTIONS, NAMED_BY
from pipeline.question.question import Question
from pipeline.question.settings import EditSettings, FrozenDict
from pipeline.schemas import read_table, write_table
from pipeline.user_cache import find, keep, kept, key_of, module_digest
from pipeline.workloads.user_errors import SIZE_ERRORS
from pipeline.workloads.user_steps import is_given
from pipeline.workloads.workload_files import NAMING_FILES, file_digests

Value = TypeVar("Value")

ONE_GPU = Layout()
"""The layout by which a step's calls on a kind of GPU are held as they were captured."""

NO_EDITS = EditSettings()

LIBRARIES = ("torch", "transformers")
"""Packages whose code runs in a captured step."""

MODEL_PACKAGES = ("timm", "torchvision", "peft")
"""Further packages whose code runs in a step of a library's model."""

GRAPH, LINE = "graph.parquet", "line.json"
"""Names of entries in the cache: a graph, and what is known of a workload's line over the batch size."""

STEPS_IN_MEMORY = 16
"""Steps whose graphs and calls stay in memory. The largest take 10 MB each."""

LineState = MemoryLine | int | None
"""What is known of a workload's line: its ends, False if there is none, the only batch size that was captured so far, or
None."""


class StepStore:
    """Graphs, device calls and memory needs of the steps of questions. Each is made once; the last ones stay in memory."""

    def __init__(self) -> None:
        self._graphs: dict[object, Graph] = {}
        self._calls: dict[object, dict[str, dict[Layout, pd.DataFrame]]] = {}
        self._memory: dict[object, Memory] = {}

    def forget(self) -> None:
        """Forget the steps in memory; those in the cache folder stay."""
        for entries in (self._graphs, self._calls, self._memory):
            entries.clear()

    def graph(self, question: Question) -> Graph:
        """The graph of a question's step, after edits of its operators; errors are those of `captured`."""
        step = question.workload, question.batch_size, question.edit
        config = question.workload.plain()
        with capturing_for(question.gpu):
            graph = _recent(self._graphs, step, lambda: captured(config, *step[1:]))
            if graph.gpu not in ("", question.gpu.name):
                graph = self._graphs[step] = edited(capture(config, step[1]), question.edit)
            if graph.computed.get("compiled") == AS_WRITTEN:
                graph = self._graphs[step] = _compiled_by_user(graph, question)
        self._memory[step[:2]] = graph.memory
        return graph

    def calls(self, question: Question) -> pd.DataFrame:
        """Device calls of a question's step on its GPU (`calls` schema).

        GPUs that launch the same kernels get the same object, so that callers can share what they make of it. The cache holds
        it once, and for each further kind of GPU the name of the first.

        Raises:
            ConfigError: PyTorch refuses the step on this GPU.
        """
        step = question.workload, question.batch_size, question.edit
        kinds = _recent(self._calls, step, dict)
        graph = self.graph(question)
        kind = gpu_kind(question.gpu) + graph.gpu
        if kind not in kinds:
            key = _key_if_kept(question.workload.plain(), *step[1:])
            mapped = cache(partial(map_calls, graph, question.gpu, graph.device))
            same = kept(
                f"{kind}.json",
                key,
                lambda: _first_alike(kinds, mapped(), kind),
                lambda path: str(
                    read_json(path, "the step is mapped again", ("kind", DIGEST_KEY))["kind"]
                ),
                lambda name, path: write_json(path, {"kind": name}, sealed=True),
            )
            if same not in kinds:
                read: Callable[[Path], pd.DataFrame] = partial(read_table, schema="calls")
                calls = kept(
                    f"{same}.parquet", key, mapped, read, partial(write_table, schema="calls")
                )
                kinds[same] = {ONE_GPU: calls}
            kinds[kind] = kinds[same]
        tables, layout = kinds[kind], question.ranks.layout if question.ranks else ONE_GPU
        if layout not in tables:
            tables[layout] = between_ranks(tables[ONE_GPU], question)
        return tables[layout]

    def memory_bytes(self, question: Question, batch_size: int | None = None) -> int:
        """Bytes that a question's step needs on its GPU, or the same step at another batch size; edits do not change it.

        The graph is only made if the need is not known without it; errors are those of `captured`.
        """
        batch_size = batch_size or question.batch_size
        parts = [self._memory_of(chunk, batch_size) for chunk in question.chunks]
        memory = (
            stage_memory(parts, question.ranks, question.workload) if question.ranks else parts[0]
        )
        return needed_bytes(memory, question.gpu)

    def _memory_of(self, question: Question, batch_size: int) -> Memory:
        """The memory need of one micro-batch in the part of the model that a question names, not compiled."""
        if question.workload.get("compile"):
            question = replace(question, workload=FrozenDict(as_written(question.workload)))
        if (question.workload, batch_size) not in self._memory:
            config = question.workload.plain()
            need = _memory_without_capture(config, batch_size)
            if need is None:
                self.graph(replace(question, batch_size=batch_size, edit=NO_EDITS))
            else:
                self._memory[question.workload, batch_size] = need
        return self._memory[question.workload, batch_size]


def _compiled_by_user(graph: Graph, question: Question) -> Graph:
    """The graph of a step on a question's GPU, with what the user compiles compiled; as written, with the reason, if that fails."""
    model = {**question.workload.plain(), "compile": OWN}
    try:
        config = with_target(model, question.gpu, local=False, spreads=False)
        graph = captured(config, question.batch_size, question.edit)
    except InputError as error:
        why = str(error).removeprefix("model.compile=true")
        graph = replace(
            graph,
            warnings=(*graph.warnings, f"torch.compile{why}"),
            computed={**graph.computed, "compiled": "no, as written"},
        )
    return replace(graph, gpu=question.gpu.name)


def between_ranks(calls: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Calls whose collectives are between a question's GPUs; groups along no axis stay as they were captured."""
    if question.ranks is None:
        return calls
    texts = calls.loc[calls["family"] == "collective", "attributes"]
    axes = texts.map(lambda text: json.loads(text)["axis"])
    along = axes[axes != ""].map(question.ranks.layout.groups)
    groups = pd.DataFrame([*along], along.index, Groups._fields, "Int64").reindex(calls.index)
    groups.loc[groups["node_groups"] == 1, "node_groups"] = pd.NA
    plain = calls["attributes"].mask(calls.index.isin(along.index))  # seeds of draws hold both
    return calls.assign(attributes=plain, **groups.fillna(calls))


def _memory_without_capture(config: Mapping[str, Any], batch_size: int) -> Memory | None:
    """The memory need of a step by its line over the batch size, or by a run without capture; None if its graph is needed."""
    state = _line_state(config) if _may_have_line(config) else None
    if isinstance(state, MemoryLine) and batch_size in state:
        return state.at(batch_size)
    if type(state) is not int or state == batch_size:
        return None
    from pipeline.graph.memory import memory_of_workload

    try:
        return memory_of_workload(config, batch_size)
    except SIZE_ERRORS:  # a capture explains the error
        return None


def _recent(entries: dict[object, Value], key: object, make: Callable[[], Value]) -> Value:
    """An entry, made if it is not there; the entry that was used longest ago goes when there are too many."""
    value = entries.pop(key, None)
    if value is None:
        value = make()
    while len(entries) >= STEPS_IN_MEMORY:
        entries.pop(next(iter(entries)))
    entries[key] = value
    return value


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
        if edit:
            return edited(captured(config, batch_size), edit)
        if config.get("compile"):
            return compiled(captured(as_written(config), batch_size), config, batch_size)
        return _computed_or_captured(config, batch_size)

    return kept(GRAPH, _key_if_kept(config, batch_size, edit), make, read_graph, write_graph)


def _key_if_kept(config: Mapping[str, Any], batch_size: int, edit: EditSettings) -> str | None:
    """As `graph_key`; None for a workload that was given as a Python object, of which nothing is kept between runs."""
    is_object = config.get("architecture") == "custom" and is_given(config)
    return None if is_object else graph_key(config, batch_size, edit)


def _computed_or_captured(config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of a step that is not in the cache: computed from others if that is exact, else captured."""
    if not _may_have_line(config):
        return capture(config, batch_size)
    state = _line_state(config)
    if type(state) is int and state != batch_size:
        first = find(GRAPH, graph_key(config, state), read_graph)
        state = _find_line(config, first) if first is not None else None
    if isinstance(state, MemoryLine) and state.low <= batch_size <= state.high:
        try:
            return _line(
                graph_key(config, state.low), graph_key(config, state.high), state, cache_dir()
            ).at(batch_size)
        except (LookupError, NotOnALineError):  # the graphs of its ends are gone
            pass
    graph = capture(config, batch_size)
    if state is None:
        _keep_state(config, batch_size)
    return graph


def _may_have_line(config: Mapping[str, Any]) -> bool:
    of_others = config.get("architecture") in FREE_OPTIONS  # a user's step, or a library's model
    several = Layout.of_workload(config) is not None
    return not (of_others or several or needs_fake_tensors(config) or cache_dir() is None)


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
            line = GraphLine(ends[0], ends[1])
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
def _line(low: str, high: str, memory: MemoryLine, folder: Path) -> GraphLine:
    """The line between two graphs in the cache, by their keys, with its memory."""
    ends = [find(GRAPH, key, read_graph) for key in (low, high)]
    if ends[0] is None or ends[1] is None:
        raise LookupError("no such graph")
    return GraphLine(ends[0], ends[1], memory)


def _line_state(config: Mapping[str, Any]) -> LineState:
    return find(LINE, graph_key(config, 0), _read_state)


def _first_alike(
    kinds: Mapping[str, dict[Layout, pd.DataFrame]], calls: pd.DataFrame, kind: str
) -> str:
    """The first kind of GPU with these calls, which are those of `kind`."""
    return next((other for other, tables in kinds.items() if tables[ONE_GPU].equals(calls)), kind)


def _keep_state(config: Mapping[str, Any], state: LineState) -> None:
    keep(LINE, graph_key(config, 0), state, _write_state)


def _read_state(path: Path) -> LineState:
    """Read what `_write_state` wrote; every SteptimeError, ValueError, LookupError and TypeError means damage."""
    stored = read_json(path, "the step is captured again", (DIGEST_KEY,))
    if "line" not in stored:
        return int(stored["captured"])
    if stored["line"] is None:
        return False
    low, high, at_low, at_high, peaks = stored["line"]
    pairs = tuple((int(one), int(other)) for one, other in peaks)
    return MemoryLine(int(low), int(high), Memory(**at_low), Memory(**at_high), pairs)


def _write_state(state: LineState, path: Path) -> None:
    line = None
    if isinstance(state, MemoryLine):
        line = [state.low, state.high, state.at_low.facts(), state.at_high.facts(), state.peaks]
    write_json(path, {"captured": state} if type(state) is int else {"line": line}, sealed=True)


def gpu_kind(gpu: GpuSpec) -> str:
    """Name of what decides the calls of a graph: GPUs with the same name of their kind launch the same kernels."""
    return f"calls-{gpu.architecture}-{gpu.compute_capability}-{gpu.sms}"


def graph_key(config: Mapping[str, Any], batch_size: int, edit: EditSettings = NO_EDITS) -> str:
    """Hash of everything that a captured graph and its calls depend on, besides the GPU."""
    architecture = config.get("architecture")
    packages = LIBRARIES + (MODEL_PACKAGES if architecture in NAMED_BY else ())
    return key_of(
        {
            "config": config,
            "batch_size": batch_size,
            "edit": edit.texts,
            "code": module_digest("pipeline.graph.step_store"),
            "libraries": installed()
            if architecture == "custom"
            else [_version(name) for name in packages],
            "files": file_digests(config) if any(map(config.get, NAMING_FILES)) else {},
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
def installed() -> list[str]:
    """Names and versions of all installed packages: the user's own step may use any of them."""
    return sorted(path.name for folder in sys.path for path in Path(folder).glob("*.dist-info"))
