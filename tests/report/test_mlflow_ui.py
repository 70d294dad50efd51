"""The MLflow UI, started on a small database, shows the champion among the variants of a kernel family."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.report.tracking import initialise, log_run, register_champion


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "mlflow"
    initialise(folder)
    model = tmp_path / "model"
    model.mkdir()
    (model / "family.json").write_text("{}")
    for variant, error in (("roofline", 0.2), ("average", 0.05)):
        best = variant == "average"
        tags = {"gpu": "V100", "family": "gemm", "variant": variant, "champion": "yes" if best else "no"}
        run = log_run(folder, "kernel models", f"V100 gemm {variant}", params={}, metrics={"gmae": error}, tags=tags,
                      artifacts={"model": model} if best else {})  # fmt: skip
        if best:
            register_champion(folder, "V100-gemm", run, "model", {"gpu": "V100", "family": "gemm"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = f"from pipeline.report.tracking import serve; serve({port}, {str(folder)!r})"
    with (tmp_path / "ui.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-c", serve], stdout=log, stderr=log, start_new_session=True)
    try:
        yield wait_for(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def wait_for(address: str) -> str:
    for _ in range(180):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return address
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{address} does not answer")


def test_the_models_page_names_the_champion(browse: Callable[..., str], address: str) -> None:
    page = browse(f"{address}/#/models/V100-gemm", wait_ms=20000)
    assert "V100-gemm" in page
    assert "champion" in page
