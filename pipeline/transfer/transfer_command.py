"""`steptime transfer`: reads a table measured on one GPU and writes the same rows predicted on another GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.datasets.neusight import DIMS
from pipeline.errors import InputError, SteptimeWarning, TableError, UnknownNameError, did_you_mean
from pipeline.families import FAMILIES, NEUSIGHT_OPS
from pipeline.hardware.find_gpu import load_gpu, same_chip
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.samples import (
    GEOMETRY_COLUMNS,
    first_row,
    impossible_sizes,
    named_dtypes,
    numbers,
    plausible_latencies,
    read_table,
)
from pipeline.schemas import refuse_overwriting, write_parquet
from pipeline.transfer.gpu_features import COVERED_FAMILIES
from pipeline.transfer.probes import calibrate_all
from pipeline.transfer.scaling_methods import METHODS, by_auto
from pipeline.transfer.shipped_models import load_models

ADDED_COLUMNS = ("predicted_us", "p10_us", "p90_us", "method", "evidence")
"""Columns that the output has in addition to those of the input."""


def transfer_command(
    from_gpu: str,
    to_gpu: str,
    method_name: str,
    in_path: Path,
    out_path: Path,
    probes: Path | None = None,
) -> dict[str, Any]:
    """Scale the latencies of a table from one GPU to another, and write the same rows with `ADDED_COLUMNS`.

    Args:
        from_gpu: GPU of the measurements; rows of other GPUs in a `gpu` column are refused.
        to_gpu: GPU to predict.
        method_name: wave or auto.
        in_path: parquet with `op`, dims, `latency_us` and launch geometry as in NeuSight's kernels table.
        out_path: parquet to write.
        probes: parquet of a few rows measured on the destination; for `auto`.

    Returns:
        Facts to show, such as the number of rows, the share of each method and the path of the output.

    Raises:
        InputError: an unknown GPU or method, a table that cannot be used, or an output that is also an input.
    """
    origin, destination = load_gpu(from_gpu), load_gpu(to_gpu)
    if method_name not in METHODS:
        raise UnknownNameError("method", method_name, list(METHODS))
    if probes is not None and method_name != "auto":
        raise InputError(f"--probes needs --method auto, not {method_name}")
    refuse_overwriting(out_path, in_path, probes)
    table = read_measured(in_path)
    samples = as_samples(table, str(in_path))
    _check_gpu(table, origin, f"{in_path}: holds", "--from")
    if probes is not None:
        models, probed = load_models(), read_measured(probes)
        _check_gpu(probed, destination, f"{probes}: probes are", "--to")
        calibrations = calibrate_all(models, as_samples(probed, str(probes)), destination)
        predicted = by_auto(samples, origin, destination, models, calibrations)
    else:
        predicted = METHODS[method_name](samples, origin, destination)
    if method_name == "auto":
        _warn_of_wave_scaling(samples, predicted, str(in_path))
    result = table.assign(**{name: predicted[name].to_numpy() for name in ADDED_COLUMNS})
    write_parquet(result, out_path, labels=True)
    share = predicted["method"].value_counts(normalize=True)
    return {
        "from": origin.name,
        "to": destination.name,
        "rows": len(result),
        "methods": {str(name): round(float(value), 4) for name, value in share.items()},
        "median_ratio": float(np.median(predicted["predicted_us"] / samples["latency_us"]))
        if len(result)
        else None,
        "out": str(out_path),
    }


def read_measured(path: Path) -> pd.DataFrame:
    """Read a table of measured rows.

    Raises:
        TableError: the file is missing or damaged, lacks `op` or `latency_us`, or holds times that are not positive.
    """
    table = read_table(path)
    missing = [name for name in ("op", "latency_us") if name not in table.columns]
    if missing:
        raise TableError(f"{path}: column {', '.join(missing)} is missing")
    times = numbers(table["latency_us"])
    bad = ~plausible_latencies(times)
    if bad.any():
        row = first_row(bad)
        raise TableError(
            f"{path}: latency_us of row {row} is {times[row]:g}; give microseconds, above 0"
            " and at most 100 s"
        )
    return table


def as_samples(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """The table with a `family` column and rows counted from 0.

    An op is one of the public tables (`linear`) or a family (`gemm`). All others are `other`; wave scaling predicts them.

    Raises:
        TableError: a row has neither op nor family, a dimension is not a positive whole number, launch geometry is no
            whole number, or a dtype is unknown.
    """
    table = table.reset_index(drop=True)
    op = table["op"].astype(str)
    family = op.map(NEUSIGHT_OPS).fillna(op.where(op.isin(list(FAMILIES)), "other"))
    if "family" in table.columns:
        family = table["family"].astype(object).fillna(family)
    nameless = (table["op"].isna() & (family == "other")).to_numpy(dtype=bool)
    if nameless.any():
        raise TableError(f"{where}: op of row {first_row(nameless)} is empty")
    columns: dict[str, pd.Series] = {"latency_us": pd.to_numeric(table["latency_us"])}
    for name in (*DIMS, *GEOMETRY_COLUMNS):
        if name not in table:
            continue
        bad = impossible_sizes(table[name], name)
        if bad.any():
            row, rule = first_row(bad), "dims must be whole numbers above 0"
            if name in GEOMETRY_COLUMNS:
                rule = "launch geometry must be whole numbers"
            raise TableError(f"{where}: {name} of row {row} is {table[name].iloc[row]}; {rule}")
        if not pd.api.types.is_numeric_dtype(table[name]):
            columns[name] = pd.Series(numbers(table[name]), index=table.index).astype("Int64")
    if "dtype" in table:
        columns["dtype"] = named_dtypes(table["dtype"], where)
    return table.assign(family=family.astype(str), op=op, **columns)


def _warn_of_wave_scaling(samples: pd.DataFrame, predicted: pd.DataFrame, where: str) -> None:
    """Warn about rows that are scaled by wave scaling only because a dimension is missing or an op is misspelt."""
    scaled = samples[(predicted["method"] == "wave").to_numpy(dtype=bool)]
    for name in COVERED_FAMILIES:
        rows = scaled[scaled["family"] == name]
        needed = FAMILIES[name].required
        missing = [dim for dim in needed if dim not in rows.columns or rows[dim].isna().any()]
        if len(rows) and missing:
            without = f"{name} without {', '.join(missing)}"
            _warn(f"{where}: {without}, so wave scaling is used (columns: {', '.join(needed)})")
    for op in sorted(set(scaled.loc[scaled["family"] == "other", "op"])):
        if close := did_you_mean(op, (*NEUSIGHT_OPS, *COVERED_FAMILIES)):
            _warn(f"{where}: unknown op {op!r}, so wave scaling is used: {close.strip()}")


def _warn(text: str) -> None:
    warnings.warn(text, SteptimeWarning, stacklevel=3)


def _check_gpu(table: pd.DataFrame, gpu: GpuSpec, what: str, option: str) -> None:
    if "gpu" not in table.columns or table.empty:
        return
    others = sorted(
        {str(name) for name in table["gpu"].dropna().unique()} - {gpu.name, *gpu.aliases}
    )
    # convolutions of the A100 were measured on the GPU with 80 GB: a GPU with the same chip is accepted as the origin
    strange = [name for name in others if not _sibling(name, gpu)]
    if strange:
        raise InputError(
            f"{what} rows of {', '.join(strange)}, but {option} is {gpu.name}; remove these rows"
        )


def _sibling(name: str, gpu: GpuSpec) -> bool:
    try:
        return same_chip(load_gpu(name), gpu)
    except UnknownNameError:
        return False
