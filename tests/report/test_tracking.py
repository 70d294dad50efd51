"""Several processes log their fits at the same time: the database is created once, and no run is lost."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from mlflow import MlflowClient

from pipeline.report.mlflow_tracking import KERNEL_MODELS, OVERHEADS, describe_kernel_models, log_run


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
