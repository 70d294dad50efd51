"""Graphs that are computed from those at other batch sizes: they equal captured ones, or are captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline import workloads
from pipeline.graph import step_store
from pipeline.graph.batch_line import LOW, same_at_any_batch
from pipeline.graph.capture import capture
from pipeline.graph.gpu_memory import needed_bytes
from pipeline.graph.step_store import StepStore, captured
from pipeline.graph.table import Graph
from pipeline.question.compose import choices
from pipeline.question.options import FREE_OPTIONS
from pipeline.question.question import expand
from pipeline.question.settings import FrozenDict
from pipeline.schemas import to_arrow
from pipeline.workloads.training_step import Step, host_empty
from tests.commands import python
from tests.workloads.small import LIKE_ANOTHER

WITH_A_SIBLING = ("resnet50", "dlrm_dcnv2", "dlrm_open_source", "gnmt", "gpt", "opt_13")
"""Workloads whose line another one has too, of the same builder or with options."""

TINY = [
    "model=dlrm_small", "model.tables=2", "model.rows=100", "model.bottom_mlp=[4,8]", "model.dim=8",
    "model.top_mlp=[4,1]",
]  # fmt: skip


def model(*overrides: str) -> dict[str, Any]:
    """The `model` section of a workload; language models have one layer."""
    config = expand(overrides)[0].section("model")
    return {**config, "layers": 1} if "layers" in config else config


def same(one: Graph, other: Graph) -> bool:
    """Equal tables, memory and descriptions."""
    facts = [(g.memory, g.device, g.model, g.batch_size, g.warnings) for g in (one, other)]
    return facts[0] == facts[1] and to_arrow(one.table, "graph").equals(
        to_arrow(other.table, "graph")
    )


@pytest.fixture
def captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes that were captured, in an empty cache."""
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))
    done: list[int] = []
    monkeypatch.setattr(
        step_store, "capture", lambda config, batch: done.append(batch) or capture(config, batch)
    )
    return done


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name in (*LIKE_ANOTHER, *WITH_A_SIBLING)))
        for name in choices("model")
        if name not in (*FREE_OPTIONS, "dlrm_nvidia", "hstu")  # captured for each batch size
    ],
)
def test_a_computed_graph_of_every_shipped_workload_is_the_captured_one(
    name: str, captures: list[int]
) -> None:
    config = model(f"model={name}")
    steps = StepStore()
    question = replace(expand([f"model={name}"])[0], workload=FrozenDict(config))
    captured(config, 32)
    captured(config, 33)
    assert len(captures) == 3, "the first batch size and the two ends of the line"
    computed = captured(config, 2001)
    assert steps.memory_bytes(question, 2001) == needed_bytes(computed.memory, question.gpu)
    assert len(captures) == 3
    assert same(computed, capture(config, 2001))


@pytest.mark.parametrize(
    "words",
    [
        "model=dlrm_default model.embedding=dense model.interaction=fused model.dtype=fp16",
        "model=dlrm_open_source model.precision=pure model.dtype=bf16 model.optimizer=adam",
        "model=bert_large model.attention=fused model.dtype=fp16 model.mode=inference",
        "model=gnmt model.normalised_attention=true model.shared_embedding=true model.dtype=tf32"
        " model.label_smoothing=0.1",
    ],
)
def test_options_of_a_workload_too(words: str, captures: list[int]) -> None:
    config = model(*words.split())
    captured(config, 7)
    captured(config, 512)
    assert len(captures) == 3
    assert same(captured(config, 1024), capture(config, 1024))


@pytest.mark.parametrize(
    "overrides",
    [
        (*TINY, "model.embedding=sparse"),
        ("model=resnet50", "model.memory_format=channels_last", "model.mode=inference"),
        ("model=custom", "model.target=tests.graph.test_batch_line:usual_step"),
    ],
)
@pytest.mark.usefixtures("shallow")
def test_a_workload_without_proof_is_captured_at_each_size(
    overrides: Sequence[str], captures: list[int]
) -> None:
    config = model(*overrides)
    for size in (4, 8):
        captured(config, size)
    assert captures == [4, 8]


def test_a_batch_of_one_and_sizes_beyond_the_line_are_captured(captures: list[int]) -> None:
    config = model(*TINY)
    captured(config, 8)
    assert captures == [8]
    captured(config, LOW)
    high = captures[-1]
    assert captures == [8, LOW, high]
    for size in (LOW, high, 1, high + 1, 100):
        assert same(captured(config, size), capture(config, size))
    assert captures == [8, LOW, high, 1, high + 1]


def test_a_damaged_end_of_the_line_is_made_anew(captures: list[int], tmp_path: Path) -> None:
    config = model(*TINY)
    captured(config, 8)
    captured(config, 9)
    for entry in (tmp_path / "cache").rglob("*.parquet"):
        entry.write_bytes(b"PAR1")
    step_store._line.cache_clear()  # as in another process
    assert same(captured(config, 10), capture(config, 10)) and captures[-1] == 10


def step_of(forward: Any, config: Any, batch: int, device: str) -> Step:
    with torch.device(device):
        layer = nn.Linear(16, 16)
    return Step(
        [layer], [(host_empty(batch, 16),)], lambda x: forward(layer(x)).sum(), None, device, config
    )


def usual_step(config: Any, batch: int, device: str) -> Step:
    return step_of(torch.relu, config, batch, device)


def switching_step(config: Any, batch: int, device: str) -> Step:
    """Runs another operator at a single batch size, as heuristics do."""
    return step_of(
        lambda y: torch.relu(y) if y.shape[0] == 512 else torch.tanh(y), config, batch, device
    )


def squared_step(config: Any, batch: int, device: str) -> Step:
    return step_of(lambda y: (y @ y.T).view(-1), config, batch, device)


@pytest.mark.parametrize(
    "build, proven, computed",
    [
        (usual_step, True, True),
        (switching_step, False, False),
        (squared_step, True, False),
    ],
)
def test_what_depends_on_the_batch_size_otherwise_is_found(
    build: Any, proven: bool, computed: bool, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "builder", lambda name: build)
    monkeypatch.setattr("pipeline.graph.batch_line.builder", lambda name: build)
    config = {"name": "one layer", "architecture": "dlrm", "optimizer": "sgd"}
    assert same_at_any_batch(config) == proven
    captured(config, 32)
    captured(config, 33)
    del captures[:]
    assert same(captured(config, 512), capture(config, 512))
    assert captures == ([] if computed else [512])


ASK = """
import sys
from pipeline.answers.engine import engine
from pipeline.question.question import expand
found = engine().predict_one(expand(words)[0]).whole()
numbers = found.predicted_us, found.p90_us, found.memory_bytes
"""


def test_another_batch_size_loads_no_pytorch_and_predicts_what_a_capture_does(
    captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(batch: int) -> dict[str, Any]:
        return {"words": [*TINY, "predict.draws=16", f"batch_size={batch}"]}

    for batch in (2047, 2048):
        exec(ASK, asked(batch))
    code = "".join(f"words = {asked(batch)['words']}\n{ASK}\n" for batch in (2048, 3000))
    shown = python(f"{code}\nprint(numbers, 'torch' in sys.modules)").stdout
    monkeypatch.setenv("STEPTIME_CACHE", "none")
    exec(ASK, here := asked(3000))
    assert shown == f"{here['numbers']} False\n" and captures[-1] == 3000
