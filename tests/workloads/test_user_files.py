"""Which files of the user's shape a workload: an edit to one of them must make the graph anew, one beside them not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.paths import project_dir
from pipeline.workloads.workload_files import file_digests
from tests.commands import python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_module_counts_with_what_it_imports_from_its_folder(folder: Path) -> None:
    write(
        folder,
        mine="import torch, layers\nfrom pipeline.workloads.training_step import Step\n",
        layers="import mine\n",
        other="WIDTH = 2\n",
    )
    before = file_digests({"target": "mine:make_step"})
    assert sorted(before) == ["layers.py", "mine.py"]
    write(folder, other="WIDTH = 3\n")
    assert file_digests({"target": "mine:make_step"}) == before
    write(folder, layers="WIDTH = 4\n")
    assert file_digests({"target": "mine:make_step"}) != before


def test_a_package_counts_module_by_module_through_relative_imports(folder: Path) -> None:
    write(
        folder,
        nets__init="",
        nets__steps="def make():\n    from . import blocks\n    from .deep.head import Head\n",
        nets__blocks="",
        nets__deep__head="from ..blocks import Block",
        nets__unused="",
    )
    (folder / "nets" / "init.py").rename(folder / "nets" / "__init__.py")
    found = file_digests({"target": "nets.steps:make"})
    assert sorted(found) == [
        "nets/__init__.py",
        "nets/blocks.py",
        "nets/deep/head.py",
        "nets/steps.py",
    ]


def test_the_file_of_tables_counts(folder: Path) -> None:
    shipped = file_digests({"table_configs": "config/model/tables_example.json"})
    assert len(shipped) == 1
    (folder / "mine.json").write_text("[]")
    (own,) = file_digests({"table_configs": "mine.json"}).values()
    assert [own] != list(shipped.values())
    assert (project_dir() / "config/model/tables_example.json").is_file()


def test_nothing_is_imported_and_what_is_missing_is_left_to_the_builder(folder: Path) -> None:
    write(folder, mine="raise SystemExit('imported')\n", broken="def (:\n")
    assert len(file_digests({"target": "mine:make_step"})) == 1
    assert len(file_digests({"target": "broken:make_step"})) == 1
    assert file_digests({"target": "no_such_module:make_step"}) == {}
    assert file_digests({"target": ":make_step", "table_configs": "missing.json"}) == {}
    assert file_digests({"name": "dlrm_default"}) == {}


def test_a_file_of_the_current_folder_does_not_stand_in_for_a_library(tmp_path: Path) -> None:
    """In a process of its own, whose first prediction imports libraries after the user's module."""
    ran = "open('ran', 'a').write(__name__)\nraise RuntimeError('this file is not the library')\n"
    for name in ("json", "yaml", "decimal", "scipy", "torchvision", "lightgbm"):
        (tmp_path / f"{name}.py").write_text(ran)
    (tmp_path / "sizes_of_mine.py").write_text("WIDTH = 8\n")
    (tmp_path / "step_of_mine.py").write_text(
        "import json, decimal, yaml\n"
        "import torch\n"
        "from pipeline.workloads.training_step import Step\n"
        "def make_step(config, batch_size, device):\n"
        "    from sizes_of_mine import WIDTH\n"  # a sibling, imported late
        "    layer = torch.nn.Linear(WIDTH, WIDTH, device=device)\n"
        "    inputs = (torch.rand(batch_size, WIDTH),)\n"
        "    return Step([layer], [inputs], layer, lambda y, *_: y.sum(), device, config)\n"
    )
    script = (
        "import sys; sys.path[:] = [p for p in sys.path if p]\n"  # as the commands: `python -c` puts the folder first itself
        "from pipeline import predict\n"
        "found = predict('V100', model='custom', batch_size=4,"
        " model__target='step_of_mine:make_step')\n"
        "assert found.predicted_us > 0\n"
        "import lightgbm, scipy\n"
    )
    done = python(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
