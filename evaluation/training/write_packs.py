"""Writes what ships: the pack of a GPU, files for all GPUs, and the manifests that list them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.errors import SteptimeError
from pipeline.kernels.fused_attention import FittedAttention
from pipeline.model_files import (
    FORMAT,
    MANIFEST,
    RESTORE,
    check_pack,
    file_digest,
    read_json,
    write_json,
)
from pipeline.paths import packs_dir


def write_by_gpu(path: Path, gpus: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Write the numbers that were fitted on several GPUs as one JSON file."""
    write_json(path, {"format": FORMAT, "provenance": provenance, "gpus": gpus})


def write_fitted(
    path: Path, fitted: Mapping[str, FittedAttention], provenance: Mapping[str, Any]
) -> None:
    """Write the constants fitted on several GPUs as JSON, and add the file to its folder's manifest."""
    write_by_gpu(path, {gpu: asdict(found) for gpu, found in fitted.items()}, provenance)
    record_file(path)


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
            shutil.copytree(
                source, stage / "kernels" / family, ignore=shutil.ignore_patterns("*.parquet", ".*")
            )
            description = stage / "kernels" / family / "family.json"
            # predictions use a pack, not a fit of this machine
            values = read_json(description, remedy="fit the family again")
            write_json(description, {**values, "evidence": "pack"}, sealed=True)
        for table in overheads:
            shutil.copy2(table, stage / table.name)
        names = sorted(
            path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()
        )
        files = {
            n: {"bytes": (stage / n).stat().st_size, "sha256": file_digest(stage / n)}
            for n in names
        }
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
