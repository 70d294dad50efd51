"""The MLflow UI, started on a small database, leads to the champion among the variants of a kernel family."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from pipeline.report.mlflow_tracking import (
    KERNEL_MODELS,
    choose_champion,
    describe_kernel_models,
    log_run,
    register_model,
    variants_address,
)

OPEN_TO_ALL = {
    "MLFLOW_HOST": "0.0.0.0",
    "MLFLOW_UVICORN_OPTS": "--host 0.0.0.0",
    "UVICORN_HOST": "0.0.0.0",
    "GUNICORN_CMD_ARGS": "--bind 0.0.0.0",
    "MLFLOW_SERVER_ALLOWED_HOSTS": "*",
}
"""What an environment may say that would open the server to other machines."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tmp_path = tmp_path_factory.mktemp("ui")
    folder = tmp_path / "mlflow"
    model = tmp_path / "model"
    model.mkdir()
    (model / "family.json").write_text("{}")
    for variant, error in (("roofline", 0.2), ("average", 0.05), ("trees", 0.07)):
        best = variant == "average"
        tags = {"gpu": "V100", "family": "gemm", "variant": variant, "model": "V100-gemm", "samples": "same"}
        run = log_run(folder, KERNEL_MODELS, f"V100 gemm {variant}", params={}, metrics={"gmae": error}, tags=tags,
                      artifacts={"model": model} if best else {})  # fmt: skip
        if best:
            register_model(folder, "V100-gemm", run, "model", {"gpu": "V100", "family": "gemm"})
            choose_champion(folder, "V100-gemm", run)
    other = {"gpu": "V100", "family": "bmm", "variant": "trees", "champion": "yes"}
    log_run(folder, KERNEL_MODELS, "V100 bmm trees", params={}, metrics={"gmae": 0.01}, tags=other)
    describe_kernel_models(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = f"from pipeline.report.mlflow_tracking import serve; serve({port}, {str(folder)!r})"
    with (tmp_path / "ui.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-c", serve], stdout=log, stderr=log, start_new_session=True,
                                  env={**os.environ, **OPEN_TO_ALL})  # fmt: skip
    try:
        yield wait_for(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(300)


def wait_for(address: str) -> str:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return address
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{address} does not answer")


def test_the_server_listens_on_the_loopback_address_alone(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):  # 0.0.0.0 would answer here
        pass
    asked = urllib.request.Request(f"{address}/", headers={"Host": "elsewhere.example"})
    with pytest.raises(
        urllib.error.HTTPError, match="403"
    ):  # a page of another site that renames itself to this address
        urllib.request.urlopen(asked, timeout=10)


def test_two_clicks_lead_to_the_champion(browse: Callable[..., str], address: str) -> None:
    page = browse(
        f"{address}/#/experiments/1/runs", wait_ms=15000
    )  # the first click, or the address that `make ui` prints
    link = variants_address("1", "V100", "gemm")
    assert link.replace("&", "&amp;") in page, "the description above the runs links the variants"
    compared = browse(f"{address}/{link}", wait_ms=15000)  # the second click
    shown = re.findall(r">V100 (gemm \w+|bmm \w+)<", compared)
    assert list(dict.fromkeys(shown)) == ["gemm average", "gemm trees", "gemm roofline"], (
        "this family alone, smallest GMAE first"
    )


def test_the_models_page_names_the_champion(browse: Callable[..., str], address: str) -> None:
    page = browse(f"{address}/#/models/V100-gemm", wait_ms=20000)
    assert "V100-gemm" in page
    assert "champion" in page
