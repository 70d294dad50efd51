"""Ways to damage bytes, JSON values and tables. Each takes a generator, so that a case can be made again."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, 1e300, -1e300, 1e-300, 2**31, 2**63, 2**64, 2**70, -(2**63),
    "", "x", "\x00", '"', "\\", "1" * 30, "٣", "nan", "inf", [], {}, [1], {"a": 1}, [[[]]],
    math.nan, math.inf, -math.inf, 9e15, 10**18, "µ" * 300, "../../etc/passwd", "\n", "\u202e",
    "$(id)", "${x}", "%s",
]  # fmt: skip
"""Values that no file should hold where another was."""


def damaged(data: bytes, rng: Random) -> tuple[str, bytes]:
    """The name of a kind of damage, and the damaged bytes."""
    kind = rng.choice(
        ("flip", "flip", "flip", "byte", "cut", "lose", "repeat", "insert", "zeros", "swap")
    )
    return kind, _DAMAGE[kind](data, rng)


def flipped(data: bytes, rng: Random) -> bytes:
    """One bit is another."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def cut(data: bytes, rng: Random) -> bytes:
    """The end is missing, as after a copy that was broken off."""
    return data[: rng.randrange(len(data))]


def _byte(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _lose(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.choice((1, 3, 50, 4096)) :]


def _repeat(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[: place + rng.choice((1, 50, 512))] + data[place:]


def _insert(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.choice((1, 2, 64))) + data[place:]


def _zeros(data: bytes, rng: Random) -> bytes:
    place, count = rng.randrange(len(data)), rng.choice((1, 8, 512))
    return data[:place] + bytes(min(count, len(data) - place)) + data[place + count :]


def _swap(data: bytes, rng: Random) -> bytes:
    first, second = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data[:first] + data[second:] + data[first:second]


_DAMAGE: dict[str, Callable[[bytes, Random], bytes]] = {
    "flip": flipped, "byte": _byte, "cut": cut, "lose": _lose, "repeat": _repeat, "insert": _insert,
    "zeros": _zeros, "swap": _swap,
}  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(pairs):
        yield value, key
        yield from places(inner)


def strange_json(value: Any, rng: Random) -> tuple[str, Any]:
    """A JSON value of which some parts are missing, of another type, or absurd."""
    value = copy.deepcopy(value)
    changes = []
    for holder, key in rng.sample(
        found := list(places(value)), min(len(found), rng.choice((1, 1, 2, 4)))
    ):
        if isinstance(holder, dict) and key in holder and rng.random() < 0.3:
            del holder[key]
            changes.append(f"no {key}")
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = copy.deepcopy(rng.choice(VALUES))
            changes.append(f"{key}={holder[key]!r}"[:40])
    return ", ".join(changes), value


def json_bytes(value: Any, rng: Random | None = None) -> bytes:
    """JSON text; with a generator in one of several equal layouts."""
    indent = rng.choice((None, 1, 2, "\t")) if rng else None
    return json.dumps(value, indent=indent, ensure_ascii=rng is None or rng.random() < 0.5).encode(
        "utf-8", "replace"
    )


def reordered(value: Any, rng: Random) -> Any:
    """The same value with the keys of all objects in another order."""
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: reordered(value[key], rng) for key in keys}
    return [reordered(each, rng) for each in value] if isinstance(value, list) else value


def write_same(table: pa.Table, path: Path, rng: Random) -> None:
    """Write a table as one of the parquet files that mean the same."""
    pq.write_table(
        table,
        path,
        compression=rng.choice(("zstd", "snappy", "gzip", "none")),
        row_group_size=rng.choice((1, 7, 1000)),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(("1.0", "2.0")),
        version=rng.choice(("1.0", "2.6")),
    )


def other_dtype(values: pd.Series, rng: Random) -> pd.Series:
    """A column of another type, with the same values where that type can hold them."""
    kinds: list[Callable[[pd.Series], pd.Series]] = [
        lambda v: v.astype("float64"),
        lambda v: v.astype(str),
        lambda v: v.astype("category"),
        lambda v: v.astype(object),
        lambda v: pd.to_datetime(pd.to_numeric(v), unit="us"),
        lambda v: pd.to_timedelta(pd.to_numeric(v), unit="us"),
        lambda v: pd.Series([[each] for each in v], v.index),
        lambda v: pd.Series([{"v": each} for each in v], v.index),
        lambda v: pd.Series([str(each).encode() for each in v], v.index),
        lambda v: v.astype("float32"),
        lambda v: v.astype(bool),
        lambda v: v.astype("complex128").astype(str),
        lambda v: v.astype("Int32"),
    ]
    try:
        return rng.choice(kinds)(values)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return values.astype(str) + "?"


def nonsense(rng: Random) -> Any:
    """A number that is no size, count or time."""
    return rng.choice((np.nan, np.inf, -np.inf, -1.0, 1e300, -1e300, -0.5, 1e18))
