"""Damaged files of published measurements, which the user downloads: CSV, YAML, notebooks, pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from evaluation.published.published_dlrm import read_rows, read_steps
from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, read_lookups
from evaluation.published.published_steps import read_resnet50, read_training
from soak.damage import VALUES, damaged
from soak.verdicts import ANY, Case
from tests.evaluation.published_texts import FILES

NUMBERS = ("measured_us", "batch_size")


READERS: dict[str, tuple[str, ...]] = {
    "read_steps": ("nvidia/dlrm",),
    "read_resnet50": ("nvidia/resnet50",),
    "read_lookups": (LIGER, PULL_REQUEST, NOTEBOOK),
    "read_training": ("lambda/pytorch",),
}
CALLS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "read_steps": lambda folder: read_steps(folder).assign(rows=str(read_rows(folder))),
    "read_resnet50": read_resnet50,
    "read_lookups": read_lookups,
    "read_training": read_training,
}


def _read(reader: str, folder: Path) -> pd.DataFrame:
    found = CALLS[reader](folder)
    for name in NUMBERS:
        if name in found:
            values = found[name].to_numpy(float)
            assert np.isfinite(values).all() and (values > 0).all(), f"{name} holds {values.min()}"
    return found


def prepare(folder: Path) -> dict[str, Any]:
    """What each reader makes of the undamaged files."""
    files = {name: text.encode() for name, text in FILES.items()}
    _write(folder, files)
    return {"files": files, **{reader: _read(reader, folder) for reader in READERS}}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def case(base: dict[str, Any], folder: Path, rng: Random) -> Case:
    """A damaged file of one reader."""
    reader = rng.choice(sorted(READERS))
    files = dict(base["files"])
    name = rng.choice([each for each in files if each.startswith(READERS[reader])])
    text = files[name]
    kind = rng.choice(
        (
            "bytes",
            "bytes",
            "bytes",
            "gone",
            "empty",
            "folder",
            "cell",
            "cell",
            "rows",
            "crlf",
            "bom",
        )
    )
    must, truth = "either", ANY
    if kind == "bytes":
        kind, files[name] = damaged(text, rng)
    elif kind == "empty":
        files[name], must = b"", "refuse"
    elif kind in ("gone", "folder"):
        del files[name]
        must = "refuse"
    elif kind == "cell":
        marks = [i for i, byte in enumerate(text) if 48 <= byte <= 57]
        start = end = rng.choice(marks)
        while end < len(text) and chr(text[end]) in "0123456789.":
            end += 1
        while start and chr(text[start - 1]) in "0123456789.":
            start -= 1
        new = rng.choice(
            (
                b"nan",
                b"inf",
                b"-1",
                b"0",
                b"1e999",
                b"",
                b"x",
                b"1,5",
                str(rng.choice(VALUES)).encode("utf-8", "replace"),
            )
        )
        files[name], kind = text[:start] + new + text[end:], f"cell {new[:20]!r}"
    elif kind == "rows" and name.endswith(".csv"):
        head, _, rest = text.partition(b"\n")
        lines = rest.strip().splitlines(keepends=True)
        files[name], kind = (
            head + b"\n" + b"\n".join(line.strip() for line in reversed(lines)) + b"\n",
            "rows in another order",
        )
    elif kind == "crlf":
        files[name], must, truth = (
            text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
            "accept",
            base[reader],
        )
    elif kind == "bom":
        files[name] = b"\xef\xbb\xbf" + text
    _write(folder, files)
    if kind == "folder":
        (folder / name).mkdir(parents=True)
    return Case(
        f"{reader}: {Path(name).name} {kind}",
        lambda: _read(reader, folder),
        must=must,
        truth=truth,
        named=(str(folder),),
    )  # type: ignore[arg-type]
