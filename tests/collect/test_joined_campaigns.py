"""Several campaigns as one: runs of the stand-alone script, in the layout that it writes. All numbers are invented."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluation.checks.error_parts import measured_active_us
from evaluation.pages.measured_campaigns import grids
from pipeline.collect import campaign_reader as reader
from pipeline.collect import join_campaigns as join
from pipeline.collect.campaign_folder import CampaignFolder, check, read_manifest

UNIT = "dlrm_ddp-fused-b512-fp32-sgd"
EACH = ["free_event_each_us"]
GEMM = {"unit": "kernels/gemm_0", "family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "attrs": None,
        "B": 1, "M": 2048, "N": 512, "K": 64, "cold": True, "reps": 4, "kernel_us": 12.5, "event_us": 20.0, "n_kernels": 1,
        "kernel_names": ["ampere_sgemm_128x64_tn"], "kernel_durations_us": [12.5], "grid": [16, 8, 1], "block": [128, 1, 1],
        "registers": 90, "shared_memory": 4096}  # fmt: skip


def script_run(folder: Path, started: int, gpu: str | None = "NVIDIA H200", **tables: list[dict[str, Any]]) -> Path:
    """A folder as `measure.py` leaves it, with rows of the given tables."""
    folder.mkdir(parents=True)
    units = {row["unit"] if "unit_name" not in row else row["unit_name"]: {"status": "done"}
             for rows in tables.values() for row in rows}  # fmt: skip
    device = {"gpu": gpu, "torch": "2.11.0", "cuda": "13.0", "l2_bytes": 62914560}
    manifest = {"schema": 1, "device": device, "started_unix": started, "units": units}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


def step(us: float, unit: str = UNIT, **more: Any) -> dict[str, Any]:
    """A row of the script's step times."""
    return {"unit": f"steps/{unit}", "workload": "dlrm_ddp", "variant": "fused", "dtype": "fp32", "optimizer": "sgd",
            "batch": 512, "config": '{"rows_capped": false}', "trace_file": None, "sm_clock_mhz": "1980",
            "temperature_c": "40", "steps": 30, "max_memory_bytes": 1 << 30, "free_step_us": us,
            "free_event_each_us": [us, us], "sync_event_median_us": us, "sync_enqueue_median_us": us / 2,
            "profiled_step_us": 2 * us, "profiled_kernel_sum_us": us / 4} | more  # fmt: skip


def with_trace(folder: Path, text: bytes, unit: str = UNIT) -> Path:
    with tarfile.open(folder / "traces_a.tar", "a") as tar:
        data = gzip.compress(text)
        info = tarfile.TarInfo(f"{unit}/kineto.json.gz")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The three runs of the script's README: peaks and steps, kernels, more steps and kernels."""
    peak = {"unit_name": "peaks/gemm", "name": "gemm_fp32", "size": 4096, "value": 50.0, "unit": "TFLOP/s", "note": ""}
    first = script_run(tmp_path / "run1", 1, peaks=[peak], step_times=[step(900.0)])
    second = script_run(tmp_path / "run2", 2, kernels_1=[GEMM], kernels_2=[GEMM | {"unit": "kernels/gemm_1", "M": 64}])
    other = "dlrm_ddp-fused-b512-tf32-sgd"
    third = script_run(tmp_path / "run3", 3, kernels_1=[GEMM | {"unit": "kernels/gemm_2", "dtype": "tf32", "M": 128}],
                       step_times=[step(1000.0), step(800.0, other, dtype="tf32")])  # fmt: skip
    return [with_trace(first, b"first"), second, with_trace(with_trace(third, b"third"), b"tf32", other)]


def test_three_runs_of_the_script_are_one_campaign(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "measurements" / "H200"
    assert join.main([*map(str, runs), "--out", str(out)]) == 0
    assert check(out) == []
    samples = reader.read_samples(out)
    assert sorted(zip(samples["dtype"], samples["M"], strict=True)) == [("fp32", 64), ("fp32", 2048), ("tf32", 128)]
    assert set(samples["gpu"]) == {"H200"}
    steps = reader.read_step_times(out)
    assert dict(zip(steps["variant"], steps["step_us"], strict=True)) == {
        "embedding-joint_sparse": 1000.0, "dtype-tf32_embedding-joint_sparse": 800.0}  # fmt: skip
    assert [member.variant for member in reader.read_traces(out)] == list(steps["variant"])
    member = next(iter(reader.read_traces(out)))
    assert gzip.decompress(member.extract(tmp_path / "x")[0].read_bytes()) == b"third"
    assert reader.measured_peaks(out) == {"fp32_gflop_per_s": 50e3}
    assert [(grid.models, grid.batches) for grid in grids("H200", out)] == [(("dlrm_ddp",), (512,))]
    assert reader.provenance(out)["device"]["torch"] == "2.11.0"


def test_a_joined_campaign_goes_on(runs: list[Path], tmp_path: Path) -> None:
    join.join(runs, tmp_path / "all")
    again = CampaignFolder(tmp_path / "all", {"gpu": "H200"})
    assert (len(again.samples), len(again.step_times), len(again.peaks)) == (3, 2, 1)


def test_a_campaign_of_this_project_joins_in_and_the_last_one_wins(runs: list[Path], tmp_path: Path) -> None:
    ours = CampaignFolder(tmp_path / "ours", {"gpu": "H200"})
    ours.units["steps/dlrm_ddp/embedding-joint_sparse/b512"] = {"status": "done"}
    ours.add_step_times({"gpu": "H200", "model": "dlrm_ddp", "variant": "embedding-joint_sparse", "batch_size": 512,
                         "step_us": 700.0, "p10_us": 1.0, "p90_us": 1.0, "count": 3, "source": "x",
                         "config": '{"unit": "steps/dlrm_ddp/embedding-joint_sparse/b512"}'})  # fmt: skip
    ours.save()
    join.join([*runs, ours.path], tmp_path / "all")
    found = reader.read_step_times(tmp_path / "all")
    assert sorted(found["step_us"]) == [700.0, 800.0]
    assert len(read_manifest(tmp_path / "all")["runs"]) == 3


def test_the_script_states_the_kernel_time_of_steps_whose_traces_found_no_room(tmp_path: Path) -> None:
    run = script_run(tmp_path / "run", 1, step_times=[step(900.0)])
    assert measured_active_us(run / "manifest.json", "dlrm_ddp/embedding-joint_sparse/b512") == 225.0
    bare = script_run(tmp_path / "bare", 1, step_times=[step(900.0, profiled_kernel_sum_us=float("nan"))])
    assert measured_active_us(bare / "manifest.json", "dlrm_ddp/embedding-joint_sparse/b512") is None


def test_what_cannot_be_joined_is_said_in_one_line(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = script_run(tmp_path / "other", 4, gpu="Tesla T4")
    assert join.main([str(runs[0]), str(other), "--out", str(tmp_path / "a")]) == 2
    assert join.main([str(runs[0]), "--out", str(runs[1])]) == 2
    assert join.main([str(tmp_path / "nothing"), "--out", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert ["T4" in said[0], "is not empty" in said[1], "manifest.json is missing" in said[2]] == [True] * 3
    assert len(said) == 3
    assert not (tmp_path / "a").exists()


def test_a_step_that_a_killed_campaign_traced_twice_counts_once(tmp_path: Path) -> None:
    folder = CampaignFolder(tmp_path / "run", {"gpu": "H200"})
    folder.save()
    name = "dlrm_ddp/default/b512/kineto.json.gz"
    folder.archive({name: gzip.compress(b"killed before its row was written")})
    folder.archive({name: gzip.compress(b"whole")})
    (member,) = reader.read_traces(folder.path)
    assert gzip.decompress(member.extract(tmp_path / "x")[0].read_bytes()) == b"whole"


def test_an_empty_campaign_joins_as_nothing(tmp_path: Path) -> None:
    CampaignFolder(tmp_path / "run", {"gpu": "H200"}).save()
    assert join.join([tmp_path / "run"], tmp_path / "all") == []
    assert isinstance(reader.read_samples(tmp_path / "all"), pd.DataFrame)
    assert check(tmp_path / "all") == []
