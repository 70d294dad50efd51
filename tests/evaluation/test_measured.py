"""The table of measured GPUs: which grids a campaign asks for, and what the table says of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks import error_parts as parts
from evaluation.pages import measured_campaigns as measured
from pipeline.question.compose import from_snakemake
from pipeline.question.question import expand
from pipeline.schemas import write_table

ROOT = Path(__file__).parents[2]
MANIFEST = {"schema": 2, "units": {}, "device": {"gpu": "H200"}}


def _step(model: str, variant: str, batch: int, config: str = "{}") -> dict[str, object]:
    times = dict.fromkeys(("step_us", "p10_us", "p90_us"), 1e3) | {"count": 9, "source": "x"}
    key = {"gpu": "H200", "model": model, "variant": variant, "batch_size": batch}
    return {**key, **times, "config": config}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "H200"
    place.mkdir()
    (place / "manifest.json").write_text(json.dumps(MANIFEST))
    joint = "embedding-joint_sparse"
    rows = [_step(f"dlrm_{name}", joint, b) for name in ("default", "ddp") for b in (2048, 512)]
    rows += [
        _step("dlrm_ddp", f"dtype-tf32_{joint}", 512),
        _step("bert_large", "optimizer-none", 2),
        _step("resnet50", "default", 32),
        _step("a_model_of_yours", "default", 1),
    ]
    write_table(pd.DataFrame(rows), place / "step_times.parquet", "step_times", {})
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(tmp_path))
    return place


def test_models_with_the_same_options_and_batches_share_a_grid_of_points_that_ran(
    folder: Path,
) -> None:
    found = measured.grids("H200", folder)
    assert [(grid.models, grid.batches) for grid in found] == [
        (("dlrm_default", "dlrm_ddp"), (512, 2048)),
        (("bert_large",), (2,)),
        (("resnet50",), (32,)),
    ]
    configs = [grid.config("r") for grid in found]
    named = {
        (p.model, p.model_variant, p.batch_size)
        for config in configs
        for p in expand(from_snakemake({k: v for k, v in config.items() if k != "results"}))
    }
    assert ("dlrm_ddp", "embedding-joint_sparse", 512) in named
    assert ("bert_large", "optimizer-none", 2) in named and len(named) == 6


def test_the_table_holds_each_part_and_its_geometric_mean() -> None:
    """Invented times: errors of 10 and 5 % where everything is known, 20 % where nothing was traced."""
    known = ((parts.ACTIVE, 1100, 1000), (parts.OWN_OVERHEADS, 1900, 2000))
    rows = [("resnet50", 32, *part) for part in (*known, (parts.KERNEL_SUM, 1000, 2000))]
    rows.append(("dcgan", 64, parts.OWN_OVERHEADS, 2400, 2000))
    columns = ["model", "batch_size", "part", "predicted_us", "measured_us"]
    found = pd.DataFrame(rows, columns=columns).assign(variant="default")
    kernels = pd.DataFrame({"family": ["gemm", "bmm"], "gmae": [0.021, 0.03]})
    kernels = kernels.assign(samples=[60, 11])
    facts = {"torch": "2.11.0", "cuda": None}
    warnings = measured.warnings_of({"runs": [{}, {"preflight": {"warnings": ["varies by 27 %"]}}]})
    text = measured.block("H200", found, kernels, facts, warnings)
    assert "(torch 2.11.0), PyTorch's default precision" in text
    for line in (
        "| resnet50 | 32 | 1.00 | 2.00 | 1.10 | 1.90 |  | +10.0 |  | -5.0 |  |  | -50.0 |",
        "| dcgan | 64 |  | 2.00 |  | 2.40 |  |  |  | +20.0 |  |  |  |",
        "| GMAE (%), all steps |  |  |  |  |  |  | 10.00 (1) |  | 10.00 (2) |  |  | 50.00 (1) |",
        "| mean absolute error (%), all steps |  |  |  |  |  |  | 10.00 (1) |  | 12.50 (2) |  |  |"
        " 50.00 (1) |",
        "| gemm | 2.10 | 60 |",
        "| bmm | 3.00 | 11 |",
        "The campaign warned: varies by 27 %.",
    ):
        assert line in text.splitlines(), line


def test_without_a_campaign_one_line_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(tmp_path))
    assert measured.main(["--root", str(tmp_path)]) == 2
    assert "docs/measure_your_gpu.md" in capsys.readouterr().err


def test_a_trial_is_refused_before_anything_is_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measured, "run", lambda *_: pytest.fail("ran"))
    trial = MANIFEST | {"device": {"gpu": "H200", "tiny": True}}
    (folder / "manifest.json").write_text(json.dumps(trial))
    assert measured.main(["H200", "--root", str(folder)]) == 2
    assert "without --tiny" in capsys.readouterr().err


def made(target: str, folder: Path, **variables: object) -> str:
    """What make would run, in a folder that is set up."""
    (folder / ".ready").touch()
    words = [f"{name}={value}" for name, value in ({"VENV": folder} | variables).items()]
    command = ["make", "-n", target, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (".", "gpu=H200 model=dlrm_default host=H200 overrides=model.embedding=joint_sparse"),
        ("none", "gpu=V100 model=dlrm"),
    ],
)
def test_make_local_takes_the_measured_gpu_as_its_example(
    place: str, said: str, folder: Path, tmp_path: Path
) -> None:
    assert said in made("local", tmp_path, STEPTIME_MEASUREMENTS=tmp_path / place)


def test_make_run_fits_nothing(tmp_path: Path) -> None:
    shown = made("run", tmp_path)
    assert "steptime host" in shown and "snakemake" not in shown


WORKLOAD = "dlrm_ddp/embedding-joint_sparse/b4096"


def _untraced(folder: Path, **facts: object) -> Path:
    row = _step("dlrm_ddp", "embedding-joint_sparse", 4096, json.dumps(facts))
    write_table(pd.DataFrame([row]), folder / "step_times.parquet", "step_times", {})
    return folder / "manifest.json"


@pytest.mark.parametrize(
    ("facts", "us"),
    [
        ({"profiled_kernel_us": 812.5}, 812.5),
        ({"profiled_kernel_us": 812.5, "kernels_lost": 3}, None),
        ({}, None),
    ],
)
def test_a_step_whose_trace_found_no_room_keeps_its_kernel_time(
    folder: Path, facts: dict[str, object], us: float | None
) -> None:
    manifest = _untraced(folder, **facts)
    assert parts.measured_active_us(manifest, WORKLOAD) == us
    assert parts.measured_active_us(manifest, WORKLOAD.replace("4096", "1")) is None
