"""The line below the table names files that exist."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.prediction import Prediction
from pipeline.report.mlflow_tracking import serve


@pytest.fixture
def prediction() -> Prediction:
    evidence = {"pack": 1.0}
    return Prediction(
        "V100", "dlrm_ddp", "default", 64, 4e3, 3e3, 3e3, 3e3, 5e3, 1 << 30, True, evidence, evidence, 0.0
    )


def test_artifacts_of_a_grid_lie_under_the_results_and_not_under_the_grid(
    tmp_path: Path, prediction: Prediction
) -> None:
    point, grid = tmp_path / "V100" / "dlrm_ddp" / "default" / "b64", tmp_path / "grids" / "one"
    point.mkdir(parents=True)
    grid.mkdir(parents=True)
    assert artifact_paths([prediction], grid)["artifacts"] == artifact_paths([prediction], tmp_path)["artifacts"] == str(point)


def test_no_place_is_named_that_is_not_there(tmp_path: Path, prediction: Prediction) -> None:
    assert artifact_paths([prediction], tmp_path) == {}


def test_a_port_that_cannot_be_had_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for port in (-1, 99999999, other.getsockname()[1]):
            with pytest.raises(InputError, match=f"--port {port}: "):
                serve(port, tmp_path)
