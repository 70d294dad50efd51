"""Captured graphs that are kept between runs: when they are reused, and what happens when the cache cannot be used."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch.distributed as dist

from pipeline import user_cache
from pipeline.answers import who_answers
from pipeline.answers.engine import Engine, engine
from pipeline.errors import SteptimeWarning
from pipeline.graph import step_store
from pipeline.graph.capture import capture
from pipeline.graph.step_store import StepStore, captured, graph_key
from pipeline.question import compose
from pipeline.question.question import expand
from pipeline.schemas import to_arrow
from tests.commands import full_disk
from tests.graph.real_processes import run_real

pytestmark = pytest.mark.usefixtures("no_line")
TINY = [
    "model=dlrm_small", "model.tables=2", "model.rows=100", "model.bottom_mlp=[4,8]", "model.dim=8",
    "model.top_mlp=[4,1]",
]  # fmt: skip


def model(*overrides: str) -> dict[str, Any]:
    """The `model` section of a small step."""
    return expand([*TINY, *overrides])[0].section("model")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes of the steps that were captured."""
    done: list[int] = []
    usual = step_store.capture
    monkeypatch.setattr(
        step_store, "capture", lambda config, batch: done.append(batch) or usual(config, batch)
    )
    return done


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal values by their schema; a stored table may have other dtypes of integers and texts."""
    schema = "calls" if "call" in one else "graph"
    assert to_arrow(one, schema).equals(to_arrow(other, schema))


def never(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What must not be done again."""
    monkeypatch.setattr(step_store, name, lambda *_: pytest.fail(f"{name} again"))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def test_a_graph_is_captured_once_and_read_back_as_it_was(
    folder: Path, captures: list[int]
) -> None:
    first, again = captured(model(), 8), captured(model(), 8)
    assert captures == [8] and len(entries(folder)) == 1
    same(again.table, first.table)
    assert replace(again, table=first.table) == first
    captured(model(), 16)
    captured(model("model.optimizer=adam"), 8)
    assert captures == [8, 16, 8]


def test_calls_are_kept_for_each_kind_of_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = expand([*TINY, "model.dtype=tf32", "batch_size=8", "gpu=V100,A100-PCIE-40GB"])
    tables = [StepStore().calls(question) for question in questions]
    assert len(entries(folder)) == 3
    never(monkeypatch, "map_calls")
    for question, table in zip(questions, tables, strict=True):
        same(StepStore().calls(question), table)
    assert ["tf32" in set(table["dtype"]) for table in tables] == [False, True]


def test_the_key_follows_what_a_graph_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import parts\n")
    Path("parts.py").write_text("WIDTH = 3\n")
    own = expand(["model=custom", "model.target=mine:make_step"])[0].section("model")
    keys = [graph_key(own, 8), graph_key(own, 16), graph_key({**own, "seq_len": 3}, 8)]
    Path("parts.py").write_text("WIDTH = 4\n")
    keys.append(graph_key(own, 8))
    step_store._version.cache_clear()
    keys.append(graph_key(model(), 8))
    monkeypatch.setattr(step_store, "_version", lambda package: "another")
    keys.append(graph_key(model(), 8))
    assert len(set(keys)) == 6


def test_the_cache_can_be_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    captured(model(), 8)
    captured(model(), 8)
    assert captures == [8, 8] and not entries(tmp_path)


def test_a_full_disk_warns_once_and_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {batch: capture(model(), batch) for batch in (8, 16)}
    monkeypatch.setattr(step_store, "capture", lambda config, batch: graphs[batch])
    with (
        full_disk(100),
        pytest.warns(SteptimeWarning, match=r"cannot be written .*set \$STEPTIME_CACHE") as said,
    ):
        for batch, graph in graphs.items():
            same(captured(model(), batch).table, graph.table)
            assert len(StepStore().calls(expand([*TINY, f"batch_size={batch}"])[0])) > 10
    assert len(said) == 1 and not [path for path in folder.rglob("*") if path.is_file()]


def test_the_entries_that_were_not_used_for_longest_give_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in (8, 16, 32):
        captured(model(), batch)
    found = sorted(entries(folder), key=lambda path: path.stat().st_mtime)
    left = found[0].with_name(".an-entry.parquet.1234.part")  # by a process that was killed
    left.write_bytes(b"x" * 1000)
    for age, entry in enumerate([left, *found]):
        os.utime(entry, (1000 + age, 1000 + age))
    size = sum(entry.stat().st_size for entry in found)
    captured(model(), 8)  # now the newest
    monkeypatch.setattr(user_cache, "MAX_BYTES", size)
    monkeypatch.setattr(user_cache, "LISTED", "")
    captured(model(), 64)
    never(monkeypatch, "capture")
    captured(model(), 8)
    captured(model(), 64)
    assert sum(entry.stat().st_size for entry in entries(folder)) <= 0.8 * size
    assert not left.exists()


def test_processes_that_ask_at_once_agree(folder: Path) -> None:
    def ask(rank: int) -> bool:
        texts = ["", ""]
        dist.all_gather_object(texts, captured(model(), 8).table.to_csv())
        return texts[0] == texts[1] != ""

    assert run_real(ask)
    suffixes = [path.suffix for path in folder.rglob("*") if path.is_file()]
    assert suffixes.count(".parquet") == 1 and set(suffixes) <= {".parquet", ".json"}


def test_a_flipped_bit_of_the_cache_changes_no_prediction(folder: Path) -> None:
    """A damaged entry is made anew: graphs, calls, overheads and composed files."""
    words = [*TINY, "gpu=V100", "batch_size=8", "predict.draws=16"]
    expected = engine().predict_one(expand(words)[0]).whole().predicted_us
    rng = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for _ in range(2):
            damaged = bytearray(whole)
            damaged[place := rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            compose.forget()
            who_answers._kept_statistics.cache_clear()
            again = Engine(steps=StepStore()).predict_one(expand(words)[0]).whole()
            assert again.predicted_us == pytest.approx(expected), f"{path.name}, byte {place}"
