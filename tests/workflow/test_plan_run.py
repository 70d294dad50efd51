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

PLAN = [
    "plan=samples_per_dollar",
    "samples=1000000",
    "deadline=1h",
    "gpu=V100,T4",
    "model=dlrm_small",
    "batch_size=64,256",
    "overrides=predict.draws=64",
]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The table of a plan that Snakemake made, and what the run printed."""
    folder = tmp_path_factory.mktemp("plan")
    run = snakemake("--config", *PLAN, "--", "plan", folder=folder)
    assert run.returncode == 0, run.stderr[-3000:]
    (table,) = (folder / "results/plans").glob("*.parquet")
    return table, run.stdout


def test_a_plan_is_printed_and_again_without_a_job(planned: tuple[Path, str]) -> None:
    table, printed = planned
    assert "best samples_per_dollar: dlrm_small on T4" in printed and "best points" in printed
    again = snakemake("--config", *PLAN, folder=table.parents[2])
    assert "Nothing to be done" in again.stderr
    assert again.stdout.splitlines() == printed.splitlines(), "the table is printed again"


def test_a_plan_leaves_its_front_figure_and_run(
    planned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = planned
    assert table.name.startswith("samples_per_dollar-4-points-")
    assert "<svg" in table.with_suffix(".svg").read_text()
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
        ({"plan": "step", "samples": "many"}, "'many' is no number above 0"),
        ({"plan": "step", "samples": "10", "deadline": "soon"}, "'soon' is no time"),
        ({"plan": "step", "deadline": "1h"}, "give its --samples"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_line(
    config: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        Flow.from_config(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and said in line
