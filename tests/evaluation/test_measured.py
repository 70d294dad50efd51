"""The table of measured GPUs: which grids a campaign asks for, and what the table says of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from evaluation.checks import error_parts as parts
from evaluation.pages import measured_campaigns as measured
from evaluation.pages.markdown import whole_text
from pipeline.question.compose import from_snakemake
from pipeline.question.question import expand
from pipeline.schemas import write_table
from tests.predictions import predicted

ROOT = Path(__file__).parents[2]


def _step(model: str, variant: str, batch: int) -> dict[str, object]:
    return {
        "gpu": "H200",
        "model": model,
        "variant": variant,
        "batch_size": batch,
        "step_us": 1e3,
        "p10_us": 1e3,
        "p90_us": 1e3,
        "count": 9,
        "source": "x",
        "config": "{}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "H200"
    place.mkdir()
    (place / "manifest.json").write_text(
        json.dumps({"schema": 2, "units": {}, "device": {"gpu": "H200"}})
    )
    rows = [
        *(
            _step(model, "embedding-joint_sparse", b)
            for model in ("dlrm_default", "dlrm_ddp")
            for b in (2048, 512)
        ),
        _step("dlrm_ddp", "dtype-tf32_embedding-joint_sparse", 512),
        _step("bert_large", "optimizer-none", 2),
        _step("resnet50", "default", 32),
        _step("a_model_of_yours", "default", 1),
    ]
    write_table(pd.DataFrame(rows), place / "step_times.parquet", "step_times", {})
    return place


def test_models_with_the_same_options_and_batches_share_a_grid_of_points_that_ran(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(folder.parent))
    found = measured.grids("H200", folder)
    assert [(grid.models, grid.batches) for grid in found] == [
        (("dlrm_default", "dlrm_ddp"), (512, 2048)),
        (("bert_large",), (2,)),
        (("resnet50",), (32,)),
    ]
    named = {
        (p.model, p.model_variant, p.batch_size)
        for grid in found
        for p in expand(
            from_snakemake({k: v for k, v in grid.config("r").items() if k != "results"})
        )
    }
    assert ("dlrm_ddp", "embedding-joint_sparse", 512) in named
    assert ("bert_large", "optimizer-none", 2) in named
    assert len(named) == 6


def test_the_table_holds_each_part_and_its_geometric_mean() -> None:
    rows = [
        ("resnet50", 32, part, predicted, measured_us)
        for part, predicted, measured_us in (
            (parts.ACTIVE, 1100.0, 1000.0),
            (parts.OWN_OVERHEADS, 1900.0, 2000.0),
            (parts.KERNEL_SUM, 1000.0, 2000.0),
        )
    ]
    rows.append(("dcgan", 64, parts.OWN_OVERHEADS, 2400.0, 2000.0))
    found = pd.DataFrame(
        rows, columns=["model", "batch_size", "part", "predicted_us", "measured_us"]
    )
    kernels = pd.DataFrame(
        [
            {"family": "gemm", "gmae": 0.021, "held_out": 12, "samples": 60},
            {"family": "bmm", "gmae": 0.03, "held_out": None, "samples": 11},
        ]
    )
    facts = {"torch": "2.11.0", "cuda": None}
    text = measured.block(
        "H200", found.assign(variant="default"), kernels, facts, ["varies by 27 %"]
    )
    lines = text.splitlines()
    assert "(torch 2.11.0), PyTorch's default precision" in text
    assert (
        "| resnet50 | 32 | 1.00 | 2.00 | 1.10 | 1.90 |  | +10.0 |  | -5.0 |  |  | -50.0 |" in lines
    )
    assert "| dcgan | 64 |  | 2.00 |  | 2.40 |  |  |  | +20.0 |  |  |  |" in lines
    assert (
        "| GMAE (%), all steps |  |  |  |  |  |  | 10.00 (1) |  | 10.00 (2) |  |  | 50.00 (1) |"
        in lines
    )
    assert (
        "| mean absolute error (%), all steps |  |  |  |  |  |  | 10.00 (1) |  | 12.50 (2) |  |  |"
        " 50.00 (1) |" in lines
    )
    assert "| gemm | 2.10 | 12 |" in lines
    assert "| bmm | 3.00 | 11 |" in lines
    assert "The campaign warned: varies by 27 %." in lines


def test_a_step_that_was_not_traced_shows_its_measured_time_and_counts_apart() -> None:
    """Invented times: errors of 10 and 20 % where everything is known, 30 % where nothing was traced."""
    rows = [
        ("traced", part, predicted, us)
        for part, predicted, us in (
            (parts.ACTIVE, 900.0, 1000.0),
            (parts.OWN_OVERHEADS, 2200.0, 2000.0),
            (parts.SHARED_OVERHEADS, 2400.0, 2000.0),
            (parts.KERNEL_SUM, 1000.0, 2000.0),
        )
    ]
    rows += [
        ("timed", parts.SHARED_OVERHEADS, 5200.0, 4000.0),
        ("timed", parts.KERNEL_SUM, 1000.0, 4000.0),
    ]
    found = pd.DataFrame(rows, columns=["model", "part", "predicted_us", "measured_us"])
    lines = measured.block(
        "H200", found.assign(variant="default", batch_size=8), pd.DataFrame(), {}
    ).splitlines()
    assert "| timed | 8 |  | 4.00 |  |  | 5.20 |  |  |  | +30.0 |  | -75.0 |" in lines
    assert any(line.startswith("| GMAE (%), all steps |") and "24.49 (2)" in line for line in lines)
    assert (
        "| GMAE (%), steps with all parts |  |  |  |  |  |  | 10.00 (1) |  | 10.00 (1) |"
        " 20.00 (1) |  | 50.00 (1) |" in lines
    )


def test_warnings_of_all_runs_are_told_once() -> None:
    runs = [
        {"preflight": {"warnings": ["a"]}},
        {},
        {"preflight": None},
        {"preflight": {"warnings": ["b", "a"]}},
    ]
    assert measured.warnings_of({"runs": runs}) == ["a", "b"]
    assert measured.warnings_of({}) == []


def test_without_a_campaign_one_line_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(tmp_path))
    assert measured.main(["--root", str(tmp_path)]) == 2
    assert "docs/measure_your_gpu.md" in capsys.readouterr().err


def test_a_trial_is_refused_before_anything_is_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(folder.parent))
    monkeypatch.setattr(measured, "run", lambda *_: pytest.fail("ran"))
    manifest = {"schema": 2, "units": {}, "device": {"gpu": "H200", "tiny": True}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert measured.main(["H200", "--root", str(folder)]) == 2
    assert "without --tiny" in capsys.readouterr().err


def test_the_page_has_a_place_for_the_table() -> None:
    text = whole_text(ROOT / measured.PAGE)
    assert (
        text.count(f"<!-- {measured.MARKER} -->") == text.count(f"<!-- /{measured.MARKER} -->") == 1
    )


@pytest.mark.parametrize("present", [True, False])
def test_make_local_takes_the_measured_gpu_as_its_example(
    present: bool, folder: Path, tmp_path: Path
) -> None:
    ready = tmp_path / "venv"
    ready.mkdir()
    (ready / ".ready").touch()
    place = folder.parent if present else tmp_path / "none"
    done = subprocess.run(
        ["make", "-n", "local", f"VENV={ready}", f"STEPTIME_MEASUREMENTS={place}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured_gpu = "gpu=H200 model=dlrm_default host=H200 overrides=model.embedding=joint_sparse"
    assert (measured_gpu if present else "gpu=V100 model=dlrm") in done.stdout


def test_make_run_fits_nothing(tmp_path: Path) -> None:
    (tmp_path / ".ready").touch()
    words = ["make", "-n", "run", f"VENV={tmp_path}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "steptime host" in done.stdout and "snakemake" not in done.stdout


def _untraced(folder: Path, **facts: object) -> Path:
    row = _step("dlrm_ddp", "embedding-joint_sparse", 4096) | {"config": json.dumps(facts)}
    write_table(pd.DataFrame([row]), folder / "step_times.parquet", "step_times", {})
    return folder / "manifest.json"


def test_a_step_whose_trace_found_no_room_keeps_its_kernel_time(folder: Path) -> None:
    workload = "dlrm_ddp/embedding-joint_sparse/b4096"
    assert parts.measured_active_us(_untraced(folder, profiled_kernel_us=812.5), workload) == 812.5
    assert (
        parts.measured_active_us(
            _untraced(folder, profiled_kernel_us=812.5, kernels_lost=3), workload
        )
        is None
    )
    assert parts.measured_active_us(_untraced(folder), workload) is None
    assert (
        parts.measured_active_us(folder / "manifest.json", "dlrm_ddp/embedding-joint_sparse/b1")
        is None
    )


def test_a_step_without_a_trace_has_no_overheads_of_its_own(folder: Path) -> None:
    """The prediction uses overheads of all GPUs, so it must not appear in the column of predictions with own overheads."""
    prediction = predicted(
        1100.0,
        gpu="H200",
        model="dlrm_ddp",
        variant="embedding-joint_sparse",
        batch_size=4096,
        active_us=800.0,
        host_us=900.0,
        p10_us=1000.0,
        p90_us=1200.0,
        memory_bytes=1 << 30,
        evidence={"measured": 1.0},
        host_evidence={"shared": 1.0},
        families_us={"gemm": 800.0},
        measured_us=1000.0,
    )

    class Untraced:
        """A step that takes 100 us for each workload whose overheads it is predicted from."""

        question = SimpleNamespace(step_name="dlrm_ddp/embedding-joint_sparse/b4096")
        unseen_active_us = staticmethod(lambda active_us: 2 * active_us)
        step_us = staticmethod(lambda observations: 100.0 * len(observations) or None)

    traced = ["dlrm_ddp/embedding-joint_sparse/b512", "dlrm_default/x/b512", "dcgan/default/b64"]
    found = parts.parts_of(
        prediction,
        _untraced(folder, profiled_kernel_us=812.5),
        Untraced(),
        pd.DataFrame({"workload": traced}),
    ).set_index("part")["predicted_us"]
    assert dict(found) == {
        parts.ACTIVE: prediction.active_us,
        parts.UNSEEN_ACTIVE: 2 * prediction.active_us,
        parts.SHARED_OVERHEADS: 200.0,
        parts.UNLIKE_OVERHEADS: 100.0,
        parts.KERNEL_SUM: 800.0,
    }


def test_only_a_call_whose_shape_was_a_sample_is_answered_without_it() -> None:
    sizes = {"M": [64.0, 64.0, 32.0], "N": 8.0}
    calls = pd.DataFrame({"op": ["mm", "linear", "mm"], "dtype": "fp32", **sizes, "flops": 1.0})
    tested = calls.head(1)[["op", "dtype", "M", "N"]].astype({"M": "Int64"})
    tested = tested.assign(kernel_us=10.0, predicted_us=12.0, latency_us=9.0)
    assert parts.unseen_factors(calls, tested) == pytest.approx([1.2, 1.0, 1.0])
