"""Plans of embedding tables over ranks, and their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, LayoutError
from pipeline.question.placed_tables import roles
from pipeline.question.question import ask, expand
from pipeline.question.table_plan import (
    SIMPLE,
    Placement,
    TablePlan,
    Tables,
    balanced,
)
from pipeline.question.table_plan_files import as_list, as_torchrec, read_plan
from pipeline.question.table_times import Machine, part_us, small_tables

TABLES = Tables((40_000_000, 1000, 3_000_000, 12, 500_000), (1.0, 1.0, 60.0, 1.0, 5.0), 128, 1)
MACHINE = Machine(1500.0, 40e6, 60e9, 240.0)
SAMPLES, RANKS = 32_768, 4


def costs(columns: int) -> np.ndarray:
    return part_us(TABLES, SAMPLES, MACHINE, columns, 4)


def longest(plan: TablePlan) -> float:
    """Time of the longest lookups and of the largest exchange of a rank, µs."""
    loads = np.zeros((plan.ranks, 2))
    for rank, parts in enumerate(plan.parts):
        for table, columns in parts:
            loads[rank] += costs(columns)[table]
    return float(loads.max(axis=0).sum())


@pytest.mark.parametrize("name", SIMPLE)
def test_a_simple_plan_places_every_column_of_every_table_once(name: str) -> None:
    plan = SIMPLE[name](TABLES, RANKS)
    held = np.zeros(len(TABLES.rows))
    for parts in plan.parts:
        for table, columns in parts:
            held[table] += columns
    whole = [*plan.of_kind("row_wise"), *plan.of_kind("replicated")]
    assert all(held[table] == (0 if table in whole else 128) for table in range(5))


def test_a_balanced_plan_waits_less_than_simple_ones_and_keeps_to_the_memory() -> None:
    plan = balanced(TABLES, RANKS, costs, 24e9)
    others = [longest(SIMPLE[name](TABLES, RANKS)) for name in ("round_robin", "by_size")]
    assert longest(plan) < 0.7 * min(others)
    for parts in plan.parts:
        assert sum(TABLES.bytes[table] * columns / 128 for table, columns in parts) <= 24e9
    fair = costs(128).sum(axis=0) / RANKS
    assert longest(plan) < 1.25 * fair.sum()
    for placed in plan.placements:
        assert len({*placed.ranks}) == len(placed.ranks) and sum(placed.columns) == 128


def test_popular_rows_count_in_the_plan() -> None:
    def us(kind: str) -> np.ndarray:
        of = replace(TABLES, distributions=(kind,) * 5)
        return part_us(of, SAMPLES, MACHINE, 128, 4)[:, 0]

    assert us("uniform").tolist() == costs(128)[:, 0].tolist()
    skewed, hot = us("zipf:1.2"), us("bins:0.0001/0.9,0.9999/0.1")
    assert skewed[2] < 0.7 * us("uniform")[2]
    assert skewed[2] < hot[2] < us("uniform")[2]


def test_small_tables_are_on_every_rank_where_that_is_asked() -> None:
    copied = small_tables(TABLES, 4096, 4)
    assert copied == [1, 3]
    plan = balanced(TABLES, RANKS, costs, 24e9, copied)
    assert plan.of_kind("replicated") == copied


def test_tables_that_fit_nowhere_say_how_many_gpus_have_room() -> None:
    need = TABLES.bytes.sum()
    with pytest.raises(LayoutError, match=f"{int(need // 6e9) + 1} GPUs or more may have room"):
        balanced(TABLES, RANKS, costs, 6e9)
    with pytest.raises(LayoutError, match="row_wise"):  # no part of the largest table fits
        balanced(TABLES, RANKS, costs, 2e9)


@pytest.mark.parametrize("write", [as_list, lambda plan: as_torchrec(plan, TABLES)])
def test_a_plan_is_read_as_it_was_written(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = TablePlan(
        (
            Placement("column_wise", (0, 3), (64, 64)),
            Placement("replicated"),
            Placement("row_wise"),
            Placement("table_wise", (2,), (128,)),
            Placement("table_wise", (1,), (128,)),
        ),
        RANKS,
    )
    path = tmp_path / "plan.yaml"
    path.write_text(write(plan))
    assert read_plan(path, TABLES, RANKS) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "not readable"),
        ("- {table: 0, kind: table_wise, ranks: [0], columns: [128]}", r"places the tables \[0\]"),
        ("- {table: 0, kind: replicated}\n" * 5, "each once"),
        ("- {table: 0, kind: table_wise, ranks: [true]}", "Expected `int`, got `bool`"),
        ("{m: {t: {sharding_type: data_parallel, compute_kernel: fused_uvm}}}", "fused_uvm"),
        (
            "{m: {t: {sharding_type: table_wise, sharding_spec: {shards: [{shard_sizes: [9, 128],"
            " placement: 'rank:0/cuda:0'}]}}}}",
            "t has 9 rows; table 0 of the model has 40,000,000",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_plan(path, TABLES, RANKS)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("kind: table_wise, ranks: [9], columns: [128]", "ranks from 0 to 3"),
        ("kind: column_wise, ranks: [0, 1], columns: [64, 32]", "must have 128"),
        ("kind: column_wise, ranks: [0, 1], columns: [3, 125]", "multiple of 4"),
        ("kind: somewhere", "none of table_wise"),
    ],
)
def test_a_placement_that_makes_no_sense_names_its_table(
    placement: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    others = [f"- {{table: {n}, kind: replicated}}" for n in range(1, 5)]
    path.write_text("\n".join([f"- {{table: 0, {placement}}}", *others]))
    with pytest.raises(ConfigError, match=f"table 0.*{message}"):
        read_plan(path, TABLES, RANKS)


def test_a_rank_with_less_of_everything_is_not_simulated_but_for_the_last() -> None:
    work = np.array([[5.0, 5, 0], [9, 1, 0], [8, 0.9, 0], [1, 1, 0], [9, 1, 0]])
    assert roles(work) == (0, 1, 3)
    assert roles(np.ones((4, 3))) == (0,)


DLRM = ["gpu=A100-SXM4-80GB", "model=dlrm_dcnv2", "devices=8", "parallel=hybrid", "batch_size=512"]


def test_plans_of_two_gpus_have_graphs_of_their_own() -> None:
    one, other = (ask([f"gpu={gpu}", *DLRM[1:]]) for gpu in ("A100-SXM4-80GB", "A100-PCIE-40GB"))
    assert one.model_variant != other.model_variant
    assert one.workload["placed"]["plan"] != other.workload["placed"]["plan"]
    assert "placed" not in one.alone().workload


def test_too_few_gpus_are_left_out_of_a_sweep_and_refused_alone() -> None:
    few = [text for text in DLRM if not text.startswith("devices")]
    questions = expand([*few, "devices=2,8"])
    assert [q.devices for q in questions] == [8] and "left out" in questions[0].notes[0]
    with pytest.raises(LayoutError, match="may have room"):
        ask([*few, "devices=2"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=resnet50"], "no embedding tables"),
        (["model=dlrm_default", "model.embedding=sparse"], "model.embedding=fused"),
        (["model=dlrm_default", "parallel.sharding=nowhere.yaml"], "no such file"),
    ],
)
def test_what_cannot_be_spread_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(["gpu=A100", "devices=8", "parallel=hybrid", *overrides])
