"""Packs: the fitted kernel models and overhead statistics of a GPU that ship with Steptime.

A pack is a folder `packs/<GPU>/` with `kernels/<family>/...`, `overheads.parquet` where traces gave any, and a
manifest `pack.json`: format version, provenance, held-out errors per family, and size and SHA-256 of every file. A
pack whose files do not match its manifest is refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import PackError, SteptimeError
from pipeline.paths import packs_dir

FORMAT = 1
"""Version of the pack's layout; a reader refuses other versions."""

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
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        version = manifest["format"]
    except FileNotFoundError:
        raise PackError(f"{folder / MANIFEST}: no such pack; {remedy}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise PackError(f"{folder / MANIFEST}: not a pack manifest; {remedy}") from None
    if version != FORMAT:
        raise PackError(f"{folder / MANIFEST}: pack format {version}, this Steptime reads {FORMAT}; {remedy}")
    for name, facts in files.items():
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
            _mark(stage / "kernels" / family / "family.json")
        for table in overheads:
            shutil.copy2(table, stage / table.name)
        names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        files = {n: {"bytes": (stage / n).stat().st_size, "sha256": file_digest(stage / n)} for n in names}
        manifest = {"format": FORMAT, "gpu": gpu, "provenance": dict(provenance), "files": files}
        (stage / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        stage.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        stage.rename(target)
    except OSError as error:
        shutil.rmtree(stage, ignore_errors=True)
        raise SteptimeError(f"{target}: the pack cannot be written ({error.strerror or error})") from None
    check_pack.cache_clear()
    return target


def _mark(description: Path) -> None:
    """Say in a model's description that it ships: its predictions rest on a pack, not on a fit of this machine."""
    values = json.loads(description.read_text(encoding="utf-8"))
    text = json.dumps({**values, "evidence": "pack"}, indent=1, sort_keys=True)
    description.write_text(text + "\n", encoding="utf-8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
