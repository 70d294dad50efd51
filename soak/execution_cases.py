"""Damaged execution traces: the quick reader reads what the whole one does, and the graph can be mapped to device calls."""

from __future__ import annotations

import copy
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pipeline.graph.device_calls import map_calls
from pipeline.graph.execution_trace import import_execution_trace
from soak.damage import cut, damaged, json_bytes, reordered, strange_json
from soak.trace_cases import GOLDEN
from soak.verdicts import Case

SOURCE = GOLDEN / "cpu_dlrm" / "input" / "execution_trace.json.gz"


@dataclass(frozen=True)
class Seed:
    text: bytes
    data: dict[str, Any]
    facts: dict[str, Any]


def first_nodes(count: int) -> bytes:
    """The beginning of the recorded execution trace, packed."""
    data = json.loads(gzip.decompress(SOURCE.read_bytes()))
    return gzip.compress(json.dumps({**data, "nodes": data["nodes"][:count]}).encode(), mtime=0)


def prepare(folder: Path) -> list[Seed]:
    """An execution trace that was recorded on a CPU, and its beginning."""
    text = gzip.decompress(SOURCE.read_bytes())
    data = json.loads(text)
    few = {**data, "nodes": data["nodes"][:60]}
    seeds = []
    for each, own in ((text, data), (json.dumps(few, indent=2).encode(), few)):
        (folder / "seed.json").write_bytes(each)
        seeds.append(Seed(each, own, facts(folder / "seed.json")))
    return seeds


def facts(path: Path) -> dict[str, Any]:
    """The graph of an execution trace and its device calls.

    Raises:
        AssertionError: a call has a size that is none.
    """
    graph = import_execution_trace(path)
    calls = map_calls(graph)
    sizes = calls[["flops", "bytes_read", "bytes_written"]].to_numpy(float)
    assert np.isfinite(sizes).all() and (sizes >= 0).all(), "a call has no finite size"
    return {"graph": graph.table, "device": graph.device, "calls": calls}


def case(seeds: list[Seed], folder: Path, rng: Random) -> Case:
    """A damaged execution trace."""
    seed = rng.choice(seeds)
    path = folder / rng.choice(("execution_trace.json", "execution_trace.json.gz", "trace"))
    kind = rng.choice(("same", "refuse", "refuse", "bytes", "bytes", "values", "values"))
    if kind == "same":
        return _same(seed, path, rng)
    if kind == "refuse":
        return _refused(seed, path, rng)
    if kind == "bytes":
        packed = rng.random() < 0.4
        name, content = damaged(gzip.compress(seed.text, mtime=0) if packed else seed.text, rng)
        checked = packed and content[:2] == b"\x1f\x8b"
        return _made(
            f"gzip {name}" if packed else name,
            path,
            content,
            **({"truth": seed.facts} if checked else {}),
        )
    name, data = strange_json(seed.data, rng)
    return _made(name, path, json_bytes(data))


def _made(name: str, path: Path, content: bytes, **what: Any) -> Case:
    path.write_bytes(content)
    return Case(name, lambda: facts(path), named=(str(path),), **what)


def _same(seed: Seed, path: Path, rng: Random) -> Case:
    data = copy.deepcopy(seed.data)
    change = rng.choice(("shuffled", "keys", "unknown keys", "layout"))
    if change == "shuffled":
        rng.shuffle(data["nodes"])
    elif change == "keys":
        data = reordered(data, rng)
    elif change == "unknown keys":
        for node in rng.sample(data["nodes"], 5):
            node["of tomorrow"] = rng.choice((1, "x", {}, []))
    content = json_bytes(data, rng)
    return _made(
        change,
        path,
        gzip.compress(content) if rng.random() < 0.3 else content,
        must="accept",
        truth=seed.facts,
    )


def _refused(seed: Seed, path: Path, rng: Random) -> Case:
    data, content = copy.deepcopy(seed.data), b""
    harm = rng.choice(("cut", "cut gzip", "key", "type", "twice", "circle", "no nodes", "nested"))
    node = rng.choice(data["nodes"])
    if harm == "cut":
        content = cut(seed.text.rstrip(), rng)
    elif harm == "cut gzip":
        content = cut(gzip.compress(seed.text, mtime=0), rng)
    elif harm == "key":
        del node[key := rng.choice(("id", "name", "inputs", "outputs"))]
        harm = f"no {key}"
    elif harm == "type":
        key = rng.choice(("id", "name", "inputs", "outputs"))
        node[key] = rng.choice((None, [], 1.5, True))
        harm = f"{key}={node[key]!r}"
    elif harm == "twice":
        data["nodes"].append(copy.deepcopy(node))
    elif harm == "circle":
        own = [
            each
            for each in data["nodes"]
            if "ctrl_deps" in each and each["id"] != each["ctrl_deps"]
        ]
        first = rng.choice(own)
        second = {**copy.deepcopy(first), "id": 10**9, "ctrl_deps": first["id"]}
        first["ctrl_deps"] = 10**9
        data["nodes"].append(second)
    elif harm == "no nodes":
        data["nodes"] = rng.choice((None, 3, "x", {}))
    else:
        content = b'{"nodes": ' + b"[" * 100_000
    # nobody follows a circle of annotations without operators
    return _made(
        harm,
        path,
        content or json_bytes(data, rng),
        must="either" if harm == "circle" else "refuse",
    )
