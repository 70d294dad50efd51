"""Damaged profiler traces: a refusal names the file, and what means the same is read the same."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pipeline.paths import project_dir
from pipeline.simulate.replay import replay
from pipeline.trace.load import load_trace
from soak.damage import cut, damaged, json_bytes, reordered, strange_json
from soak.verdicts import ANY, Case, difference
from tests.trace.test_fuzz import RAW

GOLDEN = project_dir() / "tests" / "trace" / "golden"

Data = dict[str, Any]


@dataclass(frozen=True)
class Seed:
    data: Data
    facts: Data


def prepare(folder: Path) -> list[Seed]:
    """A drawn trace, a drawn one of a GPU in six steps, and one recorded on a CPU."""
    files = [GOLDEN / name / "input" / "kineto.json.gz" for name in ("drawn_gpu", "cpu_dlrm")]
    found = []
    for number, text in enumerate([RAW, *(gzip.decompress(file.read_bytes()) for file in files)]):
        path = folder / f"seed{number}.json"
        path.write_bytes(text)
        found.append(Seed(json.loads(text), facts(path)))
    return found


def facts(path: Path, replayed: bool = True) -> Data:
    """What a user sees of a trace: its table, and its replay (which takes most of the time).

    Raises:
        AssertionError: a figure is no time.
    """
    table = _read(path)
    if not replayed:
        return {"table": table, "notes": table["notes"]}
    figures = replay(path).as_dict()
    times = {
        key: value for key, value in figures.items() if key.endswith("_us") and value is not None
    }
    assert all(np.isfinite(value) for value in times.values()), f"not finite: {times}"
    assert figures["predicted_us"] >= 0 and figures["active_predicted_us"] >= 0, (
        f"negative: {times}"
    )
    return {"table": table, "times": times, "notes": table["notes"]}


def _read(path: Path) -> Data:
    trace = load_trace(path)
    texts = {
        name: [str(values[code]) for code in trace.columns[name].tolist()] if len(values) else []
        for name, values in trace.vocabulary.items()
    }
    rest = {name: values for name, values in trace.columns.items() if name not in trace.vocabulary}
    return {"columns": rest, "texts": texts, "notes": list(trace.notes)}


def case(seeds: list[Seed], folder: Path, rng: Random) -> Case:
    """A damaged trace."""
    seed = rng.choices(seeds, (3, 1, 1))[0]  # the first is read and replayed in a tenth of the time
    path = folder / rng.choice(("trace.json", "trace.json.gz", "trace", "a b;c.json"))
    return rng.choice((_same, _same, _refused, _bytes, _bytes, _values, _values, _clamped))(
        seed, path, rng
    )


def _made(name: str, path: Path, content: bytes, **what: Any) -> Case:
    path.write_bytes(content)
    replayed = len(content) % 3 == 0
    return Case(name, lambda: facts(path, replayed), named=(str(path),), **what)


def _same(seed: Seed, path: Path, rng: Random) -> Case:
    data = copy.deepcopy(seed.data)
    change = rng.choice(SAME)
    change(data, rng)
    content = json_bytes(data, rng)
    if rng.random() < 0.3:
        content = gzip.compress(content, mtime=0)
    elif rng.random() < 0.3:
        content = rng.choice((b"\xef\xbb\xbf", b" \n\t")) + content + rng.choice((b"", b"\n \n"))
    return _made(
        change.__name__.strip("_"),
        path,
        content,
        must="accept",
        truth=_equals(seed, change is _later),
    )


def _equals(seed: Seed, moved: bool) -> Callable[[Data, list[str]], str]:
    """A check that a trace says what its seed says; at another time of day, `ts_ns` is another."""

    def fault(found: Data, _: list[str]) -> str:
        parts = (
            [difference(found["times"], seed.facts["times"], "times")] if "times" in found else []
        )
        for part in ("columns", "texts"):
            ours, theirs = dict(found["table"][part]), dict(seed.facts["table"][part])
            if moved:
                ours, theirs = (
                    {k: v for k, v in each.items() if k != "ts_ns"} for each in (ours, theirs)
                )
            parts.append(difference(ours, theirs, part))
        return next((text for text in parts if text), "")

    return fault


def _shuffled(data: Data, rng: Random) -> None:
    # events that begin together keep their order: of two that tie in all, the file's order tells the outer one
    groups: dict[Any, list[Data]] = {}
    for number, event in enumerate(data["traceEvents"]):
        groups.setdefault(event.get("ts", -number), []).append(event)
    order = list(groups)
    rng.shuffle(order)
    data["traceEvents"] = [event for key in order for event in groups[key]]


def _keys_in_another_order(data: Data, rng: Random) -> None:
    changed = reordered(data, rng)
    data.clear()
    data.update(changed)


def _unknown_keys(data: Data, rng: Random) -> None:
    for event in rng.sample(data["traceEvents"], min(20, len(data["traceEvents"]))):
        event[rng.choice(("note", "tts", "bp", "comment"))] = rng.choice(("x", 5, [1, {}], None))
        if isinstance(event.get("args"), dict):
            event["args"]["a key of tomorrow"] = rng.choice((1, "{", [], {"ts": 3}))
    data["a section of tomorrow"] = [{"traceEvents": []}] if rng.random() < 0.5 else {"ts": 1}


def _events_of_other_kinds(data: Data, rng: Random) -> None:
    for _ in range(rng.choice((1, 30))):
        ts = rng.choice(data["traceEvents"]).get("ts", 0)
        kind = rng.choice("sftinCM")
        event = {
            "ph": kind,
            "name": "other",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "id": 1,
            "cat": "other",
            "args": {"name": "x"},
        }
        data["traceEvents"].insert(rng.randrange(len(data["traceEvents"]) + 1), event)


def _copies(data: Data, rng: Random) -> None:
    linked = [
        event
        for event in data["traceEvents"]
        if (event.get("args") or {}).get("correlation") is not None
    ]
    data["traceEvents"] += [copy.deepcopy(event) for event in linked]


def _floats(data: Data, rng: Random) -> None:
    for event in data["traceEvents"]:
        for key in ("ts", "dur"):
            if isinstance(event.get(key), int) and abs(event[key]) < 2**42:
                event[key] = float(event[key])


def _later(data: Data, rng: Random) -> None:
    by = rng.choice((1, 1000, 86_400_000_000))
    for event in data["traceEvents"]:
        if isinstance(event.get("ts"), int):
            event["ts"] += by
        elif "ts" in event:
            event["ts"] = round(event["ts"] + by, 3)


SAME = (
    _shuffled,
    _keys_in_another_order,
    _unknown_keys,
    _events_of_other_kinds,
    _copies,
    _floats,
    _later,
)


def _refused(seed: Seed, path: Path, rng: Random) -> Case:
    data, content = copy.deepcopy(seed.data), b""
    event = rng.choice([each for each in data["traceEvents"] if each.get("ph") == "X"])
    harm = rng.choice(("cut", "cut gzip", "field", "no list", "no object", "nested", "base"))
    if harm == "cut":
        content = cut(json_bytes(data).rstrip(), rng)
    elif harm == "cut gzip":
        content = cut(gzip.compress(json_bytes(data), mtime=0), rng)
    elif harm == "field":
        key, values = rng.choice(FIELDS)
        event[key] = rng.choice(values)
        if event[key] is None:
            del event[key]
        harm = f"{key}={event.get(key)!r}"[:40]
    elif harm == "no list":
        data["traceEvents"] = rng.choice((None, 3, "x", {}, {"a": 1}))
    elif harm == "no object":
        data["traceEvents"][rng.randrange(len(data["traceEvents"]))] = rng.choice(
            (None, 3, "x", [], [1])
        )
    elif harm == "nested":
        content = b'{"traceEvents": ' + rng.choice((b"[", b'[{"a":')) * rng.choice((3_000, 100_000))
    else:
        data["baseTimeNanoseconds"] = rng.choice((None, "5", 1.5, True, 2**62, -(2**62), [], 2**70))
    return _made(harm, path, content or json_bytes(data), must="refuse")


FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("ts", (None, "5", [], True, float("inf"), 5e15, -2e15, 10**400, {})),
    ("dur", ("5", [], True, float("inf"), 2e15, 10**30, {})),
    ("name", (None, 5, [], {}, True)),
    ("cat", (5, [], {}, True)),
    ("pid", ([], {}, True)),
    ("args", (5, "x", [1], True)),
)
"""Fields of an event, and values that they cannot have; None takes the field away."""


def _bytes(seed: Seed, path: Path, rng: Random) -> Case:
    text = json_bytes(seed.data, rng)
    if rng.random() < 0.4:
        name, content = damaged(gzip.compress(text, mtime=0), rng)
        # gzip has a checksum: whatever is read is what was written
        return _made(
            f"gzip {name}",
            path,
            content,
            truth=_equals(seed, False) if content[:2] == b"\x1f\x8b" else ANY,
        )
    name, content = damaged(text, rng)
    return _made(name, path, content)


def _values(seed: Seed, path: Path, rng: Random) -> Case:
    name, data = strange_json(seed.data, rng)
    return _made(name, path, json_bytes(data))


def _clamped(seed: Seed, path: Path, rng: Random) -> Case:
    """Negative durations are told."""
    data = copy.deepcopy(seed.data)
    rng.choice([each for each in data["traceEvents"] if each.get("dur", 0) > 0])["dur"] *= -1
    told: Callable[[Data, list[str]], str] = lambda found, _: (  # noqa: E731
        ""
        if any("negative duration" in note for note in found["notes"])
        else "the negative duration is not told"
    )
    return _made("negative duration", path, json_bytes(data), truth=told)
