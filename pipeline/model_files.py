"""Reads and writes files of fitted models: JSON, and arrays as safetensors with JSON in their metadata.

A file is written completely or not at all. Any fault of a file that is read becomes a `PackError` of one line, which
names the file and says what to do.

Packs are the fitted kernel models and overhead statistics of a GPU that ship with Steptime: a folder `packs/<GPU>/` with
`kernels/<family>/...`, `overheads.parquet` if there were traces, and a manifest `pack.json`. The manifest has the format
version, provenance, held-out errors per family, and size and SHA-256 of every file. A pack whose files do not match its
manifest is refused. Files that ship for all GPUs have manifests too: `packs/transfer/pack.json`, and `packs/pack.json` for
single files such as `attention.json`. `evaluation/training/write_packs.py` writes packs and manifests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError, SteptimeError, first_line
from pipeline.paths import is_checkout, packs_dir, transfer_dir
from pipeline.schemas import atomic_path, write_text

FORMAT = 1
"""Format version of these files; readers refuse other versions. Arrays without a version have version 1."""

FORMAT_KEY = "steptime_format"
"""Key of the format version in the metadata of arrays (`format` has another meaning in safetensors files)."""

DIGEST_KEY = "steptime_sha256"
"""Key of a SHA-256: of arrays in their metadata, of a sealed JSON object's other values. Older files have none."""

RESTORE = "restore it with `git checkout packs`" if is_checkout() else "install Steptime again"
REBUILD = "rebuild with `make packs`" if is_checkout() else RESTORE

Arrays = Mapping[str, npt.NDArray[Any]]

Shapes = dict[str, tuple[int | str, ...]]
"""Expected shapes of arrays by name. An axis is a size, or a name that stands for the same size in all arrays."""

T = TypeVar("T")


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Context for reading a file and using its contents: errors become a `PackError` with the file and the remedy."""
    try:
        yield
    except PackError as error:
        raise (error if str(path) in str(error) else PackError(f"{path}: {error}")) from None
    except KeyError as error:
        raise PackError(f"{path}: {error.args[0]!r} is missing; {remedy}") from None
    except (
        OSError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise PackError(f"{path}: not readable ({first_line(error)}); {remedy}") from None


def write_json(path: Path, values: Mapping[str, Any], sealed: bool = False) -> None:
    """Write an object as indented JSON.

    A sealed object has its SHA-256 in it, which `read_json` checks. It keeps the order of its keys: to Snakemake, a
    configuration from the cache must look like a composed one.
    """
    if sealed:
        values = json.loads(json.dumps(values, default=str))
        values = {**values, DIGEST_KEY: _values_digest(values)}
    text = json.dumps(values, indent=1, sort_keys=not sealed, default=str)
    write_text(path, f"{text}\n")


def read_json(path: Path, remedy: str, keys: Iterable[str] = ()) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        PackError: the file is missing or damaged, is not a JSON object, or lacks one of `keys`.
    """
    with reading(path, remedy):
        values = dict(json.loads(path.read_text(encoding="utf-8")))
        missing = [key for key in keys if key not in values]
        if missing:
            raise PackError(f"{path}: {', '.join(missing)} is missing; {remedy}")
        if values.pop(DIGEST_KEY, None) not in (None, _values_digest(values)):
            raise PackError(
                f"{path}: damaged: its values are not those that were written; {remedy}"
            )
        return values


def check_format(path: Path, version: object, remedy: str) -> None:
    """Raise a `PackError` for a file of another format version."""
    if version != FORMAT:
        raise PackError(f"{path}: format {version}, this Steptime reads {FORMAT}; {remedy}")


def read_by_gpu(path: Path, build: Callable[[Any], T]) -> dict[str, T]:
    """Read each GPU's numbers and return what `build` makes of them, by GPU.

    Raises:
        PackError: the file is missing or damaged, or has another format version.
    """
    values = read_json(path, RESTORE, ("format", "gpus"))
    check_format(path, values["format"], RESTORE)
    with reading(path, RESTORE):
        return {str(gpu): build(found) for gpu, found in values["gpus"].items()}


def write_arrays(path: Path, arrays: Arrays, metadata: Mapping[str, Any] | None = None) -> None:
    """Write arrays as one safetensors file, with JSON values by name in its metadata.

    Raises:
        SteptimeError: an array holds NaN or infinite values, or the file cannot be written.
    """
    from safetensors.numpy import save

    if bad := _not_finite(arrays):
        raise SteptimeError(
            f"{path}: not written, because array {bad!r} has NaN or infinite values; refit the"
            " model"
        )
    facts = {**(metadata or {}), FORMAT_KEY: FORMAT, DIGEST_KEY: _digest(arrays)}
    texts = {key: json.dumps(value, sort_keys=True) for key, value in facts.items()}
    content = save(
        {key: np.ascontiguousarray(value) for key, value in arrays.items()}, metadata=texts
    )
    with atomic_path(path) as part:
        part.write_bytes(_with_sorted_header(content))


def _with_sorted_header(content: bytes) -> bytes:
    """A safetensors file with its header sorted: the library writes the metadata in another order each time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(
        json.loads(content[8:end]),
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


def read_arrays(path: Path, remedy: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays of a safetensors file, and its metadata.

    Raises:
        PackError: the file is missing, damaged or changed, has another format version, or holds NaN or infinite values.
    """
    from safetensors import SafetensorError, safe_open

    with reading(path, remedy):
        try:
            with safe_open(path, framework="np") as file:
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
                metadata = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
        except SafetensorError as error:
            raise ValueError(str(error)) from None
    check_format(path, metadata.pop(FORMAT_KEY, FORMAT), remedy)
    if metadata.pop(DIGEST_KEY, None) not in (None, _digest(arrays)):
        raise PackError(f"{path}: damaged: its numbers are not those that were written; {remedy}")
    if bad := _not_finite(arrays):
        raise PackError(f"{path}: array {bad!r} has NaN or infinite values; {remedy}")
    return arrays, metadata


def layer_shapes(
    widths: Sequence[int | str], prefix: str = "", before: tuple[int | str, ...] = ()
) -> Shapes:
    """Shapes of `weight0`, `bias0`... of layers with these widths; every shape starts with the axes `before`."""
    shapes: Shapes = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        shapes |= {
            f"{prefix}weight{i}": (*before, inputs, outputs),
            f"{prefix}bias{i}": (*before, outputs),
        }
    return shapes


def check_shapes(what: str, arrays: Arrays, shapes: Shapes) -> dict[str, int]:
    """Check that `arrays` are floating-point and have consistent `shapes`; `what` names the model in the error.

    Returns:
        The size of each named axis.

    Raises:
        PackError: an array is missing, has another shape, or is not floating-point.
    """
    sizes: dict[str, int] = {}
    for name, expected in shapes.items():
        if name not in arrays:
            raise PackError(f"array {name!r} of the {what} is missing; rebuild the model")
        found = arrays[name].shape
        if arrays[name].dtype.kind != "f":
            raise PackError(
                f"{what}: array {name!r} has dtype {arrays[name].dtype}, not floating-point"
                " numbers; rebuild the model"
            )
        named = zip(expected, found, strict=False)
        known = tuple(
            sizes.setdefault(axis, size) if isinstance(axis, str) else axis for axis, size in named
        )
        if len(found) != len(expected) or found != known:
            wanted = ", ".join(
                str(sizes.get(axis, axis) if isinstance(axis, str) else axis) for axis in expected
            )
            raise PackError(
                f"arrays of the {what} have sizes that contradict each other: {name!r} is {found},"
                f" not ({wanted}); rebuild it"
            )
    return sizes


def _values_digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(arrays: Arrays) -> str:
    """SHA-256 over names, types, shapes and numbers of arrays."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _not_finite(arrays: Arrays) -> str | None:
    """The first array with NaN or infinite values; None if there is none."""
    return next((name for name, array in arrays.items() if not np.isfinite(array).all()), None)


MANIFEST = "pack.json"

SHARED = "."
"""Name that `check_pack` accepts for the single files that ship for all GPUs."""

HALF = "half"
"""Folder of the packs of bf16 products, one for each GPU."""

TRANSFER = transfer_dir().name
"""Name that `check_pack` accepts for the cross-GPU models, which predict GPUs without samples."""


def list_packs(folder: str = "") -> list[str]:
    """GPUs that have a shipped pack; in the folder `HALF`, one of bf16 products."""
    return sorted(
        path.parent.name
        for path in (packs_dir() / folder).glob(f"*/{MANIFEST}")
        if path.parent.name != TRANSFER
    )


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


def list_model_folders() -> list[Path]:
    """Folders of all shipped models, those of half precision included, after a check of every pack.

    Raises:
        PackError: as `check_pack`.
    """
    packs = sorted(
        path.parent.relative_to(packs_dir()).as_posix() for path in packs_dir().glob("**/kernels")
    )
    return [folder for pack in packs for folder in model_folders(pack)]


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
    """Check a file of a pack against its entry in the manifest."""
    path = folder / name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise PackError(f"{folder / MANIFEST}: {name!r} is outside the pack; {remedy}")
    if not path.is_file():
        raise PackError(f"{path}: missing from the pack; {remedy}")
    if path.stat().st_size != facts["bytes"] or file_digest(path) != facts["sha256"]:
        raise PackError(
            f"{path}: damaged ({path.stat().st_size} bytes, {facts['bytes']!r} expected); {remedy}"
        )


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
