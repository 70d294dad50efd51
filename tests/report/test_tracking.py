"""Several processes log their fits at the same time: the database is created once, and no run is lost."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.errors import InputError, SteptimeError
from pipeline.report import mlflow_tracking
from pipeline.report.mlflow_tracking import (
    KERNEL_MODELS,
    OVERHEADS,
    SHARED_DATABASE,
    describe_kernel_models,
    log_run,
    serve,
)


def log(folder: Path, experiment: str, name: str) -> None:
    log_run(folder, experiment, name, params={}, metrics={"gmae": 0.1}, tags={})


def test_processes_that_log_first_at_once_share_one_database(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mlflow"
    names = [(KERNEL_MODELS, "V100 gemm"), (KERNEL_MODELS, "T4 gemm"), (OVERHEADS, "V100")]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=log, args=(folder, *name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    for experiment in (KERNEL_MODELS, OVERHEADS):
        owner = client.get_experiment_by_name(experiment)
        assert owner is not None and owner.artifact_location.startswith(folder.as_uri())
        runs = client.search_runs([owner.experiment_id])
        assert {run.info.run_name for run in runs} == {name for kind, name in names if kind == experiment}


def test_a_description_holds_as_many_links_as_mlflow_stores(tmp_path: Path) -> None:
    describe_kernel_models(tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    owner = client.get_experiment_by_name(KERNEL_MODELS).experiment_id
    for number in range(80):
        client.create_run(owner, tags={"gpu": f"GPU{number}", "family": "embedding_backward", "current": "yes"})
    describe_kernel_models(tmp_path)
    tags = client.get_experiment(owner).tags
    note = tags["mlflow.note.content"]
    assert len(note) <= 5000 and note.endswith("One run per GPU, kernel family and variant.")
    shown = note.count("](#/experiments/")
    assert 20 < shown < 80 and f"and {80 - shown} more" in note
    assert sum(key.startswith("mlflow.sharedViewState.") for key in tags) == 81


def test_results_folders_share_the_database_that_a_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_DATABASE, f"sqlite:///{tmp_path}/shared.db")
    for name in ("one", "other"):
        log(tmp_path / name, OVERHEADS, name)
    client = MlflowClient(f"sqlite:///{tmp_path}/shared.db")
    owner = client.get_experiment_by_name(OVERHEADS)
    assert owner is not None and owner.artifact_location.startswith((tmp_path / "one").as_uri())
    assert {run.info.run_name for run in client.search_runs([owner.experiment_id])} == {"one", "other"}
    assert not list(tmp_path.glob("*/mlflow.db"))


def test_an_experiment_that_another_machine_creates_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(tmp_path, OVERHEADS, "first")
    known = MlflowClient.get_experiment_by_name
    answers = iter([None])  # the first question comes before the other machine's experiment
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda self, name: next(answers, known(self, name)))
    log(tmp_path, OVERHEADS, "second")
    monkeypatch.undo()
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    owner = client.get_experiment_by_name(OVERHEADS)
    assert owner is not None
    assert {run.info.run_name for run in client.search_runs([owner.experiment_id])} == {"first", "second"}


def test_a_tracking_server_is_not_served_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_DATABASE, "http://mlflow.example:5000")
    with pytest.raises(InputError, match="has a UI of its own; open it in a browser"):
        serve(5001, tmp_path)


FIRST_LOG = """
import sys
from pipeline.report.mlflow_tracking import OVERHEADS, log_run
print("ready", flush=True)
log_run(sys.argv[1], OVERHEADS, "V100", params={}, metrics={"mean": 1.0}, tags={})
"""


def test_a_process_that_is_killed_while_it_makes_the_database_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIRST_LOG, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None and not any(each.stat().st_size for each in tmp_path.glob("*mlflow.db*")):
            time.sleep(0.02)
        process.kill()
    assert not (tmp_path / "mlflow.db").exists(), "the process was killed too late for this test"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mlflow.db").is_file()


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    @mlflow_tracking._one_process_at_a_time
    def write(folder: str | Path) -> None:
        raise RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT INTO runs]")

    with pytest.raises(SteptimeError, match=r"MLflow's database cannot be written \(the disk is full\)$"):
        write(tmp_path)
