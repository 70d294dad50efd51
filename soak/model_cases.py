"""Damaged folders of fitted models (`kernels fit --out`), which have no manifest: refused, or the same predictions."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pandas as pd

from pipeline.answers.kernel_commands import predict_command
from pipeline.kernels.family_model import DESCRIPTION
from pipeline.model_files import read_arrays, write_arrays
from pipeline.paths import packs_dir
from soak.damage import damaged, json_bytes, reordered, strange_json
from soak.table_cases import calls
from soak.verdicts import ANY, Case
from soak.workplace import forget_everything

FAMILIES = ("gemm", "bmm", "elementwise", "softmax", "layer_norm", "copy")


@dataclass(frozen=True)
class Base:
    models: Path
    table: Path
    truth: pd.DataFrame


def prepare(folder: Path) -> Base:
    """Models as a fit writes them: those of a pack, whose arrays are written again."""
    table, models = folder / "calls.parquet", folder / "models"
    calls().to_parquet(table)
    for family in FAMILIES:
        source = packs_dir() / "V100" / "kernels" / family
        if source.is_dir():
            shutil.copytree(source, models / family)
    for path in models.rglob("*.safetensors"):
        arrays, metadata = read_arrays(path, "")
        write_arrays(path, arrays, metadata)
    return Base(models, table, _predicted(models, table))


def _predicted(models: Path, table: Path) -> pd.DataFrame:
    forget_everything()
    predict_command("V100", models, table, out := models.parent / "out.parquet")
    return pd.read_parquet(out)


def case(base: Base, folder: Path, rng: Random) -> Case:
    """A damaged file of a fitted model."""
    models = folder / "models"
    shutil.copytree(base.models, models)
    path = rng.choice(sorted(each for each in models.rglob("*") if each.is_file()))
    kind = rng.choice(("bytes", "bytes", "values", "missing", "folder", "empty"))
    checked = path.suffix == ".safetensors"
    if kind == "bytes":
        kind, content = damaged(path.read_bytes(), rng)
        path.write_bytes(content)
    elif kind == "values" and path.suffix == ".json":
        values = json.loads(path.read_bytes())
        kind, values = (
            ("keys", reordered(values, rng)) if rng.random() < 0.3 else strange_json(values, rng)
        )
        path.write_bytes(json_bytes(values, rng))
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
    # JSON and CSV may be edited by hand: a changed digit in them is the user's; arrays carry a digest
    truth = base.truth if checked or kind == "keys" else ANY
    gone = path.name == DESCRIPTION and kind in (
        "missing",
        "folder",
    )  # the family is then that of the pack
    return Case(
        f"{path.parent.name}/{path.name} {kind}",
        partial(_predicted, models, base.table),
        truth=ANY if gone else truth,
        named=(str(models),),
    )
