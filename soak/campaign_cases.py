"""Damaged campaigns: folders of measurements and archives of traces that come from other machines."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from pipeline.collect.campaign_folder import CampaignFolder, check
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.measured import campaign_files, campaign_reader
from pipeline.trace.load import load_trace
from soak.damage import cut, damaged, json_bytes, nonsense, reordered, strange_json
from soak.execution_cases import first_nodes
from soak.table_cases import calls
from soak.trace_cases import GOLDEN
from soak.verdicts import ANY, Case

STEPS = (
    ("dlrm_small", "default", 64),
    ("dlrm_small", "dtype-fp16", 64),
    ("resnet50", "default", 8),
)
SMALL_TRACE = (GOLDEN / "drawn_gpu" / "input" / "kineto.json.gz").read_bytes()
TRACES = {"kineto.json.gz": SMALL_TRACE, "execution_trace.json.gz": first_nodes(40)}
BOMB_BYTES = 4 << 20
"""Limit of an unpacked trace in these cases: a bomb of a gigabyte takes seconds to make."""


@dataclass(frozen=True)
class Base:
    folder: Path
    facts: dict[str, Any]


def prepare(folder: Path) -> Base:
    """A campaign of three steps and 42 samples. Traces are those of the tests, times are invented."""
    place = folder / "V100"
    made = CampaignFolder(place, {"gpu": "V100", "cache_bytes": 6 << 20})
    samples = calls()
    families = {
        "linear": "gemm",
        "relu": "elementwise",
        "add": "elementwise",
        "ln": "layer_norm",
        "conv": "conv2d_forward",
    }
    rows = samples.assign(
        family=samples["op"].map(lambda op: families.get(op, op)),
        phase="forward",
        dtype="fp32",
        source="soak",
        campaign_id="soak:kernels/r0000",
        kernel_us=samples["latency_us"] - 2,
        cold=False,
    )
    made.add_samples(rows)
    made.add_peaks(
        pd.DataFrame(
            {
                "unit_name": "peaks",
                "name": ["warm_triad", "gemm_fp32"],
                "size": [1 << 28, 4096],
                "value": [800.0, 14.0],
                "unit": ["GB/s", "TFLOP/s"],
                "note": None,
            }
        )
    )
    for number, (model, variant, batch) in enumerate(STEPS):
        name = f"{model}/{variant}/b{batch}"
        facts = {
            "unit": f"steps/{name}",
            "config": {"name": model},
            "profiled_kernel_us": 100.0 + number,
        }
        made.add_step_times(
            {
                "gpu": "V100",
                "model": model,
                "variant": variant,
                "batch_size": batch,
                "step_us": 500.0 + number,
                "p10_us": 490.0,
                "p90_us": 520.0,
                "count": 30,
                "source": "soak",
                "config": json.dumps(facts),
            }
        )
        members = TRACES if number == 0 else {"kineto.json.gz": SMALL_TRACE}
        made.archive(name, members)
        made.units[f"steps/{name}"] = {"status": "done", "seconds": 1.0}
    made.units.update({"peaks": {"status": "done"}, "kernels/r0000": {"status": "done"}})
    made.manifest |= {"campaign_id": "soak", "runs": [{"status": "complete"}]}
    made.save()
    assert check(place) == [], check(place)
    return Base(place, facts_of(place))


def facts_of(folder: Path) -> dict[str, Any]:
    """Everything that the project reads of a campaign.

    Raises:
        AssertionError: a time is none, or a file was written outside the folders that were named.
    """
    before = sorted(path.name for path in folder.parent.parent.iterdir())
    with patch.object(campaign_files, "MAX_TRACE_BYTES", BOMB_BYTES):
        found = _read(folder)
    assert sorted(path.name for path in folder.parent.parent.iterdir()) == before, (
        "a file was written elsewhere"
    )
    return found


def _read(folder: Path) -> dict[str, Any]:
    samples, steps = campaign_reader.read_samples(folder), campaign_reader.read_step_times(folder)
    for table, names in (
        (samples, ("latency_us", "kernel_us")),
        (steps, ("step_us", "p10_us", "p90_us")),
    ):
        for name in names:
            values = table[name].dropna().to_numpy(float)
            assert np.isfinite(values).all() and (values > 0).all(), f"{name} holds {values.min()}"
    traces = {}
    for number, member in enumerate(campaign_reader.read_traces(folder)):
        kineto, execution = member.extract(folder.parent / "traces" / str(number))
        trace = load_trace(kineto)
        graph = None if execution is None else import_execution_trace(execution).table
        traces[member.workload] = [
            len(trace),
            trace.columns["ts_ns"],
            trace.columns["dur_ns"],
            trace.names.tolist(),
            graph,
        ]
    measured = {
        f"{m}/{v}/b{b}": campaign_reader.measured_step(
            folder / "manifest.json", f"{m}/{v}/b{b}", {"name": m}
        )
        for m, v, b in STEPS
    }
    profiled = {name: campaign_reader.profiled_kernel_us(folder, name) for name in measured}
    return {
        "samples": samples,
        "steps": steps,
        "traces": traces,
        "measured": measured,
        "profiled": profiled,
        "peaks": campaign_reader.measured_peaks(folder),
        "extra": campaign_reader.profiler_event_us(folder),
    }


def first_archive(folder: Path) -> Path:
    return min(folder.glob("traces_*.tar"))


def case(base: Base, folder: Path, rng: Random) -> Case:
    """A damaged campaign."""
    place = folder / "in" / "V100"
    place.mkdir(parents=True)
    for each in base.folder.iterdir():
        (place / each.name).write_bytes(each.read_bytes())
    return rng.choice(
        (
            _member,
            _member,
            _archive,
            _archive,
            _bomb,
            _manifest,
            _manifest,
            _table,
            _table,
            _parquet,
        )
    )(base, place, rng)


def _made(name: str, place: Path, **what: Any) -> Case:
    return Case(name, partial(facts_of, place), named=(str(place.parent),), **what)


def _member(base: Base, place: Path, rng: Random) -> Case:
    """An entry that no campaign writes: it is left out, and nothing is written outside."""
    name = rng.choice(
        (
            "../../evil",
            "/absolute/evil",
            "a/../../../evil/kineto.json.gz",
            "./x/default/b1/kineto.json.gz",
            "notes.txt",
            "dlrm_small/default/bX/kineto.json.gz",
            "//x/default/b1/kineto.json.gz",
            "a/b/c/d/kineto.json.gz",
            "x\\..\\y/kineto.json.gz",
            ".." + "/.." * 20 + "/x/default/b1/kineto.json.gz",
        )
    )
    info = tarfile.TarInfo(name)
    kind = rng.choice(
        (
            tarfile.REGTYPE,
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.FIFOTYPE,
            tarfile.CHRTYPE,
            tarfile.DIRTYPE,
        )
    )
    info.type = kind
    data = SMALL_TRACE if kind == tarfile.REGTYPE else b""
    info.size, info.linkname = len(data), "/etc/passwd"
    if kind != tarfile.REGTYPE and rng.random() < 0.5:  # a link in the place of a trace
        info.name = "linked/default/b1/kineto.json.gz"
    with tarfile.open(first_archive(place), "a") as tar:
        tar.addfile(info, io.BytesIO(data) if data else None)
    return _made(f"entry {info.name} {kind!r}"[:50], place, must="accept", truth=base.facts)


def _archive(base: Base, place: Path, rng: Random) -> Case:
    """Damaged bytes of an archive: what is read is what was written. Traces have checksums, and headers too."""
    path = first_archive(place)
    data = path.read_bytes()
    kind = rng.choice(
        ("bytes", "bytes", "header", "header", "cut", "compressed", "twice", "second archive")
    )
    truth: Any = base.facts
    if kind == "bytes":
        kind, content = damaged(data, rng)
        truth = ANY if kind in ("insert", "repeat", "swap", "lose") else truth
    elif kind == "header":
        with tarfile.open(path) as tar:
            offset = rng.choice([info.offset for info in tar]) + rng.randrange(512)
        content = (
            data[:offset] + bytes([data[offset] ^ (1 << rng.randrange(8))]) + data[offset + 1 :]
        )
    elif kind == "cut":
        content = cut(data, rng)
    elif kind == "compressed":
        content = gzip.compress(data)
    elif kind == "twice":
        content = data + data
    else:
        content = data
        (place / "traces_other.tar").write_bytes(data)
    path.write_bytes(content)
    return _made(f"archive {kind}", place, truth=truth)


def _bomb(base: Base, place: Path, rng: Random) -> Case:
    """A trace that unpacks to more than a campaign's."""
    text = rng.choice((b" ", b"[", b'{"traceEvents": [', b"\x00")) * BOMB_BYTES
    data = gzip.compress(
        text[: 2 * BOMB_BYTES]
        if rng.random() < 0.5
        else b'{"traceEvents": []}' + bytes(2 * BOMB_BYTES),
        1,
    )
    info = tarfile.TarInfo("bomb/default/b1/kineto.json.gz")
    info.size = len(data)
    with tarfile.open(first_archive(place), "a") as tar:
        tar.addfile(info, io.BytesIO(data))
    return _made("bomb", place, must="refuse")


def _manifest(base: Base, place: Path, rng: Random) -> Case:
    path = place / "manifest.json"
    values = json.loads(path.read_bytes())
    kind = rng.choice(("same", "bytes", "values", "values", "gone", "schema", "no json"))
    if kind == "same":
        path.write_bytes(json_bytes(reordered(values, rng), rng))
        return _made("manifest same", place, must="accept", truth=base.facts)
    if kind == "bytes":
        kind, content = damaged(path.read_bytes(), rng)
        path.write_bytes(content)
    elif kind == "values":
        kind, values = strange_json(values, rng)
        path.write_bytes(json_bytes(values, rng))
    elif kind == "gone":
        path.unlink()
        return _made("no manifest", place, must="refuse")
    elif kind == "schema":
        path.write_bytes(json_bytes(values | {"schema": rng.choice((0, 3, 99, "2", None, [], {}))}))
        return _made("manifest schema", place, must="refuse")
    else:
        path.write_bytes(
            rng.choice((b"", b"[]", b"3", b"null", b"{", b"[" * 100_000, b"\xff\xfe{}"))
        )
        return _made("manifest no json", place, must="refuse")
    return _made(f"manifest {kind}", place)


TABLES = {
    "samples.parquet": ("latency_us", "kernel_us"),
    "step_times.parquet": ("step_us", "p10_us", "p90_us"),
    "peaks.parquet": ("value",),
}
"""Tables of a campaign, with their columns of measurements."""


def _table(base: Base, place: Path, rng: Random) -> Case:
    """A table with a column or a value that is none."""
    name = rng.choice(sorted(TABLES))
    path = place / name
    table = pd.read_parquet(path)
    kind = rng.choice(("column", "value", "value", "dtype", "extra", "config", "rows twice"))
    if kind == "column":
        column = rng.choice([each for each in table if table[each].notna().any()])
        table.drop(columns=column).to_parquet(path)
        must = (
            "refuse"
            if column in {*TABLES[name], "gpu", "family", "model", "unit_name"} - {"kernel_us"}
            else "either"
        )
        return _made(f"{name} no {column}", place, must=must)
    if kind == "value":
        column = rng.choice(TABLES[name])
        table.loc[rng.randrange(len(table)), column] = (value := nonsense(rng))
        table.to_parquet(path)
        # a sample without a usable time is dropped, with a warning; a step and a peak are refused
        return _made(f"{name} {column}={value}", place, **_of_value(base, name, column, value))
    if kind == "dtype":
        column = rng.choice(list(table))
        table[column] = table[column].astype(str) + "?"
        table.to_parquet(path)
        texts = table[column].str.len().max() > 0 and column in (
            "gpu",
            "op",
            "source",
            "campaign_id",
            "unit",
            "note",
            "config",
        )
        return _made(
            f"{name} {column} as text",
            place,
            must="either" if texts or column not in TABLES[name] else "refuse",
        )
    if kind == "extra" and name != "peaks.parquet":
        table.assign(note="x").to_parquet(path)
        return _made(f"{name} another column", place, must="refuse")
    if kind == "config" and name == "step_times.parquet":
        table.loc[0, "config"] = rng.choice(
            ("", "{", "[]", "3", "null", '"x"', "nan", '{"config": 5}', '{"config": []}')
        )
        table.to_parquet(path)
        return _made(f"config {table.loc[0, 'config']}", place)
    table = pd.concat([table, table], ignore_index=True)
    table.to_parquet(path)
    return _made(f"{name} rows twice", place)


def _of_value(base: Base, name: str, column: str, value: float) -> dict[str, Any]:
    """What must happen to a time or a peak that is none."""
    if name != "samples.parquet" or np.isinf(value) or (np.isnan(value) and column == "latency_us"):
        return {"must": "refuse"}
    if np.isnan(value):  # a sample without a kernel time has its latency
        return {"must": "accept"}

    def fault(found: dict[str, Any], said: list[str]) -> str:
        told = any("1 of 42 samples dropped" in text for text in said)
        return (
            ""
            if told and len(found["samples"]) == len(base.facts["samples"]) - 1
            else f"it is not dropped: {said}"
        )

    return {"must": "accept", "truth": fault}


def _parquet(base: Base, place: Path, rng: Random) -> Case:
    """Damaged bytes of a table: pages have checksums."""
    path = place / rng.choice(sorted(TABLES))
    kind, content = damaged(path.read_bytes(), rng)
    path.write_bytes(content)
    return _made(f"{path.name} {kind}", place, truth=base.facts)
