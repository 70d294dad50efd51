"""Which files of the user's shape a workload: an edit to one of them must make the graph anew, one beside them not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.paths import project_dir
from pipeline.workloads.workload_files import file_digests


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
