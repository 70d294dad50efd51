"""A plan by Snakemake: its table and figure, and what is refused before any job starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.answers.plan import plan
from pipeline.flow import Flow
from pipeline.question.question import expand
from pipeline.schemas import read_provenance, read_table
from tests.workflow.test_main_job import snakemake

SPACE = {
    "gpu": "V100,T4",
    "model": "dlrm_small",
    "batch_size": "64,256",
    "overrides": "predict.draws=64",
}


def test_a_plan_leaves_its_front_figure_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = [f"{key}={value}" for key, value in SPACE.items()]
    run = snakemake(
        "--config",
        "plan=samples_per_dollar",
        "samples=1000000",
        "deadline=1h",
        *config,
        "--",
        "plan",
        folder=tmp_path,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "best samples_per_dollar: dlrm_small on T4" in run.stdout
    again = snakemake(
        "--config",
        "plan=samples_per_dollar",
        "samples=1000000",
        "deadline=1h",
        *config,
        folder=tmp_path,
    )
    assert "Nothing to be done" in again.stderr and "best points" in again.stdout
    assert again.stdout.splitlines() == run.stdout.splitlines(), "the table is printed again"
    (table,) = (tmp_path / "results/plans").glob("*.parquet")
    assert (
        table.name.startswith("samples_per_dollar-4-points-")
        and "<svg" in table.with_suffix(".svg").read_text()
    )

    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    same = plan(
        "samples_per_dollar",
        "V100,T4",
        "dlrm_small",
        samples=1_000_000,
        batch_size="64,256",
        deadline_s=3600.0,
        predict__draws=64,
    )
    rows = read_table(table, "plan").sort_values("rank")
    assert rows["gpu"].tolist() == [choice.question.gpu.name for choice in same.contenders]
    assert rows["samples_per_dollar"].iloc[0] == pytest.approx(1 / same.best.cost_per_sample)
    assert rows["on_front"].sum() == len(same.front) and read_provenance(table)["steptime"]
    assert json.loads(table.with_suffix(".json").read_text())["best"]["gpu"] == "T4"


def test_a_plan_has_no_jobs_for_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    sizes = ",".join(map(str, range(8, 808, 8)))
    flow = Flow.from_config(
        {"plan": "step", "gpu": "V100,T4", "model": "dlrm_small", "batch_size": sizes}
    )
    assert len(flow.points) == 200
    other = Flow.from_config(
        {"plan": "step", "global_batch": "64", "gpu": "V100,T4", "batch_size": sizes}
    )
    assert (
        flow.plan_files.startswith("results/plans/step-200-points-")
        and flow.plan_files != other.plan_files
    )
    assert flow.overheads_of_plan(None) == ["results/V100/overheads.parquet"], (
        "both have a usual host of their years"
    )


def test_a_plan_is_the_same_in_any_order_of_its_space() -> None:
    one = Flow.from_config(
        {
            "plan": "step",
            "gpu": "V100,T4",
            "batch_size": "64,8",
            "overrides": "model.dtype=bf16,fp16",
        }
    )
    other = Flow.from_config(
        {
            "overrides": "model.dtype=fp16,bf16",
            "plan": "step",
            "batch_size": "8,64",
            "gpu": "T4,V100",
        }
    )
    assert (one.plan_files, one.space) == (other.plan_files, other.space)
    assert {point.title for point in expand(one.space)} == {point.title for point in one.points}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"plan": "fastest"}, "unknown objective 'fastest': choose one of step"),
        ({"budget": "20"}, "budget=...: this constrains a plan: give plan=OBJECTIVE too"),
        ({"plan": "step", "samples": "many"}, "samples=many: give a number"),
        ({"plan": "step", "samples": "10", "deadline": "soon"}, "'soon' is no time"),
        ({"plan": "step", "deadline": "1h"}, "give its --samples"),
        ({"plan": "step", "gpu": "local"}, "name GPUs instead of gpu=local"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_line(
    config: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        Flow.from_config(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and said in line
