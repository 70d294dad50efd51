"""Compares predicted kernel times with public DLRM traces: families without public samples, and very short kernels.

Only the minimum durations of kernels (`Family.start`) were set with these traces. Sizes come from the execution
trace, or from the shapes that Kineto recorded. A call is compared if its operator launched as many kernels of its kind
as the operator map says.

No trace holds the indices of FBGEMM's lookups. They are predicted with uniform indices over tables of equal width. The
update has two kernels: one with a block for each row with many uses, and one with a warp for each row with few uses. Only
the kernel to which uniform indices assign rows is compared. The work of the other depends on the indices: FBGEMM of that
time launched a warp for every lookup, even without work.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.checks.kineto_operators import kind_of_kernel, read_operators
from evaluation.checks.operator_map_check import (
    SAME_TEMPLATE_KIND,
    kind_of_call,
    owners_of,
    third_party,
    with_shapes,
)
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.families.lookup_times import BLOCK_ROWS
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.model_files import list_packs, pack_models
from pipeline.trace.kineto_fields import DEVICE_CATEGORIES
from pipeline.trace.load import load_trace

COPIES = {"Memcpy HtoD": "memcpy_h2d", "Memcpy DtoH": "memcpy_d2h", "Memcpy DtoD": "memcpy_d2d"}

LOOKUP = {"split_embedding": (1, 5, 11, 12), "dense_embedding": (0, 1, 7, 8)}
"""Inputs of FBGEMM's lookups: flat weights, one offset per table, indices, offsets."""


UPDATE = "torch::autograd::CppNode<SplitLookupFunction"
"""Beginning of the names of their updates."""


def kernels_by_operator(path: Path, nodes: list[Node]) -> dict[int, list[tuple[str, float]]]:
    """Device work that each operator launched directly, as (name, microseconds) in launch order."""
    events = load_trace(path).events
    ops = events[events["category"] == "cpu_op"].sort_values(
        ["ts_ns", "dur_ns"], ascending=[True, False], kind="stable"
    )
    # operators of equal start and length have no fixed order: the k-th of a name here is the k-th of that name there
    node_of = {
        (node.name, k): node.node_id
        for node, k in zip(nodes, _occurrence([n.name for n in nodes]), strict=True)
    }
    names = ops["name"].astype(str).tolist()
    number = {
        event: node_of[name, k]
        for event, name, k in zip(ops["event_id"].tolist(), names, _occurrence(names), strict=True)
    }
    work = events[events["category"].isin(DEVICE_CATEGORIES) & events["op"].notna()].sort_values(
        "correlation"
    )
    kernels: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for op, name, duration in zip(
        work["op"], work["name"].astype(str), work["dur_ns"], strict=True
    ):
        kernels[number[op]].append((name, duration / 1e3))
    return kernels


def _occurrence(names: list[str]) -> list[int]:
    """For each entry, the number of earlier entries with the same name."""
    return pd.Series(names).groupby(names).cumcount().tolist()


def mapped_calls(
    nodes: list[Node], gpu: Any, launched: dict[int, list[tuple[str, float]]]
) -> pd.DataFrame:
    """Calls of the operator map with the duration of their kernel, where the assignment is unambiguous."""
    calls = map_calls(Graph(write_nodes(nodes)), gpu)
    calls = calls[calls[["bytes_read", "bytes_written"]].sum(axis=1) > 0]
    owners = owners_of(nodes)
    seen: dict[tuple[int, str], list[tuple[str, float]]] = defaultdict(list)
    for node_id, kernels in launched.items():
        if not third_party(nodes, node_id):
            for name, duration in kernels:
                kind = kind_of_kernel(name)
                seen[owners[node_id], SAME_TEMPLATE_KIND.get(kind, kind)].append((name, duration))
    kinds = calls.apply(lambda call: kind_of_call(call["family"], call["op"]), axis=1)
    groups = calls.groupby([calls["node_id"], kinds], sort=False).groups
    kernel_of: dict[Any, tuple[str, float]] = {}
    for (node_id, kind), places in groups.items():  # type: ignore[misc]
        kernels = seen.get((int(node_id), str(kind)), [])
        convolution = str(calls.loc[places[0], "family"]).startswith("conv2d")
        if len(places) == 1 and kernels and convolution:  # with its changes of layout
            kernels = [(kernels[0][0], sum(us for _, us in kernels))]
        if len(kernels) == len(places):
            kernel_of |= zip(places, kernels, strict=True)
    timed = calls[calls.index.isin(list(kernel_of))]
    kernels_of_calls = [kernel_of[place] for place in timed.index]
    return as_names_show(
        timed.assign(
            measured_us=[us for _, us in kernels_of_calls],
            kernel_name=[name for name, _ in kernels_of_calls],
        )
    )


def as_names_show(timed: pd.DataFrame) -> pd.DataFrame:
    """Calls with what Kineto does not record and names of kernels show: devices of copies, and dtypes."""
    # Kineto records neither the devices of a copy nor whether products may use TF32; the kernel names show both
    for pattern, name in COPIES.items():
        rows = timed["kernel_name"].str.contains(pattern)
        timed.loc[rows, "family"] = name
        timed.loc[rows, "op"] = np.where(
            timed.loc[rows, "kernel_name"].str.contains("Pageable"), "pageable", "pinned"
        )
    # Kineto records no element types of lists of tensors, and the reader then assumes fp32
    names, fp32 = timed["kernel_name"].str, timed["dtype"] == "fp32"
    halves = (timed["family"] == "concat") & names.contains("OpaqueType<2u>") & fp32
    sizes = ("bytes", "bytes_read", "bytes_written", "inputs", "outputs")
    columns = [name for name in sizes if name in timed]
    timed.loc[halves, columns] = timed.loc[halves, columns] // 2
    timed.loc[halves, "dtype"] = "bf16"
    timed.loc[names.contains("1688gemm") & fp32, "dtype"] = "tf32"
    return timed


def lookup_calls(nodes: list[Node], launched: dict[int, list[tuple[str, float]]]) -> pd.DataFrame:
    """FBGEMM's fused lookups and their updates: sizes from the operators' shapes, durations of their main kernels."""
    rows: list[dict[str, Any]] = []
    open_: list[dict[str, Any]] = []
    for node in nodes:
        kernels = launched.get(node.node_id, [])
        first = node.inputs[0] if node.inputs else None
        kind = next((key for key in LOOKUP if f"fbgemm::{key}_codegen_lookup" in node.name), None)
        if kind is not None:
            open_ += _lookup(kind, node, kernels)
        elif node.name.startswith(UPDATE) and isinstance(first, Tensor):
            batch, width = first.shape
            match = next((one for one in reversed(open_) if one["batch"] == batch), None)
            if match is not None and (update := _update_us(match, width, kernels)):
                open_.remove(match)
                size = _sizes(match, width)
                forward = {"family": "embedding_forward", "op": "fused", "phase": "forward"}
                back = {"family": "embedding_backward", "op": "fused_sgd", "phase": "backward"}
                rows.append({**size, **forward, "measured_us": match["us"]})
                rows.append({**size, **back, "measured_us": update})
    return pd.DataFrame(rows)


def _lookup(kind: str, node: Node, kernels: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Sizes and time of a lookup, whose update comes later; none where an input has no shape."""
    inputs = [node.inputs[place] for place in LOOKUP[kind]]
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    if len(tensors) < len(inputs):
        return []
    weight, tables, indices, offsets = tensors
    count = tables.numel - (kind == "dense_embedding")  # its offsets also hold the end
    us = sum(us for name, us in kernels if "forward" in name)
    sizes = {"count": count, "weights": weight.numel, "indices": indices.numel}
    return [{"batch": (offsets.numel - 1) // count, **sizes, "us": us}]


def _update_us(lookup: dict[str, Any], width: int, kernels: list[tuple[str, float]]) -> float:
    """Time of the kernel to which uniform indices assign the rows; 0 where it did not run."""
    uses = lookup["indices"] * width / lookup["count"] / lookup["weights"]
    updating = "cta_per_row" if uses >= BLOCK_ROWS else "warp_per_row"
    return sum(us for name, us in kernels if updating in name)


def _sizes(lookup: dict[str, Any], width: int) -> dict[str, Any]:
    """Dimensions of a lookup whose tables are `width` wide together."""
    batch, count = lookup["batch"], lookup["count"]
    return {
        "B": batch,
        "T": count,
        "D": max(round(width / count), 1),
        "dtype": "fp32",
        "E": max(round(lookup["weights"] / width), 1),
        "api": "cuda",
        "L": max(round(lookup["indices"] / batch / count), 1),
    }


def compare(folder: Path, gpu_name: str) -> pd.DataFrame:
    """Calls of all ranks of one trace with `measured_us` and the prediction's columns."""
    found = []
    for path in sorted(folder.glob("*kineto.json.gz")):
        with tempfile.TemporaryDirectory() as alone:  # the two files of one rank
            prefix = path.name.removesuffix("kineto.json.gz")
            for file in folder.glob(f"{prefix}*.json.gz"):
                (Path(alone) / file.name).symlink_to(file.resolve())
            found.append(compare_rank(Path(alone), gpu_name))
    return pd.concat(found, ignore_index=True).assign(trace=folder.name)


def compare_rank(folder: Path, gpu_name: str) -> pd.DataFrame:
    """The same as `compare`, for a folder with one Kineto trace."""
    gpu = load_gpu(gpu_name)
    path = next(folder.glob("*kineto.json.gz"))
    nodes = with_shapes(folder, read_operators(path)).nodes
    launched = kernels_by_operator(path, nodes)
    calls = pd.concat(
        [mapped_calls(nodes, gpu, launched), lookup_calls(nodes, launched)], ignore_index=True
    )
    predictor = load_predictor(gpu, [pack_models(gpu.name)] if gpu.name in list_packs() else [])
    predicted = predictor.predict(calls)
    known = predicted["modelled"] & (calls["measured_us"] > 0)
    return pd.concat([calls.drop(columns="evidence"), predicted], axis=1)[known]
