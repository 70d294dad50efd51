"""Captured graphs that are kept between runs: when they are reused, and what happens when the cache cannot be used."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

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


@pytest.fixture(autouse=True)
def no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch size is captured (`test_batch_line.py` tests what is computed instead)."""
    monkeypatch.setattr(step_store, "_may_have_line", lambda config: False)


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
    assert (again.memory, again.device, again.model, again.batch_size) == (
        first.memory,
        first.device,
        first.model,
        first.batch_size,
    )
    captured(model(), 16)
    captured(model("model.optimizer=adam"), 8)
    assert captures == [8, 16, 8]


def test_calls_are_kept_for_each_kind_of_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = expand([*TINY, "model.dtype=tf32", "batch_size=8", "gpu=V100,A100-PCIE-40GB,T4"])
    tables = {question.gpu.name: StepStore().calls(question) for question in questions}
    assert len(entries(folder)) == 4
    never(monkeypatch, "map_calls")
    for question in questions:
        same(StepStore().calls(question), tables[question.gpu.name])
    assert "tf32" in set(tables["A100-PCIE-40GB"]["dtype"]) and "tf32" not in set(
        tables["T4"]["dtype"]
    )


def test_calls_of_gpus_that_launch_the_same_are_kept_and_made_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = expand([*TINY, "batch_size=8", "gpu=A10,RTX3090,L4"])
    for asked in (questions, questions[::-1]):  # second: first a GPU whose entry names another
        store = StepStore()
        assert (
            len({id(store.calls(question)) for question in asked}) == 1
            and len(entries(folder)) == 2
        )
        never(monkeypatch, "map_calls")


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
    zoo = [graph_key(model(), 8)]
    monkeypatch.setattr(step_store, "_version", lambda package: "another")
    zoo.append(graph_key(model(), 8))
    assert len({*keys, *zoo}) == 6


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet at all" * 100, None])
def test_a_damaged_entry_is_made_anew(
    folder: Path, captures: list[int], damage: bytes | None
) -> None:
    whole = captured(model(), 8)
    (entry,) = entries(folder)
    entry.write_bytes(entry.read_bytes()[:-9] if damage is None else damage)
    same(captured(model(), 8).table, whole.table)
    same(captured(model(), 8).table, whole.table)
    assert captures == [8, 8]


@pytest.mark.parametrize("value", ["none", ""])
def test_the_cache_can_be_switched_off(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    captured(model(), 8)
    captured(model(), 8)
    assert captures == [8, 8] and not entries(tmp_path)


@pytest.mark.parametrize(
    "place", ["file/cache", "/proc/steptime"]
)  # root may write to a read-only folder, not there
def test_a_cache_that_cannot_be_written_warns_once_and_answers(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / place))
    with pytest.warns(SteptimeWarning, match=r"cannot be written .*set \$STEPTIME_CACHE") as said:
        steps, (question,) = StepStore(), expand([*TINY, "batch_size=8"])
        graph = steps.graph(question)
        steps.calls(question)
        captured(model(), 16)
    assert len([each for each in said if each.category is SteptimeWarning]) == 1 and captures == [
        8,
        16,
    ]
    monkeypatch.setenv("STEPTIME_CACHE", "none")
    same(graph.table, captured(model(), 8).table)


def test_entries_of_a_folder_that_cannot_be_written_are_still_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    whole = captured(model(), 8)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)
    same(captured(model(), 8).table, whole.table)
    assert captures == [8]


def test_a_full_disk_warns_once_and_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {batch: capture(model(), batch) for batch in (8, 16)}
    monkeypatch.setattr(
        step_store,
        "capture",
        lambda config, batch: graphs[batch],
    )
    with full_disk(100), pytest.warns(SteptimeWarning, match="cannot be written") as said:
        for batch, graph in graphs.items():
            same(captured(model(), batch).table, graph.table)
            assert len(StepStore().calls(expand([*TINY, f"batch_size={batch}"])[0])) > 10
    assert len(said) == 1 and not [path for path in folder.rglob("*") if path.is_file()]


def test_what_killed_processes_left_counts_for_the_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(model(), 8)
    left = entries(folder)[0].with_name(".an-entry.parquet.1234.part")
    left.write_bytes(b"x" * 1_000_000)
    os.utime(left, (1000, 1000))
    monkeypatch.setattr(user_cache, "MAX_BYTES", 500_000)
    monkeypatch.setattr(user_cache, "LISTED", "")
    captured(model(), 16)
    assert not left.exists() and len(entries(folder)) == 2


def test_the_entries_that_were_not_used_for_longest_give_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in (8, 16, 32):
        captured(model(), batch)
    for age, entry in enumerate(sorted(entries(folder), key=lambda path: path.stat().st_mtime)):
        os.utime(entry, (1000 + age, 1000 + age))
    size = sum(entry.stat().st_size for entry in entries(folder))
    captured(model(), 8)  # now the newest
    monkeypatch.setattr(user_cache, "MAX_BYTES", size)
    monkeypatch.setattr(user_cache, "LISTED", "")
    captured(model(), 64)
    never(monkeypatch, "capture")
    captured(model(), 8)
    captured(model(), 64)
    assert sum(entry.stat().st_size for entry in entries(folder)) <= 0.8 * size


def test_a_question_that_was_asked_before_loads_no_pytorch(folder: Path) -> None:
    point = [*TINY, "predict.draws=16"]
    source = (
        "import sys; from pipeline.answers.engine import engine; from pipeline.question.question"
        f" import expand; print(engine().predict_one(expand({point!r})[0]).whole().predicted_us,"
        " 'torch' in sys.modules)"
    )
    first, again = (
        subprocess.check_output([sys.executable, "-c", source], text=True).split() for _ in range(2)
    )
    assert first == [again[0], "True"] and again[1] == "False"


def test_processes_that_ask_at_once_agree(folder: Path) -> None:
    source = (
        "from pipeline.graph.step_store import captured; from pipeline.question.question import"
        f" expand; print(hash(captured(expand({TINY!r})[0].section('model'), 8).table.to_csv()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", source]
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    found = {process.communicate()[0] for process in running}
    assert all(process.returncode == 0 for process in running) and len(found) == 1
    left = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".parquet", ".json")
    ]
    assert len(entries(folder)) == 3 and not left  # a graph, and those at the ends of its line


def test_a_flipped_bit_of_the_cache_changes_no_prediction(folder: Path) -> None:
    """A damaged entry is made anew: graphs, calls, overheads and composed files."""
    [question] = expand([*TINY, "gpu=V100", "batch_size=8", "predict.draws=16"])
    expected = engine().predict_one(question).whole().predicted_us
    rng = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for _ in range(3):
            place = rng.randrange(len(whole))
            path.write_bytes(
                whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]
            )
            compose.forget()
            who_answers._kept_statistics.cache_clear()
            [again] = expand([*TINY, "gpu=V100", "batch_size=8", "predict.draws=16"])
            assert Engine(steps=StepStore()).predict_one(
                again
            ).whole().predicted_us == pytest.approx(expected), f"{path.name}, byte {place}"
