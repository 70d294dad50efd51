"""What a wheel installs predicts on its own, from any folder."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.answers.engine import engine
from pipeline.question.question import expand

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package and its data laid out as `pyproject.toml` tells the wheel's builder."""
    target = tmp_path_factory.mktemp("site")
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    pieces = {**{name: name for name in wheel["packages"]}, **wheel["force-include"]}
    for source, place in pieces.items():
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source, target / place, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / source, target / place)
    return target


@pytest.mark.parametrize("model", ["dlrm_open_source"])  # reads a file beside its configuration
def test_an_installed_package_predicts_from_packs_alone(installed, tmp_path, model, monkeypatch):
    script = "import sys; from pipeline.cli import main; sys.argv[0] = 'steptime'; main()"
    environment = {
        "PYTHONPATH": str(installed),
        "STEPTIME_DATASETS": "none",
        "PATH": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "predict",
            "gpu=T4",
            f"model={model}",
            "batch_size=512",
            "--json",
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    here = (
        engine(tmp_path / "none")
        .predict_one(expand(["gpu=T4", f"model={model}", "batch_size=512"])[0])
        .whole()
    )
    assert found["predicted_us"] == pytest.approx(here.predicted_us, rel=1e-6)
    assert found["evidence"]["pack"] > 0.5
