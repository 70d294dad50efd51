"""Functions to read, check and split samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.errors import SteptimeWarning, TableError, did_you_mean, shown
from pipeline.families import FAMILIES, NEUSIGHT_OPS, OP_NAMES, family
from pipeline.families.dims import ELEMENT_BYTES, Dims, values_of
from pipeline.families.family import Family
from pipeline.families.gemm import work as product_work
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.collective_formulas import kinds
from pipeline.schemas import DIMS, read_frame, write_table
from pipeline.schemas import read_table as read_artifact

CALL_COLUMNS = ("family", "op", "phase", "dtype", "attributes", *DIMS)
"""Columns of a table of calls that models read."""

MAX_LATENCY_US = 1e8
"""Largest plausible latency, microseconds (100 s). A longer latency indicates a wrong unit or a wrong clock."""

MAX_DIM = 1e12
"""Largest plausible dimension of a call. A number of bytes is also a dimension."""

MAX_SIDE = 2.0**31
"""Largest number of rows, columns or channels of an operand, because libraries index them with 32 bits."""

FLAGS = ("trans_a", "trans_b")
"""Dims that are 0 or 1: whether a factor is stored transposed."""

BYTES = ("bytes", "inputs", "outputs")
"""Dims that count bytes."""

GEOMETRY_COLUMNS = (
    *(f"{side}_{axis}" for side in ("grid", "block") for axis in "xyz"),
    "registers",
    "shared_memory",
)
"""Columns of the launch geometry; 0 means that the geometry was not recorded."""

MAY_BE_ZERO = (*FLAGS, "padding", "padding_w", "inputs", "outputs", *GEOMETRY_COLUMNS)
"""Columns whose smallest value is 0."""

MAX_BYTES = 1e13
"""Largest traffic of one call, bytes (10 TB). No GPU's memory holds more."""

TORCH_DTYPES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip
"""PyTorch's names of dtypes, in lower case, where they differ from ours."""


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a parquet table of samples or calls; a named pandas index becomes a column.

    Raises:
        TableError: the file is missing or not parquet, or a column of numbers holds dates, durations or truth values.
    """
    table = read_frame(path, "name another", "name a parquet table")
    for name in table.columns.intersection([*DIMS, "latency_us"]):
        column = table[name]
        if column.ndim > 1:
            raise TableError(f"{path}: column {name} is there twice; keep one")
        if odd := _no_numbers(column) - ({bool, np.bool_} if name in FLAGS else set()):
            raise TableError(f"{path}: column {name} holds {odd.pop().__name__}; give numbers")
    named = [name for name in table.index.names if name is not None and name not in table.columns]
    return table.reset_index(level=named) if named else table


def _no_numbers(values: pd.Series) -> set[type]:
    """Types of values that pandas would convert to numbers in another unit, or cannot convert."""
    kinds = set(map(type, values.dropna())) if values.dtype == object else {values.dtype.type}
    usable = Number, str, pd.CategoricalDtype.type
    odd = bool, np.bool_, np.timedelta64
    return {kind for kind in kinds if not issubclass(kind, usable) or kind in odd}


def first_row(marked: Flags) -> int:
    """Number of the first marked row, for an error message."""
    return int(np.flatnonzero(marked)[0])


def numbers(values: pd.Series) -> Array:
    """Values of a column as numbers, NaN where they are none; shape (rows,)."""
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def plausible_latencies(latency_us: Array) -> Flags:
    """Which latencies can be measurements: positive, and at most `MAX_LATENCY_US`; shape (rows,)."""
    with np.errstate(invalid="ignore"):
        return (latency_us > 0) & (latency_us <= MAX_LATENCY_US)


def impossible_sizes(values: pd.Series, name: str) -> Flags:
    """Which given values no call can have as a dim, because they are no whole numbers of its range; shape (rows,)."""
    found = numbers(values)
    least = 0.0 if name in MAY_BE_ZERO else 1.0
    most = 1.0 if name in FLAGS else MAX_SIDE if name in DIMS and name not in BYTES else MAX_DIM
    with np.errstate(invalid="ignore"):
        possible = (found >= least) & (found <= most) & (found == np.floor(found))
    return np.asarray(values.notna() & ~possible, dtype=bool)


def with_families(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Add `family`, `phase` and `dtype` to a table from its `op` names (`families.OP_NAMES`); existing values are kept.

    A row that names only a family, in `op` or in `family`, gets the family's first op.

    Raises:
        TableError: both `op` and `family` are missing, or an op, family or dtype is unknown; the message lists
            the choices.
    """
    if "op" not in table.columns and "family" not in table.columns:
        raise TableError(f"{where}: column op is missing; in each row {_op_choices()}")
    nothing = pd.Series(None, index=table.index, dtype=object)
    op = table["op"].astype("string").astype(object) if "op" in table.columns else nothing
    families = op.map(OP_NAMES).astype(object)
    others = op[families.isna()].dropna().unique()
    collectives = others[kinds(others) != ""]  # by the names that NCCL and PyTorch give them
    families = families.where(~op.isin(collectives), "collective")
    if "family" in table.columns:
        named = table["family"].astype(object)
        families = named.where(named.notna(), families)
    bad = families.isna() | ~families.isin(list(FAMILIES))
    if bad.any():
        row = first_row(bad.to_numpy())
        column = "family" if pd.notna(families.iloc[row]) else "op"
        name = str(families.iloc[row] if column == "family" else op.iloc[row])
        close = did_you_mean(name, OP_NAMES if column == "op" else FAMILIES)
        raise TableError(
            f"{where}: row {row}: unknown {column} {shown(name)}: {close}{_op_choices()}"
        )
    first = {name: entry.ops[0] for name, entry in FAMILIES.items() if entry.ops}
    op = op.where(op.notna() & (op != families), families.map(first))
    full = table.assign(op=op, family=families)
    phases = families.map({name: entry.phase for name, entry in FAMILIES.items()})
    for column, value in (("phase", phases), ("dtype", "fp32")):
        full[column] = full[column].fillna(value) if column in full.columns else value
    full["dtype"] = named_dtypes(full["dtype"], where)
    return full


def named_dtypes(names: pd.Series, where: str) -> pd.Series:
    """Our names of dtypes, from ours or PyTorch's (`torch.float16`); missing values stay missing.

    Raises:
        TableError: a dtype is unknown; models would treat it as fp32.
    """
    lower = {name: str(name).lower().removeprefix("torch.") for name in names.dropna().unique()}
    ours = {name: TORCH_DTYPES.get(text, text) for name, text in lower.items()}
    strange = [name for name, text in ours.items() if text not in ELEMENT_BYTES]
    if strange:
        row = first_row((names == strange[0]).to_numpy(dtype=bool, na_value=False))
        close = did_you_mean(strange[0], ELEMENT_BYTES)
        choices = ", ".join(ELEMENT_BYTES)
        raise TableError(
            f"{where}: row {row}: unknown dtype {shown(str(strange[0]))}: {close}choose one of"
            f" {choices}"
        )
    return names.astype(object).map(ours).astype(object)


def _op_choices() -> str:
    """The choices to list in an error message: ops of the public tables, and families."""
    families = ", ".join(name for name in FAMILIES if name in OP_NAMES)
    return f"choose one of {', '.join(NEUSIGHT_OPS)}, or a family: {families}"


def with_launches(table: pd.DataFrame) -> pd.DataFrame:
    """Add `kernel_name`, `grid` and `block` if the table has only NeuSight's columns (`main_kernel`, `grid_x`)."""
    added: dict[str, pd.Series] = {}
    if "kernel_name" not in table.columns and "main_kernel" in table.columns:
        added["kernel_name"] = table["main_kernel"].astype(object)
    for side in ("grid", "block"):
        axes = [f"{side}_{axis}" for axis in "xyz"]
        if side not in table.columns and set(axes) <= set(table.columns):
            x, y, z = (table[axis].astype("string").fillna("0") for axis in axes)
            added[side] = "[" + x + "," + y + "," + z + "]"
    return table.assign(**added)


def bad_dims(table: pd.DataFrame) -> pd.Series:
    """The problem of each row's dims ("" if none): missing, not a whole number, not positive, or implausibly large."""
    problem = np.full(len(table), "", dtype=object)
    rows = table.reset_index(drop=True)
    for name, group in rows.groupby("family", sort=False, observed=True):
        entry, at = family(str(name)), group.index.to_numpy()
        for dim in entry.dims:
            if dim in rows.columns:
                wrong = impossible_sizes(group[dim], dim)
                if dim in entry.required:
                    wrong = wrong | group[dim].isna().to_numpy(dtype=bool)
                values = group[dim].to_numpy(dtype=object)[wrong]
                problem[at[wrong]] = [f"{dim} = {value}" for value in values]
            elif dim in entry.required:
                problem[at] = f"column {dim} is missing"
        fine = at[problem[at] == ""]
        if len(fine):
            d = Dims(group[problem[at] == ""])
            heavy = {"more than 10 TB of operands": entry.work(d).bytes > MAX_BYTES}
            faults = {**_contradictions(entry, d), **heavy}
            for text, wrong in faults.items():
                problem[fine[wrong]] = text
    return pd.Series(problem, index=table.index)


def _contradictions(entry: Family, d: Dims) -> dict[str, Flags]:
    """What no call of a family can have, and which rows have it, shape (rows,)."""
    if not {"kernel_size", "input_size"} <= set(entry.required):
        return {}
    hollow, dilation = [], d("dilation", 1.0)
    for side in ("", "_w"):
        window = dilation * (d(f"kernel_size{side}", d("kernel_size")) - 1) + 1
        padding = d(f"padding{side}", d("padding", 0.0))
        hollow.append(window > d(f"input_size{side}", d("input_size")) + 2 * padding)
    uneven = {
        f"{name} that groups does not divide": np.mod(d(name), d("groups", 1.0)) != 0
        for name in ("out_channels", "in_channels")
    }
    return uneven | {"a window larger than the padded image": np.any(hollow, axis=0)}


def check_calls(table: pd.DataFrame, where: str) -> None:
    """Check that calls can be predicted.

    Raises:
        TableError: a row has bad dims; the message names the first one and its problem.
    """
    problem = bad_dims(table).to_numpy(dtype=object)
    bad = problem != ""
    if bad.any():
        row, count = first_row(bad), int(bad.sum())
        more = f" (and {count - 1} more rows)" if count > 1 else ""
        raise TableError(
            f"{where}: row {row}: {table['op'].iloc[row]}: {problem[row]}; dims must be positive"
            f" whole numbers of plausible size{more}"
        )


def clean_samples(samples: pd.DataFrame, where: str = "samples") -> pd.DataFrame:
    """Drop samples that cannot be measurements, with a warning that counts them.

    A row is dropped if its latency is not a number, not positive or longer than `MAX_LATENCY_US`, or if its dims
    are bad. Row order is kept.

    Raises:
        TableError: a required column is missing, or no usable row is left.
    """
    if "latency_us" not in samples.columns:
        raise TableError(f"{where}: column latency_us is missing")
    latency = numbers(samples["latency_us"])
    problem = bad_dims(samples).to_numpy(dtype=object)
    keep = plausible_latencies(latency) & (problem == "")
    if not keep.any():
        reason = "latency_us must be positive microseconds"
        if len(problem) and problem[0]:
            reason = f"row 0: {problem[0]}"
        raise TableError(f"{where}: no usable sample ({reason})")
    if not keep.all():
        dropped = f"{int((~keep).sum())} of {len(keep)} samples dropped"
        text = f"{where}: {dropped}: wrong latency or dims"
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return cast(pd.DataFrame, samples.assign(latency_us=latency)[keep].reset_index(drop=True))


def shape_keys(samples: pd.DataFrame) -> npt.NDArray[np.uint64]:
    """A key for each row's shape, from the dims only. Rows that differ only in op, dtype or phase share a key."""
    names = sorted(
        {dim for name in samples["family"].unique() for dim in family(str(name)).dims}
        & set(samples.columns)
    )
    shapes = pd.DataFrame(
        {name: np.nan_to_num(numbers(samples[name]), nan=-1.0).astype("int64") for name in names}
    )
    return np.asarray(pd.util.hash_pandas_object(shapes, index=False), dtype=np.uint64)


def assign_folds(samples: pd.DataFrame, folds: int, seed: int) -> Ints:
    """A fold number per row, the same for all rows of a shape; folds have equal numbers of shapes.

    Published figures depend on these folds, and not on those of scikit-learn's `GroupKFold`.
    """
    shapes, inverse = np.unique(shape_keys(samples), return_inverse=True)
    numbers = np.arange(len(shapes)) % max(folds, 1)
    np.random.default_rng(seed).shuffle(numbers)
    return np.asarray(numbers[inverse], dtype=np.int64)


def families_of(samples: pd.DataFrame, wanted: Sequence[str] | None) -> list[str]:
    """Families to fit: the wanted ones, or all in descending order of their number of samples.

    Raises:
        UnknownNameError: a wanted family does not exist.
        TableError: a wanted family has no samples.
    """
    counts = samples["family"].value_counts()
    if not wanted:
        return [str(name) for name in counts.index]
    for name in wanted:
        family(name)
        if name not in counts:
            raise TableError(
                f"no samples of family {name}: the table has {', '.join(map(str, counts.index))}"
            )
    return list(wanted)


PRODUCTS = ("gemm", "bmm")
"""Families whose kernels need at least the counted FLOPs. Convolutions are excluded: Winograd kernels need fewer."""

MAX_PEAK_MULTIPLE = 4.0
"""Multiple of the GPU's peak FLOP/s that no correct sample reaches. Boost clocks and peaks that were measured too low
give ratios below 2. TF32 on an A100 is 8 times as fast as its fp32, and milliseconds give a factor of 1000."""

MAX_FAULTY_SHARE = 0.05
"""Share of a family's samples up to which such rows are accepted as errors of single measurements."""


def check_rates(samples: pd.DataFrame, gpu: GpuSpec, name: str) -> None:
    """Reject a family's samples (one row per call) if more than `MAX_FAULTY_SHARE` exceed `MAX_PEAK_MULTIPLE` peaks.

    Raises:
        TableError: the samples are rejected; the message names the first such row.
    """
    # some figures of the local machine are assumed, and a model learns a constant from equal samples, in any unit
    equal = samples["latency_us"].nunique() <= 1
    if name not in PRODUCTS or gpu.name == LOCAL or equal:
        return
    d = Dims(samples)
    dtype = d.dtype
    known = [key for key in set(dtype) if getattr(gpu, f"{key}_gflop_per_s", None)]
    peak = values_of(dtype, {key: gpu.peak_gflop_per_s(key) for key in known}, np.nan)
    times_peak = product_work(d).flops / 1e3 / d("latency_us") / peak
    beyond = np.flatnonzero(times_peak > MAX_PEAK_MULTIPLE)
    if len(beyond) <= MAX_FAULTY_SHARE * len(samples):
        return
    row = int(beyond[0])
    raise TableError(
        f"samples of {name}: {len(beyond)} of {len(samples)} are faster than {gpu.name} can compute"
        f" (row {row}: {times_peak[row]:,.0f} times its {dtype[row]} peak): latency_us must be"
        " microseconds, and dtype what was computed in (tf32 where PyTorch was allowed to use it)"
    )


def write_families(
    samples: pd.DataFrame,
    families: Sequence[str],
    paths: Sequence[str | Path],
    provenance: Mapping[str, Any],
) -> None:
    """Write a samples table as one file per family; a family without samples gets an empty table.

    Raises:
        TableError: the samples hold a family that is not among `families`.
    """
    strange = sorted(set(samples["family"]) - set(families))
    if strange:
        raise TableError(
            f"samples of unexpected families {', '.join(strange)}: expected {', '.join(families)}"
        )
    for name, path in zip(families, paths, strict=True):
        write_table(samples[samples["family"] == name], path, "samples", provenance)


def read_families(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Read several sample tables as one table."""
    return pd.concat([read_artifact(path, "samples") for path in paths], ignore_index=True)
