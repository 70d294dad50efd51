"""The campaign as a user runs it, small and on the CPU."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

from pipeline.collect import campaign
from pipeline.collect.campaign_folder import CampaignFolder, check
from pipeline.collect.microbenchmarks import samples_frame
from pipeline.collect.unit_runner import Campaign
from pipeline.errors import InputError
from pipeline.measured import campaign_reader as reader
from pipeline.schemas import SCHEMAS, read_table, to_arrow
from pipeline.trace.load import load_trace
from tests.commands import python

ROOT = Path(__file__).parents[2]
TINY = ["--tiny", "--device", "cpu", "--minutes", "30"]
FAMILIES = "conv2d_forward|elementwise|embedding_forward|gemm"
ONLY = ["--only", f"dlrm_ddp.*b16|kernels/({FAMILIES})|peaks/(products|profiler)"]
STEP = "dlrm_ddp/embedding-joint_sparse/b16"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small campaign on the CPU."""
    out = tmp_path_factory.mktemp("campaign") / "run"
    assert campaign.main([*TINY, "--out", str(out), *ONLY]) == 0
    return out


def test_another_run_repeats_nothing_that_was_done(measured: Path, tmp_path: Path) -> None:
    """It finds what the last one left as read-only files, with one that was cut off."""
    out = tmp_path / "next"
    shutil.copytree(measured, out)
    (out / ".traces_a.tar.part").write_bytes(b"cut off")
    for file in out.iterdir():
        file.chmod(0o444)
    assert campaign.main([*TINY, "--out", str(out), *ONLY]) == 0
    assert check(out) == []
    before, after = (
        json.loads((folder / "manifest.json").read_text()) for folder in (measured, out)
    )
    assert [run["status"] for run in after["runs"]] == ["complete", "complete"]
    assert before["units"] == after["units"]
    round_of = f"kernels/r0001~{FAMILIES.replace('|', '+')}"
    assert {"peaks/products", f"steps/{STEP}", round_of} <= set(after["units"])
    assert {unit["status"] for unit in after["units"].values()} == {"done"}
    traces = f"traces_{STEP.replace('/', '.')}.tar"
    files = ["manifest.json", "peaks.parquet", "samples.parquet", "step_times.parquet", traces]
    assert sorted(path.name for path in out.iterdir()) == files
    with pytest.raises(InputError, match="but this GPU is H300; give a new folder"):
        CampaignFolder(out, {"gpu": "H300"})


def test_the_reader_gives_tables_of_the_pipeline(measured: Path, tmp_path: Path) -> None:
    samples = reader.read_samples(measured)
    assert to_arrow(samples, "samples").schema.names == SCHEMAS["samples"].names
    assert set(FAMILIES.split("|")) == set(samples["family"])
    assert (samples["kernel_us"] <= samples["latency_us"]).all()
    steps = reader.read_step_times(measured)
    assert ((steps["p10_us"] <= steps["step_us"]) & (steps["step_us"] <= steps["p90_us"])).all()
    traces = list(reader.read_traces(measured))
    kineto, execution = traces[0].extract(tmp_path)
    assert len(load_trace(kineto).iterations) == 2
    assert execution is not None
    assert len(json.loads(gzip.decompress(execution.read_bytes()))["nodes"]) > 100
    assert 0.1 < reader.measured_peaks(measured)["fp32_gflop_per_s"] < 100_000.0, (
        "GFLOP/s of a processor"
    )
    assert reader.profiler_event_us(measured) is not None


def test_operands_of_measured_copies_have_the_bytes_that_were_copied() -> None:
    """The campaign on an H100 wrote operands of copies as they were before their sizes were changed."""
    folder = ROOT / "measurements" / "H100"
    stated = read_table(folder / "samples.parquet", "samples")
    copies = reader.read_samples(folder).query("family == 'copy' and outputs.notna()")
    assert (copies["outputs"] == copies["bytes"]).all() and len(copies) > 300
    assert (stated["outputs"] != stated["bytes"])[stated["family"] == "copy"].sum() > 100


def test_a_measured_step_counts_only_for_the_configuration_that_ran(measured: Path) -> None:
    manifest = measured / "manifest.json"
    (row,) = read_table(measured / "step_times.parquet", "step_times").to_dict("records")
    ran = json.loads(row["config"])["config"]
    assert reader.measured_step(manifest, STEP, ran) == pytest.approx(row["step_us"])
    assert reader.measured_step(manifest, STEP, ran | {"tables": 99}) is None
    assert reader.measured_step(manifest, STEP.replace("b16", "b99"), ran) is None


def test_a_measured_gpu_goes_through_every_stage(measured: Path, tmp_path: Path) -> None:
    """The rules chain up: samples, fits, overheads of the campaign, and its step beside the prediction."""
    place = tmp_path / "measurements"
    place.mkdir()
    (place / "H200").symlink_to(measured)
    words = (
        "-n --config gpu=H200 host=H200 model=dlrm_ddp batch_size=16 overheads=shared,own,pooled"
    )
    command = [sys.executable, "-m", "snakemake", *words.split(), f"results={tmp_path / 'results'}"]
    environment = os.environ | {"STEPTIME_MEASUREMENTS": str(place)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-600:]
    rules = "campaign_samples fit_measured_kernels campaign_overheads overhead_statistics predict"
    assert [rule for rule in rules.split() if rule not in done.stdout + done.stderr] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--out"),
        ("--out x --minutes 0", "between 0.05 and 1440"),
        ("--out x --only (", "not a regular expression"),
        ("--out x --parts steps,music", "choose from peaks, steps, kernels"),
    ],
)
def test_bad_arguments_end_with_one_line_and_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        campaign.main(arguments.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("thesis.txt", "mine", "give a new folder"),
        ("manifest.json", '{"units": ', "manifest.json: damaged"),
    ],
)
def test_a_folder_that_is_no_campaigns_is_refused(
    file: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text(text)
    assert campaign.main(["--out", str(tmp_path), "--tiny", "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_missing_gpu_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign.main(["--out", str(tmp_path / "x"), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


BLOCKER = """
import sys
from importlib.machinery import PathFinder
refused, find = {names!r}, PathFinder.find_spec
PathFinder.find_spec = classmethod(  # as where they are not installed: torch itself asks for some of them
    lambda cls, name, *rest: None if name.partition(".")[0] in refused else find(name, *rest)
)
from pipeline.collect import campaign
code = campaign.main({arguments!r})
assert not refused & {{name.partition(".")[0] for name in sys.modules}}
sys.exit(code)
"""
PACKAGES_OF_TORCH = {"torch", "numpy", "networkx", "jinja2"}
"""What a machine with torch has."""


def imports_beyond(allowed: set[str]) -> set[str]:
    """Names under which the project's packages are imported, without those of some packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.match(r"[\w-]+", package)[0].lower() for package in project["dependencies"]}
    found = packages_distributions().items()
    return {
        name for name, owners in found if {owner.lower() for owner in owners} & (needed - allowed)
    } | {"omegaconf"}


REFUSED = imports_beyond(PACKAGES_OF_TORCH | {"pandas", "pyarrow"}) | {
    "transformers",
    "torchvision",
}


def test_the_campaign_imports_nothing_beyond_its_four_packages(tmp_path: Path) -> None:
    out = tmp_path / "bare"
    arguments = [*TINY, "--out", str(out), "--only", "dlrm_ddp.*b16|kernels/gemm"]
    done = python(BLOCKER.format(names=REFUSED, arguments=arguments), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-600:]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["units"][f"steps/{STEP}"]["status"] == "done"
    assert manifest["units"]["kernels/r0000~gemm"]["status"] == "done"
    assert manifest["calls_not_known"], "only with PyYAML the workloads' own calls are measured"


def test_units_that_took_longer_than_estimated_stretch_the_estimates_of_others(
    tmp_path: Path,
) -> None:
    folder = CampaignFolder(tmp_path / "run", {"gpu": "x"})
    work = Campaign(folder, torch.device("cpu"), "x", time.monotonic() + 100)
    assert work.wants("steps/new", 30)
    for number in range(3):
        folder.units[f"steps/{number}"] = {"status": "done", "seconds": 50.0, "estimate": 10.0}
    assert work.slowness() == 5
    assert not work.wants("steps/new", 30)


def test_a_round_without_a_row_does_not_end_all_later_runs(tmp_path: Path) -> None:
    """Regression: a first round without any time left wrote an empty table, at which every later run failed."""
    folder = CampaignFolder(tmp_path / "run", {"gpu": "x"})
    empty = samples_frame([], gpu="x", source="s", campaign_id="id:kernels/r0000")
    folder.add("samples.parquet", empty)
    folder.units["kernels/r0000"] = {"status": "done"}
    folder.save()
    again = CampaignFolder(tmp_path / "run", {"gpu": "x"})
    assert len(again.tables["samples.parquet"]) == 0
    assert len(reader.read_samples(tmp_path / "run")) == 0
