"""Several processes log their fits at the same time: the database is created once, and no run is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.errors import InputError, SteptimeError
from pipeline.show.tracking import (
    KERNEL_MODELS,
    SHARED_DATABASE,
    champions_page,
    log_run,
)
from pipeline.show.tracking_server import serve

OPEN_TO_ALL = {
    "MLFLOW_HOST": "0.0.0.0",
    "MLFLOW_UVICORN_OPTS": "--host 0.0.0.0",
    "UVICORN_HOST": "0.0.0.0",
    "GUNICORN_CMD_ARGS": "--bind 0.0.0.0",
    "MLFLOW_SERVER_ALLOWED_HOSTS": "*",
}
"""What an environment may say that would open the server to other machines."""


def log(folder: Path, name: str) -> None:
    log_run(folder, name, params={}, metrics={"gmae": 0.1}, tags={})


def test_processes_that_log_first_at_once_share_one_database(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mlflow"
    names = ["V100 gemm", "V100 bmm"]
    context = multiprocessing.get_context("fork")  # which need not import MLflow again
    processes = [context.Process(target=log, args=(folder, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    owner = client.get_experiment_by_name(KERNEL_MODELS)
    assert owner is not None and owner.artifact_location.startswith(folder.as_uri())
    assert {run.info.run_name for run in client.search_runs([owner.experiment_id])} == {*names}


def test_the_page_of_champions_is_that_of_the_experiment(tmp_path: Path) -> None:
    page = champions_page(tmp_path)
    owner = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_experiment_by_name(KERNEL_MODELS)
    assert owner is not None and page.startswith(f"#/experiments/{owner.experiment_id}/runs?")


def test_results_folders_share_the_database_that_a_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_DATABASE, f"sqlite:///{tmp_path}/shared.db")
    for name in ("one", "other"):
        log(tmp_path / name, name)
    client = MlflowClient(f"sqlite:///{tmp_path}/shared.db")
    owner = client.get_experiment_by_name(KERNEL_MODELS)
    assert owner is not None and owner.artifact_location.startswith((tmp_path / "one").as_uri())
    assert {run.info.run_name for run in client.search_runs([owner.experiment_id])} == {
        "one",
        "other",
    }
    assert not list(tmp_path.glob("*/mlflow.db"))


def test_a_tracking_server_is_not_served_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_DATABASE, "http://mlflow.example:5000")
    with pytest.raises(InputError, match="has a UI of its own; open it in a browser"):
        serve(5001, tmp_path)


FIRST_LOG = """
import sys
from pipeline.show.tracking import log_run
print("ready", flush=True)
log_run(sys.argv[1], "V100", params={}, metrics={"mean": 1.0}, tags={})
"""


@pytest.mark.nightly
def test_a_process_that_is_killed_while_it_makes_the_database_leaves_none_or_a_whole_one(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", FIRST_LOG, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None and not any(
            each.stat().st_size for each in tmp_path.glob("*mlflow.db*")
        ):
            time.sleep(0.02)
        process.kill()
    assert not (tmp_path / "mlflow.db").exists(), "the process was killed too late for this test"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mlflow.db").is_file()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(
            "(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT INTO runs]"
        )

    monkeypatch.setattr(MlflowClient, "create_run", full)
    with pytest.raises(
        SteptimeError, match=r"MLflow's database cannot be written \(the disk is full\)$"
    ):
        log(tmp_path, "V100")


def test_a_port_that_cannot_be_had_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for port in (-1, 99999999, other.getsockname()[1]):
            with pytest.raises(InputError, match=f"--port {port}: "):
                serve(port, tmp_path)


@pytest.mark.nightly
def test_the_server_listens_on_the_loopback_address_alone(tmp_path: Path) -> None:
    """Started where files of the current folder have the names of its libraries, and the environment says otherwise."""
    log(tmp_path, "V100")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    planted = tmp_path / "current"
    planted.mkdir()
    for library in ("mlflow", "uvicorn", "fastapi", "flask"):
        (planted / f"{library}.py").write_text(f"open({str(tmp_path / 'sign')!r}, 'w').close()")
    command = f"from pipeline.show.tracking_server import serve; serve({port}, {str(tmp_path)!r})"
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", command],
        cwd=planted,
        env={**os.environ, **OPEN_TO_ALL},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        link = next(
            line for line in server.stdout if "kernel models" in line
        )  # comes when the server answers
        assert f"http://127.0.0.1:{port}/#/experiments/" in link and "champion" in link
        assert not (tmp_path / "sign").exists(), (
            "a file of the current folder took the place of a library"
        )
        with (
            pytest.raises(OSError),
            socket.create_connection(("127.0.0.2", port), timeout=5),
        ):  # 0.0.0.0 would answer here
            pass
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/", headers={"Host": "elsewhere.example"}
        )
        with pytest.raises(
            urllib.error.HTTPError, match="403"
        ):  # a page of another site that takes this address
            urllib.request.urlopen(asked, timeout=10)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(300)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
