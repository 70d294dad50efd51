"""The main job as a user runs it: Snakemake from a shell, without public data; a point has one answer."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.answers.engine import engine
from pipeline.paths import project_dir
from pipeline.question.question import ask
from pipeline.schemas import read_provenance, read_table
from pipeline.summary_rows import predictions_of
from tests.commands import Steptime

ROOT = project_dir()
WORDS = ("gpu=V100", "model=dlrm_small", "batch_size=256", "overheads.host_scale=2")
POINT = (*WORDS[:3], f"overrides={WORDS[3]}")
FOLDER = "results/V100/dlrm_small/overheads.host_scale-2/b256"
MY_MODULE = """
import torch
from pipeline.workloads.training_step import Step

def make_step(config, batch_size, device):
    model = torch.nn.Linear(8, 8, device=device)
    return Step([model], [(torch.rand(batch_size, 8),)], model, lambda output, x: output.sum(), device, config)
"""


def snakemake(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the project's Snakefile with artifacts under `folder`, public data switched off."""
    environment = {**os.environ, "STEPTIME_DATASETS": "none"}
    places = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    command = [sys.executable, "-m", "snakemake", *places, "--cores", "2", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run = snakemake("--config", *POINT, "--", "all", "accuracy", folder=folder)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "step time" in run.stdout
    return folder


def summary_of(folder: Path) -> pd.DataFrame:
    (table,) = (folder / "results/grids").glob("*/summary.parquet")
    return read_table(table, "summary")


def test_every_stage_leaves_its_artifact(finished: Path) -> None:
    point = finished / FOLDER
    graph = finished / "results/graphs/dlrm_small/default/b256/graph.parquet"
    for path in (
        graph,
        *(point / f"{name}.parquet" for name in ("calls", "prediction", "summary")),
    ):
        table = read_table(path, path.stem)
        assert len(table) == 1 if path.stem == "summary" else len(table) > 50
    (predicted,) = summary_of(finished)["predicted_us"]
    events = json.loads(gzip.decompress((point / "timeline.json.gz").read_bytes()))["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    # the time of a step in a loop: its device may end while the host is at the next one
    assert 0.95 < max(ends) / predicted < 1.5
    assert "dlrm_small on V100, batch 256" in (point / "timeline.html").read_text()


def test_every_table_says_what_made_it(finished: Path) -> None:
    tables = sorted((finished / "results").rglob("*.parquet"))
    assert len(tables) == 8  # graph, calls, prediction, its summary, the grid's, overheads, errors
    for path in tables:
        made = read_provenance(path)
        assert {"commit", "inputs", "versions", "steptime"} <= set(made), path
        assert made["inputs"] or path.name == "graph.parquet"  # which is captured, not read
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_second_run_has_nothing_to_do(finished: Path) -> None:
    run = snakemake("--config", *POINT, folder=finished)
    assert run.returncode == 0
    assert "Nothing to be done" in run.stderr + run.stdout
    assert "step time" in run.stdout, "the predictions are printed all the same"


def test_accuracy_tables_are_written(finished: Path) -> None:
    (tables,) = (finished / "results/accuracy").glob("*.md")
    text = tables.read_text(encoding="utf-8")
    assert "| V100 | dlrm_small overheads.host_scale=2 | 256 |" in text
    assert "What is missing" in text


@pytest.mark.nightly
def test_the_report_is_written(finished: Path) -> None:
    run = snakemake("--config", *POINT, "--", "report", folder=finished)
    assert run.returncode == 0, run.stderr[-3000:]
    (page,) = (finished / "results/reports").glob("*.html")
    assert "Which is fastest?" in page.read_text(encoding="utf-8")


def test_an_edit_to_the_users_own_module_makes_the_graph_anew(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    point = ["--config", "gpu=V100", "model=custom", "batch_size=64"]
    point.append("overrides=model.target=my_module:make_step")
    run = snakemake("--until", "capture_graph", *point, folder=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    again = snakemake("--dry-run", "--until", "capture_graph", *point, folder=tmp_path)
    assert "capture_graph" not in again.stderr + again.stdout
    with (tmp_path / "my_module.py").open("a") as module:
        module.write("WIDTH = 2\n")
    edited = snakemake("--dry-run", "--until", "capture_graph", *point, folder=tmp_path)
    assert "capture_graph" in edited.stderr + edited.stdout


def test_a_corrupt_artifact_stops_the_run_with_one_line(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder, symlinks=True)
    calls = folder / FOLDER / "calls.parquet"
    calls.write_bytes(calls.read_bytes()[:500])
    run = snakemake("--config", *POINT, "--rerun-triggers", "mtime", folder=folder)
    assert run.returncode != 0
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("steptime: "))
    assert "calls.parquet" in line and "delete the file to rebuild it" in line
    assert line in run.stderr.splitlines()[-6:], "below what Snakemake says of it"


def test_a_bad_value_is_one_line_before_anything_runs(tmp_path: Path) -> None:
    run = snakemake("--config", "gpu=V1000", folder=tmp_path)
    assert run.returncode == 2
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("steptime: "))
    assert "V100" in line
    assert not (tmp_path / "results").exists()


def test_a_grid_expands_in_a_dry_run_and_captures_nothing_again(finished: Path) -> None:
    grid = ["gpu=V100,P100", "model=dlrm_small,dlrm_ddp", "batch_size=256,512"]
    run = snakemake("-n", "--config", *grid, "overrides=overheads.host_scale=3", folder=finished)
    assert run.returncode == 0, run.stderr[-2000:]
    jobs = [line.split() for line in (run.stdout + run.stderr).splitlines()]
    assert ["predict", "8"] in jobs, "one of each point"
    assert ["capture_graph", "3"] in jobs, "GPUs and hosts share graphs, of which one is there"
    for side, file in (
        ("input", "graphs/dlrm_ddp/default/b512/graph.parquet"),
        ("output", "dlrm_ddp/overheads.host_scale-3/b512/calls.parquet"),
    ):
        assert re.search(f"^ +{side}: .*{file}", run.stdout + run.stderr, re.M), (
            "a dry run shows what jobs read and write"
        )


def test_pipeline_command_and_python_agree_to_the_last_digit(
    finished: Path, monkeypatch: pytest.MonkeyPatch, steptime: Steptime
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    results = finished / "results"
    (found,) = predictions_of(summary_of(finished))
    python = engine(results).predict_one(ask(WORDS)).whole().as_dict()
    code, printed, _ = steptime("predict", *WORDS, f"results={results}", "--json")
    assert code == 0 and json.loads(printed) == json.loads(json.dumps(python))
    # a summary does not hold the folders
    assert {**found.as_dict(), "models_from": python["models_from"]} == python
    assert (
        found.bound == "host"
        and found.device_bound_from is not None
        and "multiplied by 2" in found.host
    )
