"""Predicted steps of recommendation models whose tables are spread over GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.answers.engine import engine
from pipeline.answers.sharding_plan import ShardingPlan, find_sharding
from pipeline.question.question import ask
from pipeline.question.table_plan_files import as_list
from pipeline.show.sharding import draw_sharding, write_sharding
from tests.commands import Steptime

TABLES = [
    "gpu=A100-SXM4-80GB", "model=dlrm_default", "devices=4", "batch_size=4096",
    "model.rows=[4000000,4000000,1000,1000,50,3000000]", "model.lookups=[400,1,1,2,1,150]",
    "model.tables=6", "model.bottom_mlp=[64]", "model.top_mlp=[64,1]", "predict.draws=64",
]  # fmt: skip
HYBRID = [*TABLES, "parallel=hybrid"]


@pytest.fixture(scope="module")
def found() -> ShardingPlan:
    return find_sharding(TABLES)


def test_the_fastest_plan_is_no_slower_than_any_and_near_its_bound(found: ShardingPlan) -> None:
    steps = [row["step_us"] for row in found.rows()]
    assert found.prediction.predicted_us == min(steps)
    assert 0.9 * found.prediction.predicted_us < found.bound_us <= found.prediction.predicted_us
    slower = found.over("round_robin")
    assert slower is not None and slower > 1.1


def test_its_files_give_the_same_step(found: ShardingPlan, tmp_path: Path) -> None:
    beside = write_sharding(found, tmp_path / "plan.yaml")
    for path in (tmp_path / "plan.yaml", beside):
        again = engine().predict_one(ask([*HYBRID, f"parallel.sharding={path}"]), detail=False)
        assert again.whole().predicted_us == pytest.approx(found.prediction.predicted_us, rel=1e-9)
    figure = draw_sharding(found)
    assert next(iter(figure.axes[0].get_yticklabels())).get_text().startswith("rank")


def test_the_slowest_rank_sets_the_step_and_an_answer_says_how_uneven_ranks_are() -> None:
    even, answer = (
        engine().predict_one(ask([*HYBRID, f"parallel.sharding={name}"]))
        for name in ("auto", "round_robin")
    )
    several = answer.whole().several
    assert several is not None and several.imbalance is not None and several.imbalance > 1.5
    row = answer.as_row()
    assert row["sharding"] == "round_robin" and row["imbalance"] == several.imbalance
    names = [e["args"]["name"] for e in answer.other_rank if e["name"] == "process_name"]
    assert names and all(name.startswith("rank ") for name in names)
    p = answer.whole()
    assert (
        p.p10_us < p.predicted_us < p.p90_us and p.predicted_us > 1.05 * even.whole().predicted_us
    )
    waits = [e["dur"] for e in answer.other_rank if e["ph"] == "X" and "all_to_all" in e["name"]]
    assert max(waits) > 500  # the idle rank stands in the exchange


def test_lookups_that_differ_between_batches_widen_the_interval(tmp_path: Path) -> None:
    def width(sd: int) -> float:
        rows = [{"num_embeddings": 4_000_000, "pooling_factor": 300, "pooling_factor_sd": sd}] * 4
        (tmp_path / f"{sd}.json").write_text(json.dumps(rows))
        of = ["model=dlrm_open_source", f"model.table_configs={tmp_path / f'{sd}.json'}"]
        p = engine().predict_one(ask([HYBRID[0], *of, "parallel=hybrid", "devices=4"])).whole()
        return p.p90_us / p.p10_us

    assert width(150) > 1.15 * width(0)


def test_memory_is_that_of_the_fullest_rank() -> None:
    spread = engine().predict_one(ask([*HYBRID, "parallel.sharding=by_size"]), detail=False)
    alone = [text for text in TABLES if not text.startswith("devices")]
    one = engine().predict_one(ask(alone), detail=False).whole()
    assert 4 * 64 * 4_000_000 < spread.whole().memory_bytes < one.memory_bytes


def test_the_command_prints_json_with_the_work_of_each_rank(
    steptime: Steptime, tmp_path: Path, found: ShardingPlan
) -> None:
    out = tmp_path / "plan.yaml"
    _, printed, _ = steptime("plan", "sharding", *TABLES, "--json", "--out", str(out))
    said = json.loads(printed)
    assert len(said["ranks"]) == 4 and len(said["placements"]) == 6
    assert np.isclose(said["step_us"], found.prediction.predicted_us)
    assert as_list(found.plan) == out.read_text()


def test_inference_exchanges_indices_and_rows_in_its_forward_pass() -> None:
    train, infer = (
        engine().predict_one(ask([*HYBRID, f"model.mode={mode}"]))
        for mode in ("train", "inference")
    )
    calls = infer.whole().calls
    assert calls is not None
    ops = calls.loc[calls["family"] == "collective", "op"]
    assert ops.tolist() == ["all_to_all"] * 4  # sizes, lengths and indices, and rows
    assert infer.whole().predicted_us < 0.6 * train.whole().predicted_us
    assert infer.whole().memory_bytes < train.whole().memory_bytes


def test_one_gpu_without_room_for_the_tables_is_said() -> None:
    rows = "model.rows=[100000000,100000000,100000000,100000000]"
    asked = [HYBRID[0], "model=dlrm_default", rows, "model.tables=4", "parallel=hybrid"]
    several = engine().predict_one(ask([*asked, "devices=4", "batch_size=512"])).whole().several
    assert several is not None and several.efficiency is None
    assert "no room for the tables" in several.efficiency_text
