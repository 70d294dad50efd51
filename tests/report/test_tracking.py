"""Several processes log their fits at the same time: the database is created once, and no run is lost."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from mlflow import MlflowClient

from pipeline.report.mlflow_tracking import KERNEL_MODELS, OVERHEADS, log_run


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
