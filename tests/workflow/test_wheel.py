"""The wheel holds all that a command needs, works from an empty folder, and has the same bytes wherever it is built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.paths import project_dir

ROOT = project_dir()
SHIPPED = ("config", "packs", "profiles", "workflow")
POINT = ("gpu=V100", "model=dlrm_small", "batch_size=64")


def build(source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel, without the checkout around them."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def steptime(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "STEPTIME_DATASETS": "none"}
    command = [sys.executable, "-m", "steptime", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def files_of(folder: Path) -> set[str]:
    every = (
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(ROOT).as_posix() for path in every if not path.name.startswith(".")}


def test_every_file_that_a_command_needs_is_in_the_wheel(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    data = {"Snakefile"} | set().union(*(files_of(ROOT / name) for name in SHIPPED))
    assert {f"pipeline/_data/{name}" for name in data} | files_of(ROOT / "pipeline") | files_of(
        ROOT / "steptime"
    ) <= held
    assert len({name.split("/")[0] for name in held}) == 3, "two packages and what is said of them"


def test_a_wheel_has_the_same_bytes_whatever_the_folder_the_times_and_the_rights(
    wheel: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    copy.mkdir()
    for name in (*SHIPPED, "pipeline", "steptime"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored, copy_function=shutil.copyfile)
    for name in ("Snakefile", "pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copyfile(ROOT / name, copy / name)
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert build(copy, tmp_path / "dist").read_bytes() == wheel.read_bytes()


def test_an_installed_prediction_is_that_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    ours, theirs = (
        steptime(place, tmp_path, "predict", *POINT, "--json") for place in (ROOT, installed)
    )
    assert (theirs.returncode, theirs.stderr) == (0, "")
    told, expected = json.loads(theirs.stdout), json.loads(ours.stdout)
    assert told.pop("models_from") == [
        str(installed / "pipeline/_data/packs/V100")
    ] and expected.pop("models_from")
    assert told == expected
    assert not list(tmp_path.iterdir()), "a prediction writes nothing"


@pytest.mark.nightly
def test_the_pipeline_runs_from_an_empty_folder_and_its_report_leaves_accuracy_out(
    installed: Path, tmp_path: Path
) -> None:
    words = ("run", "all", "report", *POINT, "model.optimizer=adam", "--cores", "2")
    done = steptime(installed, tmp_path, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "dlrm_small on V100, batch 64" in done.stdout
    (page,) = (tmp_path / "results" / "V100").rglob("timeline.html")
    assert "optimizer-adam" in page.parts and "dlrm_small on V100, batch 64" in page.read_text(
        encoding="utf-8"
    )
    (page,) = (tmp_path / "results" / "reports").glob("*.html")
    text = page.read_text(encoding="utf-8")
    assert 'id="explore-data"' in text
    assert "What is missing" not in text and "<h2>Accuracy</h2>" not in text, (
        "errors need a checkout"
    )


def test_a_target_that_needs_a_checkout_says_so_in_one_line(
    installed: Path, tmp_path: Path
) -> None:
    done = steptime(installed, tmp_path, "run", "accuracy", *POINT, "--cores", "2")
    lines = [line for line in done.stderr.splitlines() if line.startswith("steptime: ")]
    assert done.returncode != 0 and len(lines) == 1
    assert lines[0].startswith("steptime: accuracy needs a checkout of Steptime")
    assert lines[0] in done.stderr.splitlines()[-6:]


def test_a_damaged_pack_of_an_installation_names_a_remedy_that_is_at_hand(
    installed: Path, tmp_path: Path
) -> None:
    file = installed / "pipeline/_data/packs/V100/kernels/gemm/networks.safetensors"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-1])
        done = steptime(installed, tmp_path, "predict", *POINT)
    finally:
        file.write_bytes(whole)
    assert (
        done.returncode != 0
        and "damaged" in done.stderr
        and done.stderr.endswith("install Steptime again\n")
    )
