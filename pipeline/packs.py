"""Packs: the fitted kernel models and overhead statistics of a GPU that ship with Steptime.

A pack is a folder `packs/<GPU>/` with `kernels/<family>/...`, `overheads.parquet` where traces gave any, and a
manifest `pack.json`: format version, provenance, held-out errors per family, and size and SHA-256 of every file. A
pack whose files do not match its manifest is refused.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import PackError, SteptimeError
from pipeline.model_files import FORMAT, check_format, read_json, write_json
from pipeline.paths import packs_dir

MANIFEST = "pack.json"


def list_packs() -> list[str]:
    """GPUs that have a shipped pack."""
    return sorted(path.parent.name for path in packs_dir().glob(f"*/{MANIFEST}"))


def model_folders(pack: str) -> list[Path]:
    """Model folders of a pack, by family."""
    return sorted(path for path in (packs_dir() / pack / "kernels").iterdir() if path.is_dir())


@cache
def check_pack(gpu: str) -> dict[str, Any]:
    """The manifest of a GPU's pack, after every file was compared with it.

    Raises:
        PackError: there is no pack, or a file is missing, cut off or changed.
    """
    folder = packs_dir() / gpu
    remedy = "restore it with `git checkout packs`, or rebuild it with `make packs`"
    manifest = read_json(folder / MANIFEST, remedy, ("files", "format"))
    check_format(folder / MANIFEST, manifest["format"], remedy)
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise PackError(f"{path}: missing from the pack; {remedy}")
        if path.stat().st_size != facts["bytes"] or file_digest(path) != facts["sha256"]:
            raise PackError(f"{path}: damaged ({path.stat().st_size} bytes, {facts['bytes']} expected); {remedy}")
    return manifest


def build_pack(
    gpu: str,
    models: Mapping[str, Path],
    overheads: Sequence[Path],
    provenance: Mapping[str, Any],
    out: Path | None = None,
) -> Path:
    """Assemble the pack of a GPU, replacing the one that is there, completely or not at all.

    Args:
        gpu: canonical GPU name.
        models: model folder by kernel family.
        overheads: `overheads.parquet` and the like, copied under their own names; may be empty.
        provenance: what the pack was made from (data set, commit, licence, code digest).
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
            # predictions rest on a pack, not on a fit of this machine
            write_json(description, {**read_json(description, remedy="fit the family anew"), "evidence": "pack"})
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
