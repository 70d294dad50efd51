"""Kernel predictions against the kernels of the public V100 and A100 DLRM traces.

Families without public samples (embedding, tril index, concat, memcpy), and short kernels of the others, are compared
with what a profiler saw. Sizes come from the trace's input shapes, for `aten::cat` from the execution trace. The A100
trace ran with TF32. Run: `python benchmarks/kernels/public_traces.py [--out TABLE.csv]`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.hardware.spec import load_gpu
from pipeline.kernels.predictor import load_predictor
from pipeline.paths import datasets_dir, packs_dir
from pipeline.trace.load import load_trace

TRACES = {
    "v100x8_dlrm": ("V100", [f"v100x8_dlrm/rank{rank}_kineto.json.gz" for rank in range(5)]),
    "a100x8_dlrm": ("A100", ["a100x8_dlrm/kineto.json.gz"]),
}
ELEMENTWISE = {
    "aten::add": "add", "aten::add_": "add", "aten::mul": "mul", "aten::mul_": "mul", "aten::div": "div",
    "aten::relu": "relu", "aten::tanh": "tanh", "aten::sigmoid": "sigmoid", "aten::sqrt": "sqrt",
}  # fmt: skip
NARROW = {"float": 4.0, "double": 8.0, "long int": 8.0, "int": 4.0}


def numel(shape):
    return float(np.prod(shape)) if shape else 1.0


def call_of(row):
    """The call that a traced kernel is, or None where its sizes are not in the trace."""
    shapes = json.loads(row.shapes) if isinstance(row.shapes, str) else []
    name, op = row["name"], row.op_name
    if row.category == "gpu_memcpy":
        family = {"HtoD": "memcpy_h2d", "DtoH": "memcpy_d2h", "DtoD": "memcpy_d2d"}
        kind = next((value for key, value in family.items() if key in name), None)
        if kind is None or pd.isna(row.bytes):
            return None
        return {"family": kind, "op": "pageable" if "Pageable" in name else "pinned", "bytes": float(row.bytes)}
    if op in ("aten::mm", "aten::addmm") and ("sgemm" in name or "s1688gemm" in name or "gemm" in name.lower()):
        left, right = shapes[-2:] if op == "aten::mm" else shapes[1:3]
        if len(left) != 2 or len(right) != 2:
            return None
        dtype = "tf32" if "s1688" in name else "fp32"
        return {"family": "gemm", "op": "mm", "dtype": dtype, "B": 1, "M": left[0], "N": left[1], "K": right[1]}
    if op == "aten::bmm" and "gemm" in name.lower():
        left, right = shapes[:2]
        dtype = "tf32" if "s1688" in name else "fp32"
        return {"family": "bmm", "op": "bmm", "dtype": dtype, "B": left[0], "M": left[1], "N": left[2], "K": right[2]}
    if op in ELEMENTWISE and "elementwise" in name:
        sizes = [numel(shape) for shape in shapes if shape]
        if not sizes:
            return None
        largest = max(sizes)
        two = sum(size == largest for size in sizes) >= 2
        kind = ELEMENTWISE[op] + ("" if two or ELEMENTWISE[op] not in ("add", "mul", "div") else "u")
        return {"family": "elementwise", "op": kind, "B": 1, "H": largest}
    if "codegen_forward" in name and "lookup" in op:
        return fbgemm_forward(op, shapes)
    if op == "aten::index" and len(shapes) and len(shapes[0]) == 3 and shapes[0][1] == shapes[0][2]:
        return {"family": "tril_index_forward", "op": "tril", "B": shapes[0][0], "F": shapes[0][1]}
    if op == "aten::native_layer_norm" and "layer_norm" in name:
        return {"family": "layer_norm", "op": "ln", "B": shapes[0][0], "H": numel(shapes[0][1:])}
    return None


def fbgemm_forward(op, shapes):
    """Tables and lookups from the shapes of FBGEMM's lookup: weights, offsets of widths, indices, bag offsets."""
    vectors = [shape[0] for shape in shapes if len(shape) == 1]
    if "dense" in op:
        tables, indices, bags, weights = vectors[1] - 0, vectors[3], vectors[4] - 1, vectors[0]
        tables = max(vectors[2] - 1, 1)
    else:
        tables, indices, bags, weights = vectors[4], vectors[8], vectors[9] - 1, max(vectors[1], 1)
    return {"family": "embedding_forward", "op": "fused", "B": bags / tables, "T": tables, "L": indices / bags,
            "weights": weights}  # fmt: skip


def traced_calls(root: Path, paths: list[str]) -> pd.DataFrame:
    rows = []
    for path in paths:
        events = load_trace(root / "traces" / path).events
        device = events[events["category"].isin(["kernel", "gpu_memcpy"])].copy()
        known = events.set_index("event_id")
        device["op_name"] = device["op"].map(known["name"].astype(object)).fillna("")
        device["shapes"] = device["op"].map(known["input_shapes"].astype(object))
        widths = output_widths(events)
        for _, row in device.iterrows():
            call = call_of(row)
            if call is None:
                continue
            if call["family"] == "embedding_forward":
                width = widths.get(int(call["T"]), 0.0)
                if not width:
                    continue
                call |= {"D": width / call["T"], "E": max(call.pop("weights") / width, 1.0)}
            rows.append(
                {"trace": path.split("/")[0], "measured_us": row.dur_ns / 1e3, "kernel_name": row["name"], **call}
            )
        rows += concat_calls(root, path, device)
    return pd.DataFrame(rows)


def output_widths(events: pd.DataFrame) -> dict[int, float]:
    """Total output width of FBGEMM lookups by number of tables, from the gradient that their backward receives."""
    names = events["name"].astype(str)
    forward = events[names.str.startswith("fbgemm::") & names.str.contains("lookup")]
    backward = events[names.str.contains("SplitLookupFunction") & events["input_shapes"].notna()]
    gradients = [json.loads(text)[0] for text in backward["input_shapes"].astype(str).unique()]
    found: dict[int, float] = {}
    for op, text in zip(forward["name"].astype(str), forward["input_shapes"].astype(str), strict=True):
        if text == "nan":
            continue
        call = fbgemm_forward(op, json.loads(text))
        for gradient in gradients:
            if len(gradient) == 2 and abs(gradient[0] - call["B"]) < 0.5:
                wide = gradient[1] / call["T"]
                if 4 <= wide <= 512:
                    found[int(call["T"])] = float(gradient[1])
    return found


def concat_calls(root: Path, path: str, device: pd.DataFrame) -> list[dict[str, object]]:
    """Concatenations, whose list of inputs only the execution trace holds; joined by order."""
    observer = root / "traces" / path.replace("_kineto", "_execution_trace")
    if not observer.is_file() or "_kineto" not in path:
        return []
    nodes = json.loads(gzip.decompress(observer.read_bytes()))["nodes"]
    cats = [node for node in sorted(nodes, key=lambda node: node["id"]) if node["name"] == "aten::cat"]
    measured = device[(device["op_name"] == "aten::cat") & device["name"].str.contains("CatArray")]
    by_op = measured.groupby("op", sort=True)["dur_ns"].sum()
    if len(by_op) != len(cats):
        cats = [node for node in cats if len(node["input_shapes"][0]) > 1]
    if len(by_op) != len(cats):
        return []
    rows = []
    for duration, node in zip(by_op, cats, strict=True):
        shape = node["output_shapes"][0]
        size = 8.0 if "long" in str(node["output_types"]) else 4.0
        rows.append({"trace": path.split("/")[0], "measured_us": duration / 1e3, "family": "concat", "op": "cat",
                     "bytes": size * numel(shape), "tensors": float(len(node["input_shapes"][0]))})  # fmt: skip
    return rows


def compare(root: Path) -> pd.DataFrame:
    """One row per distinct call: median measured and predicted kernel time."""
    tables = []
    for gpu, paths in TRACES.values():
        spec = load_gpu(gpu)
        calls = traced_calls(root, [path for path in paths if (root / "traces" / path).is_file()])
        dims = [name for name in calls.columns if name not in ("measured_us", "kernel_name")]
        calls = calls.groupby(dims, dropna=False, as_index=False).agg(
            measured_us=("measured_us", "median"), calls=("measured_us", "size")
        )
        calls = calls.assign(phase="forward", dtype=calls["dtype"].fillna("fp32") if "dtype" in calls else "fp32")
        predictor = load_predictor(spec, [packs_dir() / spec.name / "kernels"])
        tables.append(pd.concat([calls, predictor.predict(calls)], axis=1).assign(gpu=spec.name))
    return pd.concat(tables, ignore_index=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Errors per GPU, family and duration: bias (geometric), median and worst factor, share inside p10 to p90."""
    ratio = np.log(table["kernel_us"] / table["measured_us"])
    inside = (table["p10_us"] <= table["measured_us"]) & (table["measured_us"] <= table["p90_us"])
    size = np.where(table["measured_us"] < 15, "short (< 15 us)", "long")
    grouped = table.assign(ratio=ratio, inside=inside, size=size).groupby(["gpu", "family", "size"])
    return grouped.agg(
        shapes=("ratio", "size"), calls=("calls", "sum"), bias=("ratio", lambda r: np.exp(r.mean()) - 1),
        median_error=("ratio", lambda r: np.expm1(r.abs().median())), inside=("inside", "mean"),
    ).reset_index()  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    root = datasets_dir()
    if root is None:
        raise SystemExit("public data not at hand: set $STEPTIME_DATASETS")
    table = compare(root)
    if arguments.out:
        table.to_csv(arguments.out, index=False)
    print(summary(table).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
