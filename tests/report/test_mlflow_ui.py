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
from dataclasses import dataclass

import pytest

from pipeline.report.mlflow_tracking import (
    KERNEL_MODELS,
    Data,
    choose_champion,
    kernel_models_page,
    log_run,
    register_model,
)
from tests.report.chromium import Page

OPEN_TO_ALL = {
    "MLFLOW_HOST": "0.0.0.0",
    "MLFLOW_UVICORN_OPTS": "--host 0.0.0.0",
    "UVICORN_HOST": "0.0.0.0",
    "GUNICORN_CMD_ARGS": "--bind 0.0.0.0",
    "MLFLOW_SERVER_ALLOWED_HOSTS": "*",
}
"""What an environment may say that would open the server to other machines."""


@dataclass(frozen=True)
class Server:
    """A running UI: its address, and the link that it printed."""

    address: str
    printed: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp_path = tmp_path_factory.mktemp("ui")
    folder = tmp_path / "mlflow"
    model = tmp_path / "model"
    model.mkdir()
    (model / "family.json").write_text("{}")
    data = Data("V100 gemm", "same", "drawn", 40)
    for variant, error in (("roofline", 0.2), ("average", 0.0512345), ("trees", 0.07)):
        best = variant == "average"
        tags = {"gpu": "V100", "family": "gemm", "variant": variant, "model": "V100-gemm", "samples": "same",
                "champion": "no"}  # fmt: skip
        figures = {"gmae": error, "gmae_percent": 100 * error, "mape_percent": 10.0, "bias_percent": -1.0,
                   "coverage_percent": 80.0, "above_floor_rows": 40.0}  # fmt: skip
        run = log_run(folder, KERNEL_MODELS, f"V100 gemm {variant}", params={}, metrics=figures, tags=tags,
                      made_by="workflow/scripts/fit_kernels.py", data=data,
                      artifacts={"model": model} if best else {})  # fmt: skip
        if best:
            register_model(folder, "V100-gemm", run, "model", {"gpu": "V100", "family": "gemm"})
            choose_champion(folder, "V100-gemm", run)
    other = {"gpu": "V100", "family": "bmm", "variant": "trees", "champion": "yes"}
    log_run(folder, KERNEL_MODELS, "V100 bmm trees", params={}, metrics={"gmae_percent": 1.0}, tags=other)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = f"from pipeline.report.mlflow_tracking import serve; serve({port}, {str(folder)!r})"
    planted = tmp_path / "current"
    planted.mkdir()
    for library in ("mlflow", "uvicorn", "fastapi", "flask"):
        (planted / f"{library}.py").write_text(f"open({str(tmp_path / 'sign')!r}, 'w').close()")
    with (tmp_path / "ui.log").open("w") as log:
        started = subprocess.Popen([sys.executable, "-P", "-c", serve], stdout=log, stderr=log, start_new_session=True,
                                   cwd=planted, env={**os.environ, **OPEN_TO_ALL})  # fmt: skip
    try:
        address = wait_for(f"http://127.0.0.1:{port}")
        (printed,) = re.findall(r"kernel models: (http://\S+)", (tmp_path / "ui.log").read_text())
        # what the line after a run says, with the UI's default port
        assert kernel_models_page(folder).partition("#")[2] == printed.partition("#")[2]
        assert not (tmp_path / "sign").exists(), "a file of the current folder took the place of a library"
        yield Server(address, printed)
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(300)


def wait_for(address: str) -> str:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return address
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{address} does not answer")


def test_the_server_listens_on_the_loopback_address_alone(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):  # 0.0.0.0 would answer here
        pass
    asked = urllib.request.Request(f"{server.address}/", headers={"Host": "elsewhere.example"})
    with pytest.raises(
        urllib.error.HTTPError, match="403"
    ):  # a page of another site that renames itself to this address
        urllib.request.urlopen(asked, timeout=10)


ROWS = """[...document.querySelectorAll('.ag-center-cols-container .ag-row')]
    .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
    .map(row => Object.fromEntries([...row.querySelectorAll('.ag-cell')]
        .sort((a, b) => a.getBoundingClientRect().left - b.getBoundingClientRect().left)
        .map(cell => [cell.getAttribute('col-id').replaceAll('`', ''), cell.innerText.trim()])))"""
"""The rows of MLflow's table: text by column, from left to right; cells of a row are in no order in the page."""


def rows(page: Page, address: str, count: int, ready: str = "tags.variant") -> list[dict[str, str]]:
    page.open(address)
    page.wait(f"(r => r.length === {count} && r.every(row => row['{ready}']))({ROWS})", seconds=180)
    found: list[dict[str, str]] = page.value(ROWS)
    return found


def test_the_printed_link_shows_the_champion_without_a_click(page: Page, server: Server) -> None:
    page.size(1280, 900)
    found = rows(page, server.printed, 4)
    assert [row["tags.variant"] for row in found] == ["trees", "average", "trees", "roofline"], "smallest error first"
    assert [row["tags.family"] for row in found] == ["bmm", "gemm", "gemm", "gemm"]
    gemm = [row for row in found if row["tags.family"] == "gemm"]
    assert [row["tags.champion"] for row in gemm] == ["yes", "no", "no"], "the champion is in the window"
    assert [row["metrics.gmae_percent"] for row in gemm] == ["5.123", "7", "20"], "rounded"


def test_every_column_is_there_in_a_wide_window_and_filled(page: Page, server: Server) -> None:
    page.size(2600, 900)
    rows(page, server.printed, 4, "attributes.Source")
    page.wait(f"{ROWS}[1]['attributes.Models'].includes('V100-gemm')")  # MLflow asks for versions after the runs
    best = page.value(ROWS)[1]
    order = [key for key in best if key.split(".")[0] in ("tags", "metrics", "attributes")]
    assert [key.split(".")[1] for key in order if not key.endswith("Run Name")][:8] == [
        "family", "gpu", "variant", "champion", "gmae_percent", "mape_percent", "bias_percent", "coverage_percent",
    ]  # fmt: skip
    assert best["attributes.Dataset"].startswith("V100 gemm")
    assert best["attributes.Source"] == "fit_kernels.py"
    assert "V100-gemm" in best["attributes.Models"]


def test_the_line_above_the_runs_links_the_variants_of_each_model(page: Page, server: Server) -> None:
    page.size(1280, 900)
    rows(page, server.printed, 4)
    links = dict(page.value("[...document.links].map(a => [a.innerText, a.href])"))
    assert {"gemm · V100", "bmm · V100"} <= links.keys()
    found = rows(page, links["gemm · V100"], 3)
    assert [row["tags.variant"] for row in found] == ["average", "trees", "roofline"], "this model alone"


def test_the_first_chart_shows_the_error_by_which_variants_are_compared(page: Page, server: Server) -> None:
    page.size(2600, 900)
    page.open(f"{server.printed}&compareRunsMode=CHART")
    titles = (
        "[...document.querySelectorAll('[data-testid^=experiment-view-compare-runs-card] h4')].map(e => e.innerText)"
    )
    page.wait(f"{titles}.length > 3", seconds=180)
    assert page.value(titles)[:4] == ["gmae_percent", "mape_percent", "bias_percent", "coverage_percent"]


def test_the_models_page_names_the_champion(browse: Callable[..., str], server: Server) -> None:
    shown = browse(f"{server.address}/#/models/V100-gemm", wait_ms=20000)
    assert "V100-gemm" in shown
    assert "champion" in shown
