"""Packs: the fitted kernel models and overhead statistics of a GPU that ship with Steptime.

A pack is a folder `packs/<GPU>/` with `kernels/<family>/...`, `overheads.parquet` if there were traces, and a
manifest `pack.json`. The manifest has the format version, provenance, held-out errors per family, and size and SHA-256
of every file. A pack whose files do not match its manifest is refused.

Files that ship for all GPUs also have manifests: `packs/transfer/pack.json`, and `packs/pack.json` for single files
such as `attention.json`. The code that writes a file also adds it to the manifest (`record_file`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import PackError, SteptimeError
from pipeline.model_files import FORMAT, REBUILD, RESTORE, check_format, read_json, reading, write_json
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


def record_file(path: Path, *, new: bool = True) -> None:
    """Add a file that was just written to the manifest of its folder.

    Args:
        path: the file.
        new: whether to create a manifest if the folder has none.
    """
    if not new and not (path.parent / MANIFEST).is_file():
        return
    with _locked(path.parent):
        manifest_path = path.parent / MANIFEST
        digests = read_json(manifest_path, RESTORE)["files"] if manifest_path.is_file() else {}
        facts = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        manifest = {"format": FORMAT, "files": {**digests, path.name: facts}}
        write_json(manifest_path, manifest)
    check_pack.cache_clear()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context in which no other process adds files to the folder's manifest."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def build_pack(
    gpu: str,
    models: Mapping[str, Path],
    overheads: Sequence[Path],
    provenance: Mapping[str, Any],
    out: Path | None = None,
) -> Path:
    """Build the pack of a GPU. It replaces an existing pack completely or not at all.

    Args:
        gpu: canonical GPU name.
        models: model folder by kernel family.
        overheads: overhead files such as `overheads.parquet`, copied under their own names; may be empty.
        provenance: sources of the pack (data set, commit, licence, code digest).
        out: folder of the pack; default `packs/<GPU>`.

    Returns:
        The pack's folder.
    """
    target = packs_dir() / gpu if out is None else Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{gpu}.", dir=target.parent))
    try:
        for family, source in sorted(models.items()):
            shutil.copytree(source, stage / "kernels" / family, ignore=shutil.ignore_patterns("*.parquet", ".*"))
            description = stage / "kernels" / family / "family.json"
            # predictions use a pack, not a fit of this machine
            values = read_json(description, remedy="fit the family again")
            write_json(description, {**values, "evidence": "pack"}, sealed=True)
        for table in overheads:
            shutil.copy2(table, stage / table.name)
        names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        files = {n: {"bytes": (stage / n).stat().st_size, "sha256": file_digest(stage / n)} for n in names}
        manifest = {"format": FORMAT, "gpu": gpu, "provenance": dict(provenance), "files": files}
        write_json(stage / MANIFEST, manifest)
        stage.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        stage.rename(target)
    except (OSError, SteptimeError) as error:
        shutil.rmtree(stage, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise SteptimeError(f"{target}: the pack cannot be written ({reason})") from None
    check_pack.cache_clear()
    return target


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
