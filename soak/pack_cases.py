"""Damaged packs: a changed byte in any file that a manifest lists is refused, whoever reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from pipeline import model_files as packs
from pipeline.answers.engine import engine
from pipeline.answers.kernel_commands import predict_command
from pipeline.question.question import expand
from soak.damage import VALUES, damaged, json_bytes, reordered, strange_json
from soak.table_cases import calls
from soak.verdicts import Case, difference
from soak.workplace import in_project, own_copy, project_copy

OWN, ELSEWHERE, HALF = "V100", "H100", "H200"
"""A GPU with a pack, one without, and one with a pack of products in half precision."""


@dataclass(frozen=True)
class Base:
    """What the undamaged packs give to each reader, and a table of calls."""

    table: Path
    truth: dict[str, Any]


def prepare(folder: Path) -> Base:
    """The answers of what ships."""
    table = folder / "calls.parquet"
    calls().to_parquet(table)
    project = project_copy(folder / "project")
    own_copy(project, "packs")
    names = ("kernels", "point", "transfer", "half")
    return Base(table, {name: _answer(name, project, table) for name in names})


def _answer(reader: str, project: Path, table: Path) -> Any:
    """What a reader makes of the packs of a project."""
    with in_project(project):
        if reader.startswith("check "):
            return sorted(packs.check_pack(reader.removeprefix("check "))["files"])
        if reader == "kernels":
            return _kernels(OWN, table, project / "out.parquet")
        if reader == "transfer":
            return _kernels(ELSEWHERE, table, project / "out.parquet")
        dtype = ["model.dtype=bf16"] if reader == "half" else []
        gpu = HALF if reader == "half" else OWN
        found = (
            engine()
            .predict_one(expand([f"gpu={gpu}", "model=dlrm_small", "batch_size=64", *dtype])[0])
            .whole()
        )
        return [found.predicted_us, found.p10_us, found.p90_us, found.evidence]


def _kernels(gpu: str, table: Path, out: Path) -> pd.DataFrame:
    predict_command(gpu, None, table, out)
    return pd.read_parquet(out)


def case(base: Base, folder: Path, rng: Random) -> Case:
    """A damaged pack, of a GPU or of what all share."""
    project = project_copy(folder / "project")
    root = own_copy(project, "packs")
    if rng.random() < 0.3:
        return _manifest(base, project, root, rng)
    return _file(base, project, root, rng)


def _file(base: Base, project: Path, root: Path, rng: Random) -> Case:
    """A listed file is damaged: its readers refuse it."""
    listed = sorted(
        path for path in root.rglob("*") if path.is_file() and path.name != packs.MANIFEST
    )
    path = rng.choice(listed)
    data = path.read_bytes()
    kind = rng.choice(("bytes", "bytes", "bytes", "missing", "folder", "other file", "link away"))
    if kind == "bytes":
        kind, content = damaged(data, rng)
        while content == data:
            kind, content = damaged(data, rng)
        path.write_bytes(content)
    elif kind == "other file":
        other = rng.choice([each for each in listed if each.read_bytes() != data])
        shutil.copyfile(other, path)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link away":
            path.symlink_to("/etc/hostname")
    name = path.relative_to(root).as_posix()
    reader = _reader_of(name)
    return Case(
        f"{reader}: {name.split('/')[0]} {kind}",
        partial(_answer, reader, project, base.table),
        must="refuse",
        named=(path.name, packs.MANIFEST),
    )


def _reader_of(name: str) -> str:
    """A reader that uses a file."""
    if name.startswith(f"{OWN}/"):
        return "point"
    if name.startswith(f"half/{HALF}/"):
        return "half"
    if name.startswith("transfer/"):
        return "transfer"
    return f"check {name.rpartition('/kernels/')[0] or name.rpartition('/')[0] or packs.SHARED}"


def _manifest(base: Base, project: Path, root: Path, rng: Random) -> Case:
    """A manifest is damaged: it is refused, or the answer is what it was."""
    path = rng.choice(sorted(root.rglob(packs.MANIFEST)))
    values = json.loads(path.read_bytes())
    kind = rng.choice(("keys", "bytes", "values", "digest", "size", "entry", "format", "outside"))
    must = "refuse" if kind in ("digest", "size", "entry", "format", "outside") else "either"
    name = rng.choice(sorted(values["files"]))
    content = b""
    if kind == "keys":
        values = reordered(values, rng)
    elif kind == "bytes":
        kind, content = damaged(path.read_bytes(), rng)
    elif kind == "values":
        kind, values = strange_json(values, rng)
    elif kind in ("digest", "size"):
        key = "sha256" if kind == "digest" else "bytes"
        values["files"][name][key] = rng.choice(
            [each for each in VALUES if each != values["files"][name][key]]
        )
    elif kind == "entry":
        values["files"][name] = rng.choice((None, 5, "x", [], {}))
    elif kind == "format":
        values["format"] = rng.choice((0, 2, "1", None, [], 1.5))
    else:
        values["files"][rng.choice(("../../x", "/etc/hostname", "", "a/../../b", "\x00"))] = values[
            "files"
        ][name]
    path.write_bytes(content or json_bytes(values, rng))
    folder = path.parent.relative_to(root).as_posix()
    reader = {OWN: "point", f"half/{HALF}": "half", "transfer": "transfer"}.get(
        folder, f"check {folder}"
    )
    if must == "either" and reader not in base.truth:
        return Case(
            f"{reader}: manifest {kind}",
            partial(_answer, reader, project, base.table),
            named=(packs.MANIFEST, "packs"),
        )
    return Case(
        f"{reader}: manifest {kind}",
        partial(_answer, reader, project, base.table),
        must=must,
        truth=_same(base.truth.get(reader)),
        named=(packs.MANIFEST, str(root)),
    )  # type: ignore[arg-type]


def _same(truth: Any) -> Callable[[Any, list[str]], str]:
    return lambda found, _: difference(found, truth)
