"""Read the output of the stand-alone script (`measure.py`, layout version 1) into this project's tables.

The script measures machines on which only torch, numpy and pyarrow can be used.
The script's `fused` DLRM is one `embedding_bag` over all tables with a sparse gradient. This project calls this variant
`joint_sparse`, not `fused`, so it is read as `joint_sparse`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.collect.campaign_folder import check_table
from pipeline.collect.device import name_of_gpu
from pipeline.collect.trace_windows import counted_kernels
from pipeline.schemas import DIMS, SCHEMAS, read_frame

SCHEMA_VERSION = 1
REMEASURE_ADVICE = "measure again"

FAMILIES = {"transpose": "copy", "tril_index": "tril_index_forward"}
"""Families with another name in this project; `tril_index` backward is a separate family."""

OPS = {
    ("embedding_forward", "embedding_bag"): "bag",
    ("embedding_backward", "embedding_bag_sparse"): "sparse",
    ("embedding_backward", "embedding_bag_dense"): "dense",
    ("conv2d_forward", "conv2d"): "conv",
    ("conv2d_backward_data", "conv2d"): "conv",
    ("conv2d_backward_weight", "conv2d"): "conv",
    ("layer_norm", "layer_norm"): "ln",
    ("pooling", "max_pool2d"): "max",
    ("pooling", "avg_pool2d"): "average",
    ("pooling", "adaptive_avg_pool2d"): "adaptive",
    ("copy", "clone"): "copy",
    ("copy", "contiguous"): "transpose",
    ("elementwise", "mul_scalar"): "mulu",
    ("elementwise", "add_inplace"): "addu",
    ("elementwise", "zero_"): "fill",
    ("elementwise", "pow2"): "powu",
    ("elementwise", "pow3"): "powu",
    ("attention", "sdpa"): "flash",
    ("memcpy_d2d", "copy_"): "memcpy",
    ("tril_index_forward", "index"): "index",
    ("tril_index_backward", "index"): "index_put",
}
"""Map from (family, op of the script) to op."""

PHASES = {"backward_data": "backward", "backward_weight": "backward", "update": "optimizer"}
VARIANTS = {"fused": "embedding-joint_sparse", "sparse": "embedding-sparse", "dense": "embedding-dense", "": "default"}


def gpu_of(manifest: Mapping[str, Any]) -> str:
    """The project's name of the GPU in a manifest; `cpu` if there was no GPU."""
    driver = manifest["device"].get("gpu")
    return name_of_gpu(str(driver)) if driver else "cpu"


def read_samples(folder: Path, manifest: Mapping[str, Any]) -> pd.DataFrame:
    """`kernels_*.parquet` as a `samples` table.

    Raises:
        TableError: a file is damaged.
    """
    tables = [_raw(path) for path in sorted(folder.glob("kernels_*.parquet"))]
    if not tables:
        return pd.DataFrame(columns=SCHEMAS["samples"].names)
    raw = pd.concat(tables, ignore_index=True)
    raw = raw[(raw["kernel_us"] > 0) & raw["event_us"].notna()].reset_index(drop=True)
    family = raw["family"].replace(FAMILIES)
    backward = raw["phase"].eq("backward")
    family = family.mask((family == "tril_index_forward") & backward, "tril_index_backward")
    family = family.mask((family == "embedding_backward") & raw["op"].eq("sgd_sparse_update"), "index")
    samples = pd.DataFrame(
        {"family": family, "op": raw["op"], "phase": raw["phase"].replace(PHASES), "dtype": raw["dtype"]}
    )
    family_op = pd.Series(list(zip(samples["family"], samples["op"], strict=True)), index=samples.index)
    pinned = raw["attrs"].fillna("").str.contains('"pinned": true')
    link = samples["family"].isin(["memcpy_h2d", "memcpy_d2h"])
    samples["op"] = family_op.map(OPS).fillna(samples["op"]).mask(link, pinned.map({True: "pinned", False: "pageable"}))
    samples["op"] = samples["op"].mask(raw["op"].eq("sgd_sparse_update"), "index_add")
    samples = samples.join(raw.reindex(columns=list(DIMS)).astype("Int64"))
    _attention_dims(samples)
    samples["latency_us"], samples["cold"] = raw["event_us"], raw["cold"].astype(bool)
    kernels = [_pairs(*row) for row in zip(raw["kernel_names"], raw["kernel_durations_us"], strict=True)]
    shares = [_counted_share(*row) for row in zip(samples["family"], samples["op"], kernels, strict=True)]
    samples["kernel_us"] = raw["kernel_us"] * shares
    samples["attributes"] = [_attributes(text, reps) for text, reps in zip(raw["attrs"], raw["reps"], strict=True)]
    samples["kernel_name"] = [max(pairs, key=lambda pair: pair[1])[0][:200] if pairs else None for pairs in kernels]
    for name in ("grid", "block"):
        samples[name] = [None if value is None else json.dumps([int(v) for v in value]) for value in raw[name]]
    for name, column in (("kernels", "n_kernels"), ("registers", "registers"), ("shared_memory", "shared_memory")):
        samples[name] = raw[column].astype("Int64")
    identity = f"standalone-{int(float(manifest.get('started_unix', 0)))}"
    samples = samples.assign(gpu=gpu_of(manifest), source="measure.py", campaign_id=identity + ":" + raw["unit"])
    return samples.reindex(columns=SCHEMAS["samples"].names)


def read_step_times(folder: Path, manifest: Mapping[str, Any]) -> pd.DataFrame:
    """`step_times.parquet` as a `step_times` table; `step_us` is measured without synchronisation between steps.

    Raises:
        TableError: the file is damaged.
    """
    path = folder / "step_times.parquet"
    if not path.exists():
        return pd.DataFrame(columns=SCHEMAS["step_times"].names)
    raw = _raw(path)
    steps_us = raw["free_event_each_us"]
    rows = raw.assign(variant=raw["variant"].fillna("")).to_dict("records")
    facts = [
        {"config": json.loads(row["config"]), "unit": row["unit"], "trace": row["trace_file"],
         "state": {"clocks.sm": row["sm_clock_mhz"], "temperature.gpu": row["temperature_c"]},
         "profiled_step_us": _measured(row["profiled_step_us"]), "profiled_kernel_us": _measured(row["profiled_kernel_sum_us"])}
        for row in rows
    ]  # fmt: skip
    return pd.DataFrame(
        {
            "gpu": gpu_of(manifest),
            "model": raw["workload"],
            "variant": [_variant(row["variant"], row["dtype"], row["optimizer"], row["workload"]) for row in rows],
            "batch_size": raw["batch"],
            "step_us": raw["free_step_us"],
            "p10_us": [pd.Series(v).quantile(0.1) for v in steps_us],
            "p90_us": [pd.Series(v).quantile(0.9) for v in steps_us],
            "count": raw["steps"],
            "source": "measure.py",
            "device_us": raw["sync_event_median_us"],
            "host_us": raw["sync_enqueue_median_us"],
            "memory_bytes": raw["max_memory_bytes"].astype("Int64"),
            "config": [json.dumps(row) for row in facts],
        }
    )


def _raw(path: Path) -> pd.DataFrame:
    check_table(path)
    return read_frame(path, REMEASURE_ADVICE, REMEASURE_ADVICE)


def identity_of(prefix: str) -> tuple[str, str, int] | None:
    """(model, variant, batch size) of the script's trace folder `workload[-variant]-b<batch>-dtype-optimizer`."""
    match = re.fullmatch(r"(\w+?)(?:-(fused|sparse|dense))?-b(\d+)-(\w+)-(\w+)", prefix)
    if match is None:
        return None
    workload, variant, batch, dtype, optimizer = match.groups()
    return workload, _variant(variant or "", dtype, optimizer, workload), int(batch)


def _variant(embedding: str, dtype: str, optimizer: str, workload: str) -> str:
    """This project's name of the script's variant; the optimizer is named if it is not the workload's default."""
    parts = [] if not embedding else [VARIANTS[embedding]]
    parts += [f"dtype-{dtype}"] if dtype != "fp32" else []
    parts += [f"optimizer-{optimizer}"] if workload in ("bert_large", "gpt2_large") and optimizer != "adam" else []
    return "_".join(sorted(parts)) or "default"


def _attention_dims(samples: pd.DataFrame) -> None:
    """Convert the dims of attention, in place.

    The script writes B samples, H heads, T tokens and width D. This project writes B = samples x heads, M = N = tokens
    and K = width.
    """
    rows = samples["family"].eq("attention")
    if not rows.any():
        return
    part = samples.loc[rows]
    samples.loc[rows, "B"], samples.loc[rows, "M"] = part["B"] * part["H"], part["T"]
    samples.loc[rows, "N"], samples.loc[rows, "K"] = part["T"], part["D"]
    samples.loc[rows, ["H", "T", "D"]] = pd.NA


def _attributes(text: object, repetitions: int) -> str:
    notes = json.loads(text) if isinstance(text, str) else {}
    if "indices" in notes:
        notes["distribution"] = {"zipf1.05": "zipf:1.05"}.get(notes.pop("indices"), "uniform")
    return json.dumps({**notes, "repetitions": int(repetitions)}, sort_keys=True)


def _measured(us: float | None) -> float | None:
    """A time, or None if it is missing or 0."""
    return None if us is None or math.isnan(us) or us == 0 else us


def _pairs(names: Any, durations: Any) -> list[tuple[str, float]]:
    """(name, µs) of each kernel of a call; empty if none were recorded."""
    return [] if names is None else [(str(name), float(us)) for name, us in zip(names, durations, strict=True)]


def _counted_share(family: str, op: str, kernels: Sequence[tuple[str, float]]) -> float:
    """Share of a call's device time that belongs to the call in the graph; 1 if no kernel matches.

    See `trace_windows.counted_kernels`.
    """
    pattern = re.compile(counted_kernels(family, op), re.IGNORECASE)
    matching = sum(us for name, us in kernels if pattern.search(name))
    return matching / sum(us for _, us in kernels) if matching > 0 else 1.0
