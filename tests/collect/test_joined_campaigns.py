"""Several campaigns of one GPU as one. All numbers are invented."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evaluation.pages.measured_campaigns import grids
from pipeline.collect import campaign_reader as reader
from pipeline.collect import join_campaigns as join
from pipeline.collect.campaign_folder import CampaignFolder, check, read_manifest

FUSED, TF32 = "embedding-joint_sparse", "dtype-tf32_embedding-joint_sparse"
GEMM = {
    "family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1, "M": 2048,
    "N": 512, "K": 64, "kernel_us": 12.5, "latency_us": 20.0, "source": "x",
    "campaign_id": "1:kernels/gemm_0",
}  # fmt: skip


def campaign(
    folder: Path,
    gpu: str = "H200",
    samples: Sequence[Mapping[str, Any]] = (),
    steps: Mapping[str, float] | None = None,
    traces: Mapping[str, bytes] | None = None,
    peaks: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """The folder of a campaign with these rows; steps and traces are of `dlrm_ddp` at a batch of 512, by variant."""
    made = CampaignFolder(folder, {"gpu": gpu, "torch": "2.11.0", "cache_bytes": 62914560})
    if samples:
        made.add_samples(pd.DataFrame(samples).assign(gpu=gpu))
    for variant, us in (steps or {}).items():
        unit = f"steps/dlrm_ddp/{variant}/b512"
        row = {
            "gpu": gpu,
            "model": "dlrm_ddp",
            "variant": variant,
            "batch_size": 512,
            "step_us": us,
            "p10_us": us,
            "p90_us": us,
            "count": 3,
            "source": "x",
            "config": json.dumps({"unit": unit}),
        }
        made.add_step_times(row)
        made.units[unit] = {"status": "done"}
    for variant, text in (traces or {}).items():
        made.archive({f"dlrm_ddp/{variant}/b512/kineto.json.gz": gzip.compress(text)})
    if peaks:
        made.add_peaks(pd.DataFrame(peaks))
    names = [str(row["campaign_id"]).partition(":")[2] for row in samples] + [
        row["unit_name"] for row in peaks
    ]
    made.units.update({name: {"status": "done"} for name in names})
    made.manifest["runs"].append({"seconds": 1.0})
    made.save()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Peaks and steps, kernels, more steps and kernels."""
    peak = {
        "unit_name": "peaks/gemm",
        "name": "gemm_fp32",
        "size": 4096,
        "value": 50.0,
        "unit": "TFLOP/s",
        "note": "",
    }
    third = GEMM | {"campaign_id": "3:kernels/gemm_2", "dtype": "tf32", "M": 128}
    return [
        campaign(tmp_path / "run1", peaks=[peak], steps={FUSED: 900.0}, traces={FUSED: b"first"}),
        campaign(
            tmp_path / "run2", samples=[GEMM, GEMM | {"campaign_id": "2:kernels/gemm_1", "M": 64}]
        ),
        campaign(
            tmp_path / "run3",
            samples=[third],
            steps={FUSED: 1000.0, TF32: 800.0},
            traces={FUSED: b"third", TF32: b"tf32"},
        ),
    ]


def test_three_runs_are_one_campaign_and_the_last_one_wins(
    runs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "measurements" / "H200"
    assert join.main([*map(str, runs), "--out", str(out)]) == 0
    assert check(out) == []
    samples = reader.read_samples(out)
    assert sorted(zip(samples["dtype"], samples["M"], strict=True)) == [
        ("fp32", 64),
        ("fp32", 2048),
        ("tf32", 128),
    ]
    steps = reader.read_step_times(out)
    assert dict(zip(steps["variant"], steps["step_us"], strict=True)) == {
        FUSED: 1000.0,
        TF32: 800.0,
    }
    assert [member.variant for member in reader.read_traces(out)] == list(steps["variant"])
    member = next(iter(reader.read_traces(out)))
    assert gzip.decompress(member.extract(tmp_path / "x")[0].read_bytes()) == b"third"
    assert reader.measured_peaks(out) == {"fp32_gflop_per_s": 50e3}
    assert [(grid.models, grid.batches) for grid in grids("H200", out)] == [(("dlrm_ddp",), (512,))]
    assert reader.provenance(out)["device"]["torch"] == "2.11.0"
    assert len(read_manifest(out)["runs"]) == 3


def test_a_joined_campaign_goes_on(runs: list[Path], tmp_path: Path) -> None:
    join.join(runs, tmp_path / "all")
    again = CampaignFolder(tmp_path / "all", {"gpu": "H200"})
    assert (len(again.samples), len(again.step_times), len(again.peaks)) == (3, 2, 1)


def test_what_cannot_be_joined_is_said_in_one_line(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = campaign(tmp_path / "other", gpu="T4")
    assert join.main([str(runs[0]), str(other), "--out", str(tmp_path / "a")]) == 2
    assert join.main([str(runs[0]), "--out", str(runs[1])]) == 2
    assert join.main([str(tmp_path / "nothing"), "--out", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert ["T4" in said[0], "is not empty" in said[1], "manifest.json is missing" in said[2]] == [
        True
    ] * 3
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
    assert join.join([campaign(tmp_path / "run")], tmp_path / "all") == []
    assert isinstance(reader.read_samples(tmp_path / "all"), pd.DataFrame)
    assert check(tmp_path / "all") == []
