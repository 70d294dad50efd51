"""Sixteen processes that log runs to MLflow on PostgreSQL at once: all runs arrive, and the UI shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.cluster.services import LOOPBACK, free_port, postgres, wait_until
from pipeline.show.tracking import (
    KERNEL_MODELS,
    SHARED_DATABASE,
    choose_champion,
    log_run,
    register_model,
)

WRITERS, RUNS = 16, 6


def section() -> str:
    with (
        tempfile.TemporaryDirectory() as name,
        postgres(folder := Path(name) / "postgres") as address,
    ):
        os.environ[SHARED_DATABASE] = address
        subprocess.run(
            [sys.executable, "-m", "mlflow", "db", "upgrade", address],
            check=True,
            capture_output=True,
        )
        began = time.monotonic()
        with ProcessPoolExecutor(WRITERS, mp_context=get_context("spawn")) as pool:
            list(
                pool.map(
                    write,
                    range(WRITERS),
                    [str(folder.parent / f"results-{w}") for w in range(WRITERS)],
                )
            )
        duration = time.monotonic() - began
        runs, champions = _stored(address)
        shown = _shown(folder.parent, address)
    expected = {(writer, number) for writer in range(WRITERS) for number in range(RUNS)}
    if runs != expected or champions != WRITERS or shown != len(expected):
        raise SystemExit(
            f"{len(runs)} of {len(expected)} runs stored, {shown} in the UI, {champions} of"
            f" {WRITERS} champions"
        )
    return (
        f"{WRITERS} processes, each with a results folder of its own, logged {RUNS} runs each at"
        f" once: {duration:.0f} s. All {len(expected)} runs, their metrics and their {champions}"
        " champions are in the database, and `steptime ui` shows them."
    )


def write(writer: int, folder: str) -> None:
    """Log the runs of one process, as fits of `RUNS` variants of one kernel family."""
    model = Path(folder) / "model.json"
    model.parent.mkdir()
    model.write_text("{}")
    for number in range(RUNS):
        run = log_run(
            folder,
            KERNEL_MODELS,
            f"GPU{writer} gemm {number}",
            params={"variant": number},
            metrics={"gmae": 0.01 * (number + 1), "writer": writer, "number": number},
            tags={
                "gpu": f"GPU{writer}",
                "family": "gemm",
                "model": f"gemm-GPU{writer}",
                "samples": "same",
            },
            artifacts={"model": model},
        )
        register_model(
            folder, f"gemm-GPU{writer}", run, "model", {"gpu": f"GPU{writer}", "family": "gemm"}
        )
        choose_champion(folder, f"gemm-GPU{writer}", run)


def _stored(address: str) -> tuple[set[tuple[int, int]], int]:
    """What the database holds: (writer, number) of all runs, and the number of champions, each the best of its writer."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    owner = client.get_experiment_by_name(KERNEL_MODELS).experiment_id
    runs = client.search_runs([owner], max_results=5000)
    found = {(int(run.data.metrics["writer"]), int(run.data.metrics["number"])) for run in runs}
    best = [
        run
        for run in runs
        if run.data.tags.get("champion") == "yes" and run.data.metrics["number"] == 0
    ]
    return found, len(best)


def _shown(folder: Path, address: str) -> int:
    """Number of runs that the UI's own interface returns."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "ui",
        "--port",
        str(port),
        "--results",
        str(folder / "results-0"),
    ]
    server = subprocess.Popen(
        command,
        env={**os.environ, SHARED_DATABASE: address},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = f"http://{LOOPBACK}:{port}/ajax-api/2.0/mlflow/"
        wait_until(
            lambda: _asked(url + "experiments/search", {"max_results": 50}) is not None,
            "the MLflow UI",
            120,
        )
        experiments = _asked(url + "experiments/search", {"max_results": 50})["experiments"]
        owner = next(each["experiment_id"] for each in experiments if each["name"] == KERNEL_MODELS)
        return len(
            _asked(url + "runs/search", {"experiment_ids": [owner], "max_results": 5000})["runs"]
        )
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def _asked(url: str, body: dict) -> dict | None:
    """The answer of a server; `None` while it does not answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None
