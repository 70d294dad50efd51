"""Packs: the fitted kernel models and overhead statistics of a GPU that ship with Steptime.

A pack is a folder `packs/<GPU>/` with `kernels/<family>/...`, `overheads.parquet` if there were traces, and a
manifest `pack.json`. The manifest has the format version, provenance, held-out errors per family, and size and SHA-256
of every file. A pack whose files do not match its manifest is refused.

Files that ship for all GPUs also have manifests: `packs/transfer/pack.json`, and `packs/pack.json` for single files
such as `attention.json`. `evaluation/training/write_packs.py` writes packs and manifests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import PackError
from pipeline.model_files import REBUILD, RESTORE, check_format, read_json, reading
from pipeline.paths import is_checkout, packs_dir, transfer_dir

MANIFEST = "pack.json"

SHARED = "."
"""Name that `check_pack` accepts for the single files that ship for all GPUs."""

TRANSFER = transfer_dir().name
"""Name that `check_pack` accepts for the cross-GPU models, which predict GPUs without samples."""


def list_packs() -> list[str]:
    """GPUs that have a shipped pack."""
    return sorted(path.parent.name for path in packs_dir().glob(f"*/{MANIFEST}") if path.parent.name != TRANSFER)


def check_if_shipped(path: str | Path) -> None:
    """Check the pack that a file belongs to; files outside the shipped packs are not looked at.

    Raises:
        PackError: as `check_pack`.
    """
    folder = Path(path).resolve().parent
    if folder.parent == packs_dir().resolve():
        check_pack(folder.name)


def pack_models(pack: str) -> Path:
    """The folder of a pack's models, after a check of every file of the pack.

    Raises:
        PackError: as `check_pack`.
    """
    check_pack(pack)
    return packs_dir() / pack / "kernels"


def model_folders(pack: str) -> list[Path]:
    """Model folders of a pack, by family, after a check of every file of the pack.

    Raises:
        PackError: as `check_pack`.
    """
    return sorted(path for path in pack_models(pack).iterdir() if path.is_dir())


@cache
def check_pack(gpu: str) -> dict[str, Any]:
    """The manifest of a GPU's pack (or of `SHARED` or `TRANSFER`), after a check of every file against it.

    Files are read once per process.

    Raises:
        PackError: there is no pack, a file is missing, cut off or changed, or a model is not in the manifest.
    """
    folder = packs_dir() / gpu
    remedy = f"{RESTORE}, or {REBUILD}" if is_checkout() else RESTORE
    manifest = read_json(folder / MANIFEST, remedy, ("files", "format"))
    check_format(folder / MANIFEST, manifest["format"], remedy)
    with reading(folder / MANIFEST, remedy):
        for name, facts in manifest["files"].items():
            _check_file(folder, name, facts, remedy)
    for path in sorted((folder / "kernels").rglob("*")):  # models are found by their folders
        if path.is_file() and path.relative_to(folder).as_posix() not in manifest["files"]:
            raise PackError(f"{path}: not in {folder / MANIFEST}; delete it")
    return manifest


def _check_file(folder: Path, name: str, facts: Mapping[str, Any], remedy: str) -> None:
    """Check a file of a pack against its entry in the manifest.

    Raises:
        PackError: the file is missing, damaged, or outside the pack.
    """
    path = folder / name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise PackError(f"{folder / MANIFEST}: {name!r} is outside the pack; {remedy}")
    if not path.is_file():
        raise PackError(f"{path}: missing from the pack; {remedy}")
    if path.stat().st_size != facts["bytes"] or file_digest(path) != facts["sha256"]:
        raise PackError(f"{path}: damaged ({path.stat().st_size} bytes, {facts['bytes']!r} expected); {remedy}")


def shipped_file(pack: str, name: str) -> Path | None:
    """Path of a file of `SHARED` or `TRANSFER`, after a check of its folder; None if the file does not ship.

    Raises:
        PackError: a file of that folder is missing, cut off or changed, or this one is not in the manifest.
    """
    folder = packs_dir() / pack
    path = folder / name
    if not path.is_file() and not (folder / MANIFEST).is_file():
        return None
    if name in check_pack(pack)["files"]:
        return path
    if path.is_file():
        raise PackError(f"{path}: not in {folder / MANIFEST}; {RESTORE}")
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
