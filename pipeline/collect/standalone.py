"""Read the output of the stand-alone script (`measure.py`, layout version 1) into this project's tables.

The script's `fused` DLRM is one `embedding_bag` over all tables with a sparse gradient. This project calls this variant
`joint_sparse`, not `fused`, so it is read as `joint_sparse`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.collect.device import name_of_card
from pipeline.collect.kernel_filter import counted
from pipeline.collect.limits import check_table
from pipeline.schemas import DIMS, SCHEMAS, read_arrow

SCHEMA_VERSION = 1
AGAIN = "measure again"

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
    return name_of_card(str(driver)) if driver else "cpu"


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
    found = pd.DataFrame(
        {"family": family, "op": raw["op"], "phase": raw["phase"].replace(PHASES), "dtype": raw["dtype"]}
    )
    pairs = pd.Series(list(zip(found["family"], found["op"], strict=True)), index=found.index)
    pinned = raw["attrs"].fillna("").str.contains('"pinned": true')
    link = found["family"].isin(["memcpy_h2d", "memcpy_d2h"])
    found["op"] = pairs.map(OPS).fillna(found["op"]).mask(link, pinned.map({True: "pinned", False: "pageable"}))
    found["op"] = found["op"].mask(raw["op"].eq("sgd_sparse_update"), "index_add")
    for name in DIMS:
        found[name] = raw[name].astype("Int64") if name in raw else pd.Series(pd.NA, index=raw.index, dtype="Int64")
    _attention_dims(found)
    found["latency_us"], found["cold"] = raw["event_us"], raw["cold"].astype(bool)
    found["kernel_us"] = raw["kernel_us"] * [
        _counted_share(*row)
        for row in zip(found["family"], found["op"], raw["kernel_names"], raw["kernel_durations_us"], strict=True)
    ]
    found["attributes"] = [_attributes(text, reps) for text, reps in zip(raw["attrs"], raw["reps"], strict=True)]
    found["kernel_name"] = [
        _longest(n, d) for n, d in zip(raw["kernel_names"], raw["kernel_durations_us"], strict=True)
    ]
    found["kernels"] = raw["n_kernels"].astype("Int64")
    for name in ("grid", "block"):
        found[name] = [
            json.dumps([int(v) for v in value]) if hasattr(value, "__len__") else None for value in raw[name]
        ]
    for name in ("registers", "shared_memory"):
        found[name] = raw[name].astype("Int64")
    identity = f"standalone-{int(float(manifest.get('started_unix', 0)))}"
    found = found.assign(gpu=gpu_of(manifest), source="measure.py", campaign_id=identity + ":" + raw["unit"])
    return found.reindex(columns=SCHEMAS["samples"].names)


def read_step_times(folder: Path, manifest: Mapping[str, Any]) -> pd.DataFrame:
    """`step_times.parquet` as a `step_times` table; `step_us` is measured without synchronisation between steps.

    Raises:
        TableError: the file is damaged.
    """
    path = folder / "step_times.parquet"
    if not path.exists():
        return pd.DataFrame(columns=SCHEMAS["step_times"].names)
    raw = _raw(path)
    each = raw["free_event_each_us"]
    variants = [
        _variant(*row)
        for row in zip(raw["variant"].fillna(""), raw["dtype"], raw["optimizer"], raw["workload"], strict=True)
    ]
    facts = [
        json.dumps(
            {
                "config": json.loads(config),
                "unit": unit,
                "trace": trace,
                "state": {"clocks.sm": clock, "temperature.gpu": heat},
                "profiled_step_us": profiled or None,
                "profiled_kernel_us": kernels or None,
            }
        )
        for config, unit, trace, clock, heat, profiled, kernels in zip(
            raw["config"], raw["unit"], raw["trace_file"], raw["sm_clock_mhz"], raw["temperature_c"],
            raw["profiled_step_us"].fillna(0.0), raw["profiled_kernel_sum_us"].fillna(0.0), strict=True,
        )
    ]  # fmt: skip
    return pd.DataFrame(
        {
            "gpu": gpu_of(manifest),
            "model": raw["workload"],
            "variant": variants,
            "batch_size": raw["batch"],
            "step_us": raw["free_step_us"],
            "p10_us": [pd.Series(v).quantile(0.1) for v in each],
            "p90_us": [pd.Series(v).quantile(0.9) for v in each],
            "count": raw["steps"],
            "source": "measure.py",
            "device_us": raw["sync_event_median_us"],
            "host_us": raw["sync_enqueue_median_us"],
            "memory_bytes": raw["max_memory_bytes"].astype("Int64"),
            "config": facts,
        }
    )


def _raw(path: Path) -> pd.DataFrame:
    check_table(path)
    found: pd.DataFrame = read_arrow(path, AGAIN, AGAIN).to_pandas()
    return found


def place_of(prefix: str) -> tuple[str, str, int] | None:
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
    own = {"bert_large": "adam", "gpt2_large": "adam"}.get(workload)
    parts += [f"optimizer-{optimizer}"] if own is not None and optimizer != own else []
    return "_".join(sorted(parts)) or "default"


def _attention_dims(found: pd.DataFrame) -> None:
    """Convert the dims of attention, in place.

    The script writes B samples, H heads, T tokens and width D. This project writes B = samples x heads, M = N = tokens
    and K = width.
    """
    rows = found["family"].eq("attention")
    if not rows.any():
        return
    part = found.loc[rows]
    found.loc[rows, "B"], found.loc[rows, "M"] = part["B"] * part["H"], part["T"]
    found.loc[rows, "N"], found.loc[rows, "K"] = part["T"], part["D"]
    found.loc[rows, ["H", "T", "D"]] = pd.NA


def _attributes(text: object, repetitions: int) -> str:
    notes = json.loads(text) if isinstance(text, str) else {}
    if "indices" in notes:
        notes["distribution"] = {"zipf1.05": "zipf:1.05"}.get(notes.pop("indices"), "uniform")
    return json.dumps({**notes, "repetitions": int(repetitions)}, sort_keys=True)


def _counted_share(family: str, op: str, names: Any, durations: Any) -> float:
    """Share of a call's device time that belongs to the call in the graph; 1 if no kernel matches.

    See `pipeline.collect.kernel_filter`.
    """
    if not hasattr(names, "__len__") or len(names) == 0:
        return 1.0
    pattern = re.compile(counted(family, op), re.IGNORECASE)
    matching = [float(d) for name, d in zip(names, durations, strict=True) if pattern.search(str(name))]
    return sum(matching) / sum(float(d) for d in durations) if sum(matching) > 0 else 1.0


def _longest(names: Any, durations: Any) -> str | None:
    if not hasattr(names, "__len__") or len(names) == 0:
        return None
    return str(names[max(range(len(names)), key=lambda i: durations[i])])[:200]
