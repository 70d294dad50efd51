"""A point has one answer: the pipeline, the command and Python give the same numbers to the last digit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.answers.engine import engine
from pipeline.question.question import expand
from pipeline.schemas import read_table
from pipeline.show.run_snakemake import run_snakemake
from pipeline.summary_rows import predictions_of


def test_pipeline_command_and_python_agree_to_the_last_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    monkeypatch.chdir(tmp_path)  # Snakemake locks the folder that it runs in
    words = ["gpu=V100", "model=dlrm_ddp", "batch_size=64", "overheads.host_scale=2"]
    asked = {
        "results": tmp_path,
        "gpu": "V100",
        "model": "dlrm_ddp",
        "batch_size": 64,
        "overrides": words[-1],
    }
    assert run_snakemake("all", asked, "--quiet", "all") == 0
    (found,) = predictions_of(read_table(next(tmp_path.glob("grids/*/summary.parquet")), "summary"))
    python = engine(tmp_path).predict_one(expand(words)[0]).whole().as_dict()
    command = subprocess.run(
        [sys.executable, "-m", "pipeline", "predict", *words, f"results={tmp_path}", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(command.stdout) == json.loads(json.dumps(python))
    stored = found.as_dict()
    assert {
        **stored,
        "models_from": python["models_from"],
    } == python  # a summary does not hold the folders
    assert (
        found.bound == "host"
        and found.device_bound_from is not None
        and "multiplied by 2" in found.host
    )
