"""Damaged artifacts of a run, and damaged entries of the user's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.answers.answer_files import AnswerFiles, write_answer
from pipeline.answers.engine import DeclaredModels, Engine, StepFiles, engine
from pipeline.graph.device_calls import map_calls
from pipeline.graph.step_store import captured, write_graph
from pipeline.hardware.find_gpu import load_gpu
from pipeline.model_files import MANIFEST
from pipeline.paths import packs_dir
from pipeline.question.question import expand
from pipeline.schemas import PROVENANCE_KEY, SCHEMAS, read_provenance, read_table, write_table
from pipeline.summary_rows import predictions_of
from soak.damage import damaged, other_dtype, write_same
from soak.verdicts import Case
from soak.workplace import forget_everything

POINT = ("gpu=V100", "model=dlrm_small", "batch_size=64", "predict.draws=64")
INPUTS = {"graph.parquet": "graph", "calls.parquet": "calls", "overheads.parquet": "overheads"}
OUTPUTS = {"prediction.parquet": "prediction", "summary.parquet": "summary"}
MADE = {"rule": "soak", "params": {"a": 1}, "inputs": {"x": "y"}}


@dataclass(frozen=True)
class Base:
    folder: Path
    truth: dict[str, Any]
    cache: Path
    answer: Any


def prepare(folder: Path) -> Base:
    """The files of one predicted point, and a cache that has answered it."""
    place, cache = folder / "point", folder / "cache"
    point = expand(list(POINT))[0]
    graph = captured(point.section("model"), point.batch_size)
    place.mkdir()
    write_graph(graph, place / "graph.parquet", MADE)
    write_table(
        map_calls(graph, load_gpu("V100"), graph.device), place / "calls.parquet", "calls", MADE
    )
    overheads = pd.DataFrame(
        {
            "type": ["T1", "T2", "T3", "T5", "launch_latency", "kernel_gap"],
            "op": "*",
            "mean_us": 3.0,
            "std_us": 1.0,
            "median_us": 2.5,
            "count": 7,
            "workloads": "shared",
            "api": "*",
        }
    )
    write_table(overheads, place / "overheads.parquet", "overheads", MADE)
    truth = {name: _artifact(place, name) for name in (*INPUTS, *OUTPUTS)}
    with patch.dict(os.environ, STEPTIME_CACHE=str(cache)):
        answer = _answer()
    return Base(place, truth, cache, answer)


def _predicted(place: Path) -> Any:
    """The prediction of a point from its files."""
    forget_everything()
    files = {
        name: str(place / name) for name in ("graph.parquet", "calls.parquet", "overheads.parquet")
    }
    models = DeclaredModels([packs_dir() / "V100" / MANIFEST], files["overheads.parquet"])
    answering = Engine(models, StepFiles(files["graph.parquet"], files["calls.parquet"]))
    (answer,) = answering.predict(expand(list(POINT)), detail=True)
    outputs = {
        name: str(place / name)
        for name in ("prediction.parquet", "timeline.json.gz", "timeline.html", "summary.parquet")
    }
    write_answer(answer, AnswerFiles(*outputs.values()), None, MADE)
    return {schema: read_table(place / name, schema) for name, schema in OUTPUTS.items()}


def _artifact(place: Path, name: str) -> Any:
    """What reads an artifact: the prediction, or `steptime summary`."""
    if name in INPUTS:
        return _predicted(place)
    table = read_table(place / name, OUTPUTS[name])
    if name == "prediction.parquet":
        return table
    found = predictions_of(table, place / name)
    return [[each.rows(), each.as_dict()] for each in found]


def case(base: Base, folder: Path, rng: Random) -> Case:
    """A damaged artifact, or a damaged cache."""
    if rng.random() < 0.4:
        return _cache(base, folder, rng)
    place = folder / "point"
    shutil.copytree(base.folder, place)
    name = rng.choice((*INPUTS, *OUTPUTS, "summary.parquet"))
    path = place / name
    run, truth = partial(_artifact, place, name), base.truth[name]
    kind = rng.choice(
        (
            "bytes",
            "bytes",
            "bytes",
            "file",
            "column",
            "value",
            "value",
            "dtype",
            "json",
            "provenance",
            "other",
        )
    )
    table = read_table(path, INPUTS.get(name) or OUTPUTS[name])
    must, expected = "either", truth
    if kind == "bytes":
        kind, content = damaged(path.read_bytes(), rng)
        path.write_bytes(content)
    elif kind == "file":
        whole = pq.read_table(path)
        write_same(whole, path, rng)
        must = "accept"
    elif kind == "other":
        other = rng.choice([each for each in (*INPUTS, *OUTPUTS) if each != name])
        path.write_bytes((place / other).read_bytes())
        must = "refuse"
    elif kind == "provenance":
        return _provenance(path, rng)
    else:
        kind, must, expected = _changed(path, table, kind, rng, truth)
    return Case(f"{name} {kind}", run, must=must, truth=expected, named=(str(place),))  # type: ignore[arg-type]


def _changed(
    path: Path, table: pd.DataFrame, kind: str, rng: Random, truth: Any
) -> tuple[str, str, Any]:
    """Write a table with a changed column. Returns what was done, what must happen, and the result if it is read."""
    schema = SCHEMAS[INPUTS.get(path.name) or OUTPUTS[path.name]]
    metadata, must, expected = pq.read_schema(path).metadata, "either", truth
    required = [field.name for field in schema if not field.nullable]
    if kind == "column":
        name = rng.choice(required)
        table, must, told = table.drop(columns=name), "refuse", f"no {name}"
    elif kind == "value":
        name = rng.choice(
            [
                field.name
                for field in schema
                if field.type == pa.float64() and table[field.name].notna().any()
            ]
            or [""]
        )
        if not name:  # a graph holds no such numbers
            return "value", "accept", truth
        # pandas writes NaN as an absent value, which an optional column may have
        value = rng.choice(
            (float("nan"), float("inf"), float("-inf"))
            if name in required
            else (float("inf"), float("-inf"))
        )
        table.loc[rng.randrange(len(table)), name] = value
        must, told = "refuse", f"{name}={value}"
    elif kind == "dtype":
        name = rng.choice(required)
        table[name] = other_dtype(table[name], rng)
        told = f"{name} as {table[name].dtype}"
        if (
            str(table[name].dtype) in ("bool", "float32")
            or table[name].astype(str).str.endswith("?").any()
        ):
            expected = _no_check
    else:
        texts = [
            each
            for each in (
                "families",
                "evidence",
                "overrides",
                "attributes",
                "input_shapes",
                "warnings",
                "host_evidence",
                "input_dtypes",
                "output_shapes",
                "signature",
            )
            if each in table
        ]
        name = rng.choice(texts or required)
        table[name] = table[name].astype(object)
        table.loc[rng.randrange(len(table)), name] = rng.choice(
            ("{", "[", "nan", '"x"', "3", "[[1]]", '{"a": [1]}', "[-5]", "[[[]]]", "null")
        )
        told, expected = f"{name} json", _no_check
    try:
        whole = pa.Table.from_pandas(table, preserve_index=False)
        pq.write_table(
            whole.replace_schema_metadata({PROVENANCE_KEY: metadata[PROVENANCE_KEY]}), path
        )
    except (pa.ArrowException, TypeError, ValueError):
        path.write_bytes(b"PAR1")
    return told, must, expected


_no_check: Callable[[Any, list[str]], str] = lambda *_: ""  # noqa: E731


def _provenance(path: Path, rng: Random) -> Case:
    """A damaged description of where an artifact comes from: the artifact then counts as made from something else."""
    text = rng.choice(
        (
            b"",
            b"{",
            b"[]",
            b"3",
            b"null",
            b'{"params": 1}',
            b"\xff",
            b"[" * 100_000,
            b'{"params": {"a": 2}}',
        )
    )
    pq.write_table(pq.read_table(path).replace_schema_metadata({PROVENANCE_KEY: text}), path)

    return Case(f"{path.name} provenance {text[:20]!r}", partial(read_provenance, path))


def _kind(entry: Path) -> str:
    """Kind of an entry of the cache, such as `graph.parquet`."""
    return entry.name.partition(".")[2]


def _answer() -> Any:
    forget_everything()
    found = engine().predict_one(expand(list(POINT))[0]).whole()
    return [
        found.predicted_us,
        found.p10_us,
        found.p90_us,
        found.memory_bytes,
        found.families_us,
        found.host_us,
        found.warnings,
    ]


def _cache(base: Base, folder: Path, rng: Random) -> Case:
    """Damaged entries of the cache: the answer is the same, because a damaged entry is made anew."""
    cache = folder / "cache"
    shutil.copytree(base.cache, cache)
    entries = sorted(path for path in cache.rglob("*") if path.is_file())
    path = rng.choice(entries)
    kind = rng.choice(("bytes", "bytes", "bytes", "empty", "folder", "other", "link", "json"))
    if kind == "bytes":
        kind, content = damaged(path.read_bytes(), rng)
        path.write_bytes(content)
    elif kind == "other":
        # of another kind: two entries of one kind are told apart by their names alone
        path.write_bytes(rng.choice([e for e in entries if _kind(e) != _kind(path)]).read_bytes())
    elif kind == "json":
        path.write_bytes(
            rng.choice(
                (b"{}", b"[]", b"null", b"3", b'{"values": 5, "missing": 3}', b'{"line": [1]}')
            )
        )
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to("/dev/zero" if rng.random() < 0.5 else cache / "nowhere")
        else:
            path.write_bytes(b"")
    name = _kind(path)

    def run() -> Any:
        with patch.dict(os.environ, STEPTIME_CACHE=str(cache)):
            return _answer()

    return Case(f"cache {name} {kind}", run, must="accept", truth=base.answer)
