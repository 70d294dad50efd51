"""GPUs of the user: found by name in a folder, or given by the path of their file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.errors import InputError
from pipeline.paths import config_dir
from pipeline.question import compose
from pipeline.question.question import expand
from tests.commands import python


def _own_gpu(file: Path, **figures: object) -> Path:
    """A copy of the A10's file as a user makes one: another name, no aliases, some figures changed."""
    values = yaml.safe_load((config_dir() / "gpu" / "A10.yaml").read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({**values, "aliases": [], **figures, "name": file.stem}))
    return file


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder of configuration, empty at first."""
    monkeypatch.setenv("STEPTIME_CONFIG", str(tmp_path / "mine"))
    monkeypatch.setenv("STEPTIME_GIVEN_FILES", "")
    compose.forget()
    yield tmp_path / "mine"
    compose.forget()


def test_a_gpu_of_the_users_folder_is_found_like_a_shipped_one(own_files: Path) -> None:
    _own_gpu(own_files / "gpu" / "My-GPU.yaml", dram_gb_per_s=777, aliases=["NVIDIA Mine"])
    for name in ("My-GPU", "mygpu", "NVIDIA-Mine"):
        (point,) = expand([f"gpu={name}"])
        assert (point.gpu.name, point.gpu.dram_gb_per_s, point.altered) == ("My-GPU", 777, False)
    (altered,) = expand(["gpu=My-GPU", "gpu.dram_gb_per_s=700"])
    assert altered.gpu.dram_gb_per_s == 700 and altered.altered
    assert [point.gpu.name for point in expand(["gpu=glob([My*,T4])"])] == ["My-GPU", "T4"]


def test_a_gpu_file_of_the_user_counts_before_a_shipped_one(own_files: Path) -> None:
    _own_gpu(own_files / "gpu" / "T4.yaml", dram_gb_per_s=321)
    _own_gpu(own_files / "gpu" / "Other.yaml", aliases=["V100", "A100"])
    assert expand(["gpu=Tesla-T4"])[0].gpu.dram_gb_per_s == 321
    assert [expand([f"gpu={name}"])[0].gpu.name for name in ("V100", "A100")] == ["V100", "Other"]
    _own_gpu(own_files / "gpu" / "X 1.yaml")
    compose.forget()
    with pytest.raises(InputError, match="give it letters, digits, - and _ alone"):
        expand(["gpu=X1"])


def test_a_gpu_given_by_path_is_known_by_its_name_here_and_in_jobs(
    own_files: Path, tmp_path: Path
) -> None:
    file = _own_gpu(tmp_path / "H900.yaml", dram_gb_per_s=5000)
    assert [point.gpu.name for point in expand([f"gpu={file},T4"])] == ["H900", "T4"]
    job = "from pipeline.hardware.find_gpu import load_gpu; print(load_gpu('H900').dram_gb_per_s)"
    assert python(job).stdout == "5000.0\n"
    _own_gpu(file, dram_gb_per_s=6000)
    assert expand(["gpu=H900"])[0].gpu.dram_gb_per_s == 6000  # edited meanwhile
    file.unlink()
    compose.forget()
    assert expand(["gpu=T4"])[0].gpu.name == "T4"


@pytest.mark.parametrize(
    "text, message",
    [
        ("name: Bad\nsms: 3", "Bad.yaml: architecture, .* is missing"),
        ("a: [", "Bad.yaml: not readable as YAML"),
        (None, "Bad.yaml: no such file"),
    ],
)
def test_a_damaged_file_given_by_path_is_one_line_and_forgotten(
    own_files: Path, tmp_path: Path, text, message
) -> None:
    if text is not None:
        (tmp_path / "Bad.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        expand([f"gpu={tmp_path / 'Bad.yaml'}"])
    assert expand(["gpu=T4"])[0].gpu.name == "T4"
