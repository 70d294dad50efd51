"""Shipped packs are complete and undamaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.training import write_packs
from pipeline import model_files as packs
from pipeline.errors import PackError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (packs, write_packs):
        monkeypatch.setattr(module, "packs_dir", lambda: tmp_path)
    packs.check_pack.cache_clear()
    model = tmp_path / "made" / "gemm"
    model.mkdir(parents=True)
    (model / "family.json").write_text('{"family": "gemm"}')
    (model / "weights.safetensors").write_bytes(bytes(range(200)))
    (model / "test_predictions.parquet").write_bytes(b"large, not shipped")
    return write_packs.build_pack("V100", {"gemm": model}, [], {"source": "test"})


def is_refused(words: str) -> None:
    with pytest.raises(PackError, match=words):
        packs.check_pack("V100")


def name_in_manifest(folder: Path, name: str, entry: Any) -> None:
    values = json.loads((folder / "pack.json").read_text())
    values["files"][name] = entry
    (folder / "pack.json").write_text(json.dumps(values))


def test_a_pack_holds_models_and_manifest_and_nothing_else(folder: Path) -> None:
    assert packs.check_pack("V100")["provenance"] == {"source": "test"}
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"pack.json", "kernels/gemm/family.json", "kernels/gemm/weights.safetensors"}


@pytest.mark.parametrize("keep", [0, 199])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "kernels/gemm/weights.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    is_refused(r"weights\.safetensors: damaged")


def test_a_missing_file_and_a_broken_manifest_are_named(folder: Path) -> None:
    (folder / "kernels/gemm/family.json").unlink()
    is_refused(r"family\.json: missing")
    (folder / "pack.json").write_text('{"format": 1')
    is_refused(r"pack\.json: not readable")
    (folder / "pack.json").write_text('{"format": 99, "files": {}}')
    is_refused("format 99")


@pytest.mark.parametrize("entry", [None, [], {"bytes": 3}, {"bytes": "200", "sha256": None}])
def test_an_entry_of_a_manifest_that_is_none_is_refused(folder: Path, entry: Any) -> None:
    name_in_manifest(folder, "kernels/gemm/weights.safetensors", entry)
    is_refused(r"pack\.json|weights\.safetensors")


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "kernels/../../outside"])
def test_a_manifest_that_names_files_elsewhere_is_refused(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    outside.write_text("x")
    name_in_manifest(folder, name, {"bytes": 1, "sha256": packs.file_digest(outside)})
    is_refused("outside the pack")
