"""Faults of a GPU or its profiler lose one figure, not the campaign; run on a CPU that emulates a GPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.collect import campaign, campaign_calls, campaign_steps
from pipeline.collect import microbenchmarks as kernels
from pipeline.collect.campaign_folder import CampaignFolder, check
from pipeline.collect.campaign_grid import plans
from pipeline.collect.case_timing import Cache
from pipeline.collect.cases import Case, Spec
from pipeline.collect.unit_runner import Campaign
from pipeline.errors import InputError, TraceError
from pipeline.measured import campaign_reader as reader
from tests.collect.pretend_cuda import pretend

CUDA = torch.device("cuda")
TINY = ["--tiny", "--device", "cuda", "--minutes", "2"]
PRODUCT = {"B": 1, "M": 8, "N": 8, "K": 8}


def measured(specs: list[Spec], seconds: float = 300.0) -> pd.DataFrame:
    """Samples of calls on the pretended GPU; on a busy machine they take minutes."""
    return kernels.measure_specs(
        specs, CUDA, seconds, cache=Cache.WARM, seed=0, gpu="x", campaign_id="x", source="x"
    )


def products(count: int) -> list[Spec]:
    """Different products of three kernels each, and softmax gradients, of which one kernel counts."""
    both = (("gemm", "mm", "forward"), ("softmax", "softmax", "backward"))
    return [
        Spec(family, op, phase, "fp32", PRODUCT | {"M": 8 + n, "H": 8 + n})
        for n in range(count)
        for family, op, phase in both
    ]


def small_campaign(folder: Path) -> tuple[Campaign, Any]:
    """A campaign, and the plan of a DLRM step that a CPU can run."""
    plan = next(p for p in plans(tiny=True) if p.model == "dlrm_ddp")
    opened = CampaignFolder(folder, {"gpu": "H200"})
    return Campaign(opened, CUDA, "H200", time.monotonic() + 1800, tiny=True), replace(
        plan, iterations=2
    )


def test_kernels_that_a_session_loses_at_its_head_are_nobodys() -> None:
    """CUPTI 12.9 loses n kernels in its n-th session: with 25 times as many the spare ones do not suffice at once."""
    with pretend(drops=25):
        found = measured(products(40))
    assert len(found) > 40
    assert (found["kernels"] == found["family"].map({"gemm": 3, "softmax": 1})).all()


def test_a_campaign_runs_whose_profiler_loses_kernels(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pretend(drops=2):
        assert campaign.main([*TINY, "--out", str(out), "--only", "dlrm_ddp|peaks/products"]) == 0
    assert check(out) == []
    facts = [json.loads(text) for text in reader.read_step_times(out)["config"]]
    assert [fact["kernels_lost"] for fact in facts] == [0, 0]
    profiler = json.loads((out / "manifest.json").read_text())["runs"][0]["profiler"]
    assert profiler["sessions"] > 5
    assert profiler["lost"] == 0
    assert len(reader.read_peaks_of(out)) == 8


def test_a_step_is_profiled_again_while_kernels_are_missing(tmp_path: Path) -> None:
    work, plan = small_campaign(tmp_path / "run")
    with pretend(drops=150) as gpu:  # more than the spare kernels of the first session
        campaign_steps.time_step(work, plan)
        campaign_steps.measure_step(work, plan)
        sessions = gpu.sessions
    facts = json.loads(work.folder.tables["step_times.parquet"].iloc[0]["config"])
    assert (sessions > 2, facts["kernels_lost"]) == (True, 0)


def test_a_step_that_cannot_be_profiled_keeps_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise TraceError("kineto.json: not a profiler trace (Expecting value)")

    monkeypatch.setattr(campaign_steps, "profile_steps", refuse)
    work, plan = small_campaign(tmp_path / "run")
    with pretend():
        campaign_steps.time_step(work, plan)
        assert work.run(plan.unit, 0, lambda: campaign_steps.measure_step(work, plan))
    unit = work.folder.units[plan.unit]
    assert (unit["status"], unit["trace"]) == ("done", None)
    assert "not a profiler trace" in unit["note"]
    row = work.folder.tables["step_times.parquet"].iloc[0]
    assert row["p10_us"] <= row["step_us"] <= row["p90_us"] and row["count"] >= 2
    assert "not a profiler trace" in json.loads(row["config"])["note"]
    assert check(work.folder.path) == []


def test_calls_in_a_file_are_not_looked_up_and_those_that_cannot_be_found_cost_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(plan: Any) -> list[Spec]:
        if plan.model == "gnmt":
            raise InputError("model gnmt needs something")
        return [
            Spec("gemm", "mm", "forward", "fp32", {**PRODUCT, "M": plan.batch_size}, {"rows": [3]})
        ] * 2

    monkeypatch.setattr(campaign_calls, "calls_of_plan", capture)
    file = tmp_path / "calls.json"
    assert campaign_calls.main([str(file)]) == 0
    calls = campaign_calls.read_calls(file)
    assert len(calls) == sum(
        p.overrides.get("dtype") is None and p.model != "gnmt" for p in plans()
    )
    monkeypatch.setattr(campaign_calls, "calls_of_plan", lambda plan: 1 / 0)
    work, _ = small_campaign(tmp_path / "run")
    found = campaign_calls.workload_calls(replace(work, tiny=False, calls=calls))
    missing = work.folder.manifest["calls_not_known"]
    assert missing and all("gnmt" in unit for unit in missing)
    assert {said.partition(":")[0] for said in missing.values()} == {"ZeroDivisionError"}
    assert [spec.dims["M"] for spec in found[:2]] == [2048, 32]
    assert {spec.key for spec in found} == {spec.key for specs in calls.values() for spec in specs}


@pytest.mark.parametrize("text", [None, '{"steps/a": [{"family": "gemm"}]}'])
def test_a_file_without_calls_is_said_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calls.json"
    if text is not None:
        file.write_text(text)
    with pretend():
        assert campaign.main([*TINY, "--out", str(tmp_path / "run"), "--calls", str(file)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert "pipeline.collect.campaign_calls" in said
    assert said.count("\n") == 1


def test_a_call_that_cannot_be_made_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.build_case

    def build(spec: Spec, make: Any) -> Case:
        if spec.op == "softmax":
            raise KeyError("hidden")
        return real(spec, make)

    monkeypatch.setattr(kernels, "build_case", build)
    with pretend():
        found = measured(products(2))
    assert list(found["family"]) == ["gemm", "gemm"]
    assert list(found.attrs["unmeasured"].values()) == [2]
