"""Damaged tables of kernel calls and samples, as a user gives them to `kernels predict`, `kernels fit` and `transfer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.answers.kernel_commands import ADDED_COLUMNS, predict_command, read_samples
from pipeline.transfer.transfer_command import ADDED_COLUMNS as TRANSFERRED
from pipeline.transfer.transfer_command import transfer_command
from soak.damage import damaged, nonsense, other_dtype, write_same
from soak.verdicts import ANY, Case, difference

Read = Callable[[Path], pd.DataFrame]


@dataclass(frozen=True)
class Seed:
    """A table, what reads it, and what it gives."""

    name: str
    table: pd.DataFrame
    read: Read
    result: pd.DataFrame


def calls() -> pd.DataFrame:
    """Calls of seven families, with a latency that is invented."""
    rows: list[dict[str, Any]] = []
    for i in range(1, 7):
        rows += [
            {"op": "linear", "B": 1, "M": 64 * i, "N": 128, "K": 32 * i},
            {"op": "bmm", "B": i, "M": 64, "N": 32, "K": 64},
            {"op": "relu", "B": 256 * i, "H": 64},
            {"op": "softmax", "B": 128 * i, "H": 256},
            {"op": "ln", "B": 128, "H": 64 * i},
            {"op": "add", "B": 128, "H": 64 * i},
            {
                "op": "conv",
                "B": 2 * i,
                "in_channels": 16,
                "out_channels": 32,
                "kernel_size": 3,
                "input_size": 28,
                "stride": 1,
                "padding": 1,
            },
        ]
    table = pd.DataFrame(rows)
    ints = [name for name in table if name != "op"]
    return table.assign(
        latency_us=np.linspace(5.0, 90.0, len(table)), gpu="V100", **table[ints].astype("Int64")
    )


def _predicted(gpu: str, path: Path) -> pd.DataFrame:
    out = path.with_name("out.parquet")
    predict_command(gpu, None, path, out)
    return _checked(pd.read_parquet(out), [name for name in ADDED_COLUMNS if name.endswith("_us")])


def _transferred(path: Path) -> pd.DataFrame:
    out = path.with_name("out.parquet")
    transfer_command("V100", "T4", "auto", path, out)
    return _checked(pd.read_parquet(out), [name for name in TRANSFERRED if name.endswith("_us")])


def _checked(found: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    values = found[names].to_numpy(float)
    assert np.isfinite(values).all() and (values > 0).all(), (
        "a predicted time is not a positive number"
    )
    return found[names].reset_index(drop=True)


def _samples(path: Path) -> pd.DataFrame:
    samples, _ = read_samples(path, "V100")
    assert (samples["latency_us"] > 0).all() and np.isfinite(samples["latency_us"]).all()
    names = [name for name in ("family", "op", "dtype", "latency_us", *DIMS) if name in samples]
    plain = samples[names].astype({name: "float64" for name in names if name in DIMS})
    return pd.DataFrame(plain).reset_index(drop=True)


DIMS = (
    "B",
    "M",
    "N",
    "K",
    "H",
    "in_channels",
    "out_channels",
    "kernel_size",
    "input_size",
    "stride",
    "padding",
)


def prepare(folder: Path) -> list[Seed]:
    """Each reader's table with what it gives of it."""
    readers: dict[str, Read] = {
        "predict": partial(_predicted, "V100"),
        "predict H100": partial(_predicted, "H100"),
        "samples": _samples,
        "transfer": _transferred,
    }
    path = folder / "seed.parquet"
    calls().to_parquet(path)
    return [Seed(name, calls(), read, read(path)) for name, read in readers.items()]


def case(seeds: list[Seed], folder: Path, rng: Random) -> Case:
    """A damaged table."""
    seed = rng.choice(seeds)
    kind = rng.choice((_same, _same, _dim, _dim, _column, _op, _bytes, _latency, _file))
    return kind(seed, folder / rng.choice(("calls.parquet", "calls", "a b.pq")), rng)


def _made(seed: Seed, name: str, path: Path, table: pd.DataFrame | bytes, **what: Any) -> Case:
    if isinstance(table, bytes):
        path.write_bytes(table)
    else:
        try:
            table.to_parquet(path)
        except (
            pa.ArrowException,
            ValueError,
            TypeError,
            NotImplementedError,
        ):  # no parquet file can hold that
            path.write_bytes(b"PAR1")
            what = {"must": "refuse"}
    return Case(f"{seed.name}: {name}", lambda: seed.read(path), named=(str(path),), **what)


def _same(seed: Seed, path: Path, rng: Random) -> Case:
    table, expected = seed.table, seed.result
    change = rng.choice(("rows", "rows twice", "columns", "file", "index", "dtype"))
    if change == "rows":
        order = rng.sample(range(len(table)), len(table))
        table, expected = table.iloc[order], expected.iloc[order].reset_index(drop=True)
    elif change == "rows twice":
        table = pd.concat([table, table], ignore_index=True)
        expected = pd.concat([expected, expected], ignore_index=True)
    elif change == "columns":
        names = rng.sample(list(table), len(table.columns))
        table = table[names].assign(
            **{"a note": "x", "B2": np.nan, "predicted_us": -1.0, "kernel us": [[1]] * len(table)}
        )
    elif change == "index":
        table = table.set_index(
            pd.Index(rng.sample(range(1000), len(table)), name=rng.choice((None, "row")))
        )
    elif change == "dtype":
        names = [name for name in DIMS if name in table]
        kind = rng.choice(("float64", "Int32", "string", "Float32", "int64[pyarrow]"))
        table = table.astype({name: kind for name in names})
    path.parent.mkdir(exist_ok=True)
    if change == "file":
        write_same(pa.Table.from_pandas(table), path, rng)
        return Case(f"{seed.name}: file", lambda: seed.read(path), must="accept", truth=expected)
    return _made(seed, change, path, table, must="accept", truth=expected)


def _dim(seed: Seed, path: Path, rng: Random) -> Case:
    """One dimension of one row is no size; a sample is dropped and told, a call is refused."""
    table = seed.table.copy()
    rows = list(range(len(table)))
    row = rng.choice(rows)
    needed = NEEDED[table["op"].iloc[row]]
    name, value = rng.choice(needed), rng.choice((nonsense(rng), nonsense(rng), 0, 2.5, pd.NA))
    table[name] = table[name].astype(object).where(table[name].notna(), np.nan).astype("float64")
    table.loc[row, name] = np.nan if value is pd.NA else value
    if seed.name == "samples":
        return _made(seed, f"{name}={value}", path, table, must="accept", truth=_dropped(seed, row))
    # a transfer takes rows without dims: wave scaling needs none, and says so
    must = "either" if seed.name == "transfer" and pd.isna(value) else "refuse"
    return _made(seed, f"{name}={value}", path, table, must=must)


NEEDED = {
    "linear": ("M", "N", "K"), "bmm": ("B", "M", "N", "K"), "relu": ("B", "H"),
    "softmax": ("B", "H"), "ln": ("B", "H"), "add": ("B", "H"),
    "conv": ("B", "in_channels", "out_channels", "kernel_size", "input_size"),
}  # fmt: skip


def _dropped(seed: Seed, *rows: int) -> Callable[[Any, list[str]], str]:
    expected = seed.result.drop(index=list(rows)).reset_index(drop=True)

    def fault(found: pd.DataFrame, said: list[str]) -> str:
        told = any(f"{len(rows)} of {len(seed.table)} samples dropped" in text for text in said)
        return difference(found, expected) if told else f"does not tell what it dropped: {said}"

    return fault


def _latency(seed: Seed, path: Path, rng: Random) -> Case:
    table = seed.table.copy()
    rows = rng.sample(range(len(table)), rng.choice((1, 3)))
    value = rng.choice((nonsense(rng), 0.0, 1e9))
    table.loc[rows, "latency_us"] = value
    if seed.name == "samples":
        return _made(
            seed, f"latency={value}", path, table, must="accept", truth=_dropped(seed, *rows)
        )
    if seed.name == "transfer":
        return _made(seed, f"latency={value}", path, table, must="refuse")
    return _made(seed, f"latency={value}", path, table, must="accept", truth=seed.result)


def _column(seed: Seed, path: Path, rng: Random) -> Case:
    """A column is missing, of another type, or there twice: refused, or the same."""
    table = seed.table.copy()
    name = rng.choice(("op", "latency_us", *DIMS, "gpu"))
    if rng.random() < 0.3:
        table = table.drop(columns=name)
        # without stride and padding a convolution has the usual ones; calls need no latency and no GPU
        optional = {"stride", "padding", "gpu"} | (
            {"latency_us"} if "predict" in seed.name else set()
        )
        loose = name in optional or seed.name in ("transfer", "samples") or name == "B"
        return _made(seed, f"no {name}", path, table, must="either" if loose else "refuse")
    if rng.random() < 0.2:
        twin = pa.Table.from_pandas(table)
        twin = twin.append_column(name, twin[name])
        pq.write_table(twin, path)
        return Case(f"{seed.name}: {name} twice", lambda: seed.read(path), truth=seed.result)
    table[name] = other_dtype(table[name], rng)
    exact = str(table[name].dtype) not in ("bool", "float32") and not str(
        table[name].dtype
    ).startswith("complex")
    return _made(
        seed,
        f"{name} as {table[name].dtype}",
        path,
        table,
        **({"truth": _unless_told(seed)} if exact else {}),
    )


def _unless_told(seed: Seed) -> Callable[[Any, list[str]], str]:
    """The result is the same, or what is missing in it was told."""
    return lambda found, said: (
        ""
        if any("dropped" in each or "wave" in each for each in said)
        else difference(found, seed.result)
    )


def _op(seed: Seed, path: Path, rng: Random) -> Case:
    table = seed.table.copy()
    table.loc[rng.randrange(len(table)), "op"] = rng.choice(
        ("conv3d", "", None, "LINEAR ", "x" * 5000, "\n", "0")
    )
    return _made(seed, "op", path, table, must="either" if seed.name == "transfer" else "refuse")


def _bytes(seed: Seed, path: Path, rng: Random) -> Case:
    seed.table.to_parquet(path)
    name, content = damaged(path.read_bytes(), rng)
    return _made(seed, name, path, content, **({"must": "refuse"} if name == "cut" else {}))


def _file(seed: Seed, path: Path, rng: Random) -> Case:
    """No table at all."""
    kind = rng.choice(
        ("csv", "empty", "folder", "no rows", "json", "no columns", "link to itself", "missing")
    )
    truth: Any = ANY
    if kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "no rows":
        seed.table.iloc[:0].to_parquet(path)
    elif kind == "no columns":
        pd.DataFrame(index=range(3)).to_parquet(path)
    elif kind != "missing":
        text = {"csv": seed.table.to_csv(), "empty": "", "json": seed.table.to_json()}[kind]
        path.write_text(text)
    must = "either" if kind == "no rows" and seed.name != "samples" else "refuse"
    return Case(
        f"{seed.name}: {kind}", lambda: seed.read(path), must=must, truth=truth, named=(str(path),)
    )  # type: ignore[arg-type]
