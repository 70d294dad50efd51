"""The campaign's CUDA branches, run on a CPU that pretends to be a GPU; no figure here means anything."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.collect import campaign
from pipeline.collect.campaign_folder import CampaignFolder, check
from pipeline.collect.campaign_grid import load_model, plans
from pipeline.collect.campaign_steps import cap_tables, measure_step, time_step
from pipeline.collect.cases import BUILDERS
from pipeline.collect.device import set_tf32
from pipeline.collect.device_facts import gpu_state
from pipeline.collect.unit_runner import Campaign
from pipeline.measured import campaign_reader as reader
from pipeline.overheads.trace_overheads import extract_campaign
from pipeline.schemas import read_table
from pipeline.trace.load import load_trace
from tests.collect.pretend_cuda import PretendedGpu, pretend

ROOT = Path(__file__).parents[2]
CUDA = torch.device("cuda")
TINY = ["--tiny", "--device", "cuda", "--minutes", "30"]


def run(out: Path, *arguments: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and manifest of a small campaign on the pretended GPU."""
    with pretend(**options):
        code = campaign.main([*TINY, "--out", str(out), *arguments])
    return code, json.loads((out / "manifest.json").read_text())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Peaks, host costs, steps with traces, and two rounds of kernels."""
    out = tmp_path_factory.mktemp("gpu") / "H200"
    code, manifest = run(out, "--only", "peaks|dlrm_default.*b16|gnmt|kernels", busy="[N/A]")
    assert code == 0
    assert {unit["status"] for unit in manifest["units"].values()} == {"done"}
    return out


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretend() as found:
        yield found


def test_every_part_of_a_campaign_runs_on_cuda(measured: Path) -> None:
    assert check(measured) == []
    manifest = json.loads((measured / "manifest.json").read_text())
    assert (manifest["device"]["gpu"], manifest["device"]["capability"]) == ("H200", "9.0")
    assert manifest["runs"][0]["preflight"]["state"]["clocks.sm"] == "1980"
    peaks = reader.read_peaks_of(measured)
    names = "gemm_bf16 gemm_tf32 warm_triad copy_h2d_pinned copy_d2h_pinned profiler_event_us"
    assert set(names.split()) <= set(peaks.loc[peaks["value"] >= 0, "name"])
    assert {"fp32_gflop_per_s", "pcie_gb_per_s"} <= set(reader.measured_peaks(measured))
    for file in measured.glob("*.[jp]*"):  # what is shared names no folder of this machine
        assert str(measured.parent).encode() not in file.read_bytes()


def test_samples_hold_device_time_and_launch_geometry(measured: Path) -> None:
    samples = reader.read_samples(measured)
    assert len(set(samples["family"]) & set(BUILDERS)) > 20
    kernels = samples[samples["grid"].notna()]
    assert len(kernels) > 20
    assert (kernels["registers"] == 32).all()
    assert (samples["kernels"] >= 1).all()
    assert json.loads(kernels["grid"].iloc[0]) == [132, 1, 1]
    assert (samples["kernel_us"] != samples["latency_us"]).any()


def test_steps_are_timed_by_events_beside_the_host_with_the_gpus_state(measured: Path) -> None:
    rows = read_table(measured / "step_times.parquet", "step_times")
    assert (rows["device_us"] == rows["step_us"]).all()
    assert (rows["p10_us"] <= rows["step_us"]).all() and (rows["step_us"] <= rows["p90_us"]).all()
    assert (rows["host_us"] > 100).all(), "a step of dozens of operators"
    assert (rows["memory_bytes"] == 123 << 20).all()
    facts = json.loads(rows["config"].iloc[0])
    assert facts["state"]["temperature.gpu"] == "31"
    assert facts["profiled_kernel_us"] > 0


def test_traces_give_overheads_of_every_type(measured: Path, tmp_path: Path) -> None:
    members = list(reader.read_traces(measured))
    assert {member.model for member in members} == {"dlrm_default", "gnmt"}
    trace = load_trace(members[0].extract(tmp_path)[0])
    assert trace.device == "NVIDIA H200"
    assert len(trace.iterations) == 2
    observations = extract_campaign(measured)
    assert {"T1", "T2", "T3", "T4", "T5"} <= set(observations["type"])
    assert np.isfinite(observations["value_us"]).all()


@pytest.mark.parametrize("dtype", ["tf32", "bf16"])
def test_a_step_runs_in_another_precision(dtype: str, tmp_path: Path, gpu: PretendedGpu) -> None:
    plan = next(p for p in plans() if p.model == "gnmt" and p.overrides.get("dtype") == dtype)
    small = {"width": 16, "vocabulary": 100, "seq_len": 4, "dtype": dtype}
    seen: set[tuple[bool, bool, str]] = set()

    def look(func: Any, args: Any) -> None:
        if func is torch.nn.functional.linear:
            matmul = torch.backends.cuda.matmul
            seen.add((matmul.allow_tf32, torch.backends.cudnn.allow_tf32, matmul.fp32_precision))

    gpu.fault = look
    folder = CampaignFolder(tmp_path / "run", {"gpu": "H200"})
    work = Campaign(folder, CUDA, "H200", time.monotonic() + 1800, tiny=True)
    with torch.backends.mkldnn.flags(
        enabled=False
    ):  # oneDNN's LSTM in bf16 needs AVX-512; PyTorch's own runs anywhere
        plan = replace(plan, overrides=small, batch_size=2, iterations=2)
        time_step(work, plan)
        measure_step(work, plan)
    on = dtype == "tf32"
    assert seen == {(on, on, "tf32" if on else "ieee")}
    row = folder.tables["step_times.parquet"].iloc[0]
    assert row["variant"] == f"dtype-{dtype}"
    assert json.loads(row["config"])["config"]["dtype"] == dtype
    set_tf32("fp32")


def test_tf32_is_switched_where_torch_has_only_the_old_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matmul, cudnn = type("Matmul", (), {"__slots__": ("allow_tf32",)})(), SimpleNamespace()
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends.cuda, "matmul", matmul)
        patched.setattr(torch.backends, "cudnn", cudnn)
        set_tf32("tf32")
    assert matmul.allow_tf32 and cudnn.allow_tf32


def test_tf32_stays_readable_after_somebody_mixed_the_names() -> None:
    backends = torch.backends
    backends.cuda.matmul.fp32_precision = (
        "tf32"  # alone, this makes torch refuse to say what allow_tf32 is
    )
    backends.cudnn.fp32_precision = "tf32"
    try:
        set_tf32("fp32")
        assert not backends.cuda.matmul.allow_tf32
        assert not backends.cudnn.allow_tf32
        assert (backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision) == (
            "ieee",
            "ieee",
        )
    finally:
        backends.cudnn.fp32_precision = "none"


def test_a_step_that_fails_is_said_and_the_next_one_runs(tmp_path: Path) -> None:
    errors = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"),
        RuntimeError("could not create a primitive descriptor for the LSTM primitive. Run with"),
    ]
    left = [*errors]

    def fail(func: Any, args: Any) -> None:
        if func is torch.bmm and left:
            raise left.pop(0)

    code, manifest = run(tmp_path / "run", "--parts", "steps", "--only", "dlrm_d", fault=fail)
    assert code == 0
    *failed, last = manifest["units"].values()
    assert [unit["status"] for unit in failed] == ["out_of_memory", "error", "skipped"]
    for unit, error in zip(failed, errors, strict=True):
        assert str(error).partition(". ")[0] in unit["error"]
    assert last["status"] == "done"


def test_a_kernel_without_memory_costs_no_other_kernel(tmp_path: Path) -> None:
    calls: dict[Any, int] = {}

    def short(func: Any, args: Any) -> None:
        if func is torch.addmm:  # its warm-up fits, the measurement does not
            calls[func] = calls.get(func, 0) + 1
            if calls[func] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    only = ["--parts", "kernels", "--only", "kernels/(gemm|softmax|concat)"]
    code, manifest = run(tmp_path / "run", *only, fault=short)
    assert code == 0
    assert "gemm linear: out of memory" in manifest["unmeasured"]
    assert {"gemm", "softmax", "concat"} == set(reader.read_samples(tmp_path / "run")["family"])


def test_tables_lose_rows_on_a_small_gpu(gpu: PretendedGpu) -> None:
    whole = load_model("dlrm_mlperf")
    assert cap_tables(whole, CUDA) == (whole, None)
    gpu.free_bytes = 14 << 30
    config, cap = cap_tables(whole, CUDA)
    assert cap is not None
    assert 4 * config["dim"] * sum(config["rows"]) < 7 << 30


@pytest.mark.parametrize("part", ["steps", "kernels"])
def test_a_lost_device_ends_the_run_and_keeps_what_was_measured(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    only = ["--parts", f"peaks,{part}", "--only", "peaks/plain|dlrm_ddp|kernels/gemm"]
    with pretend() as gpu:

        def lose(func: Any, args: Any) -> None:
            gpu.lost = gpu.lost or func in (torch.bmm, torch.addmm)

        gpu.fault = lose
        assert campaign.main([*TINY, "--out", str(out), *only]) == 4
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "device lost" in told
    assert check(out) == []
    assert len(reader.read_peaks_of(out)) == 1


def test_a_profiler_without_rights_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, manifest = run(tmp_path / "run", "--only", "peaks|dlrm_ddp", kernels=False)
    assert code == 3
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "NVreg_RestrictProfilingToAdminUsers" in told[0]
    assert all(name == "peaks/plain" or name.endswith("/times") for name in manifest["units"])
    assert manifest["runs"][0]["status"].startswith("preflight failed")


def test_a_shared_gpu_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, manifest = run(tmp_path / "run", "--only", "nothing", jitter=5.0, busy="80")
    assert code == 0
    said = capsys.readouterr().err
    assert "varies by" in said
    assert "the GPU was 80 % busy" in said
    assert len(manifest["runs"][0]["preflight"]["warnings"]) == 2


@pytest.mark.parametrize("smi", ["short", "missing"])
def test_a_driver_that_keeps_its_counsel_is_no_obstacle(smi: str, tmp_path: Path) -> None:
    code, manifest = run(tmp_path / "run", "--only", "nothing", smi=smi)
    assert (code, manifest["units"]) == (0, {})
    state = manifest["runs"][0]["preflight"]["state"]
    assert state["temperature.gpu"] == "31" if smi != "missing" else "error" in state


def test_the_gpu_that_cuda_was_told_to_use_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "x\n", "")

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8d0c,1")
    gpu_state()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpu_state()
    assert [command[-1] for command in asked] == ["--id=GPU-8d0c", "--id=0"]
