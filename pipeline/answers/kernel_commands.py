"""The commands `steptime kernels fit` and `steptime kernels predict`, which read and write tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.datasets.neusight import SOURCE, select_gpu
from pipeline.errors import InputError, SteptimeError, TableError
from pipeline.families import OP_NAMES, family
from pipeline.hardware.clusters import AUTO, Cluster
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.family_model import find_families, read_description
from pipeline.kernels.fit_gpu import FittedFamily, fit_gpu
from pipeline.kernels.samples import (
    CALL_COLUMNS,
    check_calls,
    clean_samples,
    read_table,
    with_families,
    with_launches,
)
from pipeline.model_files import list_packs, pack_models
from pipeline.question.several_gpus import cluster_of
from pipeline.readable import distinct
from pipeline.schemas import refuse_overwriting, write_parquet
from pipeline.transfer.probes import calibrate_all
from pipeline.transfer.shipped_models import load_models

MAX_WORKERS = 8
"""Largest number of processes of a fit. Each fits one family at a time, in 400 MB to 1.5 GB."""

ADDED_COLUMNS = {
    "predicted_us": "predicted_us",
    "kernel_us": "kernel_us",
    "p10_us": "latency_p10_us",
    "p90_us": "latency_p90_us",
    "kernel_p10_us": "p10_us",
    "kernel_p90_us": "p90_us",
    "evidence": "evidence",
}
"""Columns that a prediction adds, with those of `KernelPredictor.predict` that they are. `p10_us` and `p90_us` bracket
`predicted_us`, the latency as samples measure it; `kernel_p10_us` and `kernel_p90_us` bracket `kernel_us`."""


def read_samples(path: str | Path, gpu: str) -> tuple[pd.DataFrame, GpuSpec]:
    """Samples of one GPU from a parquet file with NeuSight's columns or in the samples schema.

    Without a `gpu` column all rows count as samples of that GPU. `samples.clean_samples` cleans the rows.

    Raises:
        TableError: the file, its columns or all of its rows are unusable, or none is of that GPU.
        UnknownNameError: no such GPU.
    """
    spec = load_gpu(gpu)
    table, where = read_table(path), str(path)
    if table.empty:
        raise TableError(f"{where}: has no samples")
    if "gpu" in table.columns:
        names = table["gpu"].astype(object).where(table["gpu"].notna(), "no GPU").astype(str)
        samples = select_gpu(table.assign(gpu=names.map(_canonical_names(names))), spec.name)
        if samples.empty:
            raise TableError(
                f"{where}: no samples of {spec.name}: the table has"
                f" {', '.join(sorted(names.unique()))}"
            )
        table = samples
    table = with_families(table, where)
    if "source" not in table.columns:
        table["source"] = (
            SOURCE if {"main_kernel", "cudnn_version"} <= set(table.columns) else Path(path).name
        )
    return clean_samples(with_launches(table), where), spec


def _canonical_names(names: pd.Series) -> dict[str, str]:
    """Names of known GPUs by the names in a table; unknown ones stay as they are."""
    canonical = {name: name for name in names.unique()}
    for name in canonical:
        with suppress(InputError):
            canonical[name] = load_gpu(name).name
    return canonical


def fit_command(
    samples_path: str | Path,
    gpu: str,
    families: Sequence[str] | None,
    out: str | Path,
    on_fit: Callable[[FittedFamily], None] | None = None,
) -> list[dict[str, Any]]:
    """Fit families of one GPU on a file of samples, into `out/<family>/`.

    Args:
        samples_path: parquet with `op`, `latency_us` and dims.
        gpu: name or alias.
        families: families (or ops) to fit; all where None or empty.
        out: folder for the models.
        on_fit: called after each family.

    Returns:
        A row per family: variant, samples, and errors on held-out rows of cross-validation, as fractions. Errors are
        None for a single sample, because it cannot be cross-validated.

    Raises:
        InputError, SteptimeError, TableError, UnknownNameError: as `read_samples` and `fit.fit_gpu`.
    """
    samples, spec = read_samples(samples_path, gpu)
    _check_folder(Path(out))
    wanted = [OP_NAMES.get(name, name) for name in families or ()]
    for name in wanted:
        family(name)
    count = min(MAX_WORKERS, os.cpu_count() or 1)
    best = fit_gpu(samples, spec, out, distinct(wanted) or None, workers=count, on_fit=on_fit)
    return [
        {
            "gpu": spec.name,
            "family": name,
            "variant": fitted.model.variant,
            "samples": fitted.model.description["samples"],
            **{key: _finite(fitted.metrics[key]) for key in ("gmae", "mape", "coverage")},
            "fit_s": round(fitted.metrics["fit_s"], 1),
            "folder": str(Path(out) / name),
        }
        for name, fitted in best.items()
    ]


def _finite(value: float) -> float | None:
    return round(value, 5) if np.isfinite(value) else None


def predict_command(
    gpu: str,
    models_dir: str | Path | None,
    in_path: str | Path,
    out_path: str | Path,
    probes: str | Path | None = None,
    cluster: str = AUTO,
) -> dict[str, Any]:
    """Predict a file of calls. The output keeps rows, order and all columns, and adds the columns `ADDED_COLUMNS`.

    Args:
        gpu: the device; a `gpu` column of the file is ignored.
        models_dir: folder that `fit_command` wrote; missing families come from the shipped packs.
        in_path: parquet with `op` and dims.
        out_path: parquet to write.
        probes: parquet of a few rows measured on the device, to calibrate families that are transferred to it.
        cluster: name or file of the cluster in which collectives run; `auto` is the usual one of the GPU.

    Returns:
        Facts to show: rows, share of rows by evidence, rows outside the samples' range.

    Raises:
        TableError: an unknown op, or a missing, not positive or absurd dim; the message names the row.
        InputError: the output is one of the inputs.
        UnknownNameError: no such GPU or cluster.
        ConfigError: the GPU does not fit into the cluster.
    """
    spec = load_gpu(gpu)
    joined = cluster_of(cluster, spec)
    refuse_overwriting(out_path, in_path, probes)
    folder = None if models_dir is None else Path(models_dir)
    if folder is not None:
        _check_models(folder, spec)
    table = read_table(in_path)
    calls = with_families(table, str(in_path)).reset_index(drop=True)
    check_calls(calls, str(in_path))
    _check_ranks(calls, joined, str(in_path))
    shipped = [pack_models(spec.name)] if spec.name in list_packs() else []
    directories = [*([folder] if folder is not None else []), *shipped]
    corrections: dict[str, Any] = {}
    if probes is not None:
        corrections |= calibrate_all(load_models(), read_samples(probes, gpu)[0], spec)
    predictor = load_predictor(spec, directories, corrections, joined)
    # a `flops` or `bytes_read` column of the user's file is not used
    predicted = predictor.predict(calls[[name for name in CALL_COLUMNS if name in calls.columns]])
    result = table.assign(
        **{name: predicted[key].to_numpy() for name, key in ADDED_COLUMNS.items()}
    )
    write_parquet(result, out_path, labels=True)
    share = predicted["evidence"].value_counts(normalize=True)
    return {
        "gpu": spec.name,
        "rows": len(result),
        "evidence": {str(kind): round(float(value), 4) for kind, value in share.items()},
        "outside_range": int((~predicted["inside"]).sum()),
        "out": str(out_path),
    }


def _check_ranks(calls: pd.DataFrame, cluster: Cluster, where: str) -> None:
    """Raise for a collective of one rank, or of more ranks than the nodes that the row names hold."""
    stated = calls.reindex(columns=["ranks", "nodes"]).astype(float)
    ranks, nodes = stated["ranks"], stated["nodes"]
    wrong = (calls["family"] == "collective") & (
        (ranks < 2) | (ranks > nodes * cluster.gpus_per_node)
    )
    if wrong.any():
        row = int(np.flatnonzero(wrong.to_numpy())[0])
        text = f"{ranks[row]:g} ranks on {nodes[row]:g} nodes; a node of {cluster.name} holds"
        text += f" {cluster.gpus_per_node}, and a collective needs 2 ranks"
        raise TableError(f"{where}: row {row}: {text}")


def _check_folder(out: Path) -> None:
    """Raise for a folder that cannot be written, before a fit that takes minutes."""
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{out}: {nearest} is a file; give a folder for the models")
    try:
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise SteptimeError(f"{out}: cannot be written ({error.strerror} in {nearest})") from None


def _check_models(folder: Path, gpu: GpuSpec) -> None:
    """Raise for a folder without models, or with models of another GPU, which would give wrong predictions."""
    families = find_families([folder])
    if not families:
        lacks = "has no fitted family" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: {lacks}; fit models into it with `steptime kernels fit`")
    for name, place in families.items():
        fitted = read_description(place).get("gpu", gpu.name)
        if fitted != gpu.name:
            raise InputError(f"{folder}: {name} was fitted on {fitted}, but --gpu is {gpu.name}")
