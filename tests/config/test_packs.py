"""Shipped packs are complete and undamaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import packs
from pipeline.errors import PackError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packs, "packs_dir", lambda: tmp_path)
    packs.check_pack.cache_clear()
    model = tmp_path / "made" / "gemm"
    model.mkdir(parents=True)
    (model / "family.json").write_text('{"family": "gemm"}')
    (model / "weights.safetensors").write_bytes(bytes(range(200)))
    (model / "test_predictions.parquet").write_bytes(b"large, not shipped")
    return packs.build_pack("V100", {"gemm": model}, [], {"source": "test"})


def test_a_pack_holds_models_and_manifest_and_nothing_else(folder: Path) -> None:
    assert packs.check_pack("V100")["provenance"] == {"source": "test"}
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"pack.json", "kernels/gemm/family.json", "kernels/gemm/weights.safetensors"}


@pytest.mark.parametrize("keep", [0, 1, 100, 199])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "kernels/gemm/weights.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PackError, match=r"weights\.safetensors: damaged"):
        packs.check_pack("V100")


def test_a_changed_byte_is_found(folder: Path) -> None:
    path = folder / "kernels/gemm/weights.safetensors"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(PackError, match="damaged"):
        packs.check_pack("V100")


def test_a_missing_file_and_a_broken_manifest_are_named(folder: Path) -> None:
    (folder / "kernels/gemm/family.json").unlink()
    with pytest.raises(PackError, match=r"family\.json: missing"):
        packs.check_pack("V100")
    (folder / "pack.json").write_text('{"format": 1')
    with pytest.raises(PackError, match=r"pack\.json: not readable"):
        packs.check_pack("V100")
    (folder / "pack.json").write_text('{"format": 99, "files": {}}')
    with pytest.raises(PackError, match="format 99"):
        packs.check_pack("V100")


def test_every_shipped_pack_is_whole() -> None:
    packs.check_pack.cache_clear()
    for gpu in packs.list_packs():
        assert packs.check_pack(gpu)["gpu"] == gpu
