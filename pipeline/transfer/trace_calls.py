"""Device calls of a trace as a table for the transfer methods: family, dims, launch geometry, measured time.

Dims come from the launching op's input shapes (recorded with `record_shapes=True`). Without shapes, wave scaling
predicts a call. Matrix products and forward convolutions get their family. Copies between host and device, and
collectives, have kinds of their own because wave scaling does not apply to them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.graph.execution_trace import DTYPES
from pipeline.graph.opmap import find_row
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s
from pipeline.kernels.physics import raised_to_min_duration
from pipeline.prediction import Arithmetic
from pipeline.trace.host_activity import Activity
from pipeline.trace.kineto_fields import Category
from pipeline.transfer.methods import STEP_WAVE_SHARE, WAVE_LOG_SIGMA, by_wave, on_tensor_cores, step_calls_us
from pipeline.transfer.probes import P90_SIGMAS
from pipeline.transfer.shipped_models import load_models

Ints = npt.NDArray[np.int64]

PRODUCT_OPS = {"aten::addmm": "gemm", "aten::mm": "gemm", "aten::linear": "gemm", "aten::bmm": "bmm",
               "aten::baddbmm": "bmm"}  # fmt: skip
"""Family of ops whose main kernel is a matrix product."""

CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution", "aten::_convolution", "aten::conv2d")

CONVOLUTION_DIMS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "kernel_size_w",
    "input_size",
    "input_size_w",
    "groups",
)

WINDOW_DIMS = ("stride", "stride_w", "padding", "padding_w", "dilation")
"""Stride, padding and dilation of the window; known where a trace holds values of inputs."""

PRODUCT_KERNELS = "gemm|cutlass|gemv|nvjet"
"""Pattern in the names of matrix-product kernels; `nvjet` are cuBLAS's own kernels since Hopper.

Other kernels of such an op (bias, split-K reduction) are predicted by wave scaling."""

HALF_PRECISION_TYPES = {name: short for name, short in DTYPES.items() if short in ("fp16", "bf16")}
"""Kineto's names of the half-precision types, which tensor cores process directly, and their short names."""

TF32_KERNELS = "tf32|tensorop|s1688|nvjet"
"""Pattern in the names of kernels that multiply fp32 matrices on tensor cores in TF32."""

CONVOLUTION_KERNELS = "gemm|cutlass|scudnn|winograd|conv|nvjet"

COUNTED_KERNELS = f"(?<!fb)(?:{CONVOLUTION_KERNELS})|gemv|flash|fmha|attention"
"""Pattern in the names of kernels that compute products, not of FBGEMM's: their op must be known for the FLOPs of a step."""

CONVOLUTION_GRADIENTS = {"dgrad": "conv2d_backward_data", "wgrad": "conv2d_backward_weight"}
"""Words in the names of convolution kernels, and the family that they show."""


def trace_calls(act: Activity, calls: Ints) -> pd.DataFrame:
    """One row per call of `calls` (positions in the activity), in their order.

    Returns:
        Columns `kernel_name, stream, op, family, kind, latency_us, grid, block, registers, shared_memory, bytes, dtype`
        and dims. `kind` is kernel, copy (device only), link (host and device) or collective. `dtype` is the type in
        which a product is computed: fp32, tf32, fp16 or bf16. `op_event` is the event of `op`, whose products have `flops`
        (NaN where shapes do not show them); `step_event` and `step_op` are the top-level operator.
    """
    events = act.trace.events
    columns = ["name", "category", "stream", "grid", "block", "registers", "shared_memory", "bytes"]
    table = events.loc[act.call_event[calls], columns].reset_index(drop=True)
    table = table.astype({name: object for name in ("name", "category", "grid", "block")})
    launch = act.action_event[act.call_action[calls]]
    op_event = events["op"].to_numpy(dtype=np.float64, na_value=np.nan)[launch]
    linked = ~np.isnan(op_event)
    row = np.where(linked, op_event, 0).astype(np.int64)
    op = np.where(linked, act.trace.names[row], "unknown")

    def of_op(name: str) -> npt.NDArray[Any]:
        """A column of the launching ops; None where a trace lacks the column or a call has no op."""
        absent = np.full(len(row), None, object)
        column: npt.NDArray[Any] = events[name].astype(object).to_numpy()[row] if name in events else absent
        return np.where(linked, column, absent)

    latency_us = (act.call_end - act.call_start)[calls] / 1000.0
    top = events["top"].fillna(-1).to_numpy(np.int64)[launch]
    step_event = np.where(top >= 0, top, row)
    frame = table.rename(columns={"name": "kernel_name"}).assign(op=op, latency_us=latency_us, op_event=row)
    frame["step_event"], frame["step_op"] = step_event, np.where(linked, act.trace.names[step_event], op)
    name = frame["kernel_name"].astype(str)
    moves = frame["category"].isin([Category.MEMCPY, Category.MEMSET])
    frame["kind"] = np.select(
        [moves & name.str.contains("HtoD|DtoH|Host"), moves, name.str.contains("nccl|rccl", case=False)],
        ["link", "copy", "collective"],
        "kernel",
    )
    half = np.array([_half_precision_type(text) for text in of_op("input_dtypes")], object)
    tf32 = name.str.contains(TF32_KERNELS, case=False).to_numpy()
    frame["dtype"] = np.where(half != "", half, np.where(tf32, "tf32", "fp32"))
    described = list(zip(op, of_op("input_shapes"), of_op("input_values"), strict=True))
    dims = pd.DataFrame([_dims(str(name), shapes, values) for name, shapes, values in described], index=frame.index)
    flops = np.array([_flops(str(name), shapes, values) for name, shapes, values in described])
    frame["flops"] = np.where((flops == 0) & name.str.contains(COUNTED_KERNELS, case=False), np.nan, flops)
    for column in ("family", "B", "M", "N", "K", *CONVOLUTION_DIMS, *WINDOW_DIMS):
        frame[column] = dims.get(column, np.nan)
    main = name.str.contains(PRODUCT_KERNELS, case=False) | (
        (frame["family"] == "conv2d_forward") & name.str.contains(CONVOLUTION_KERNELS, case=False)
    )
    frame["family"] = frame["family"].astype(object).where(main, "other").fillna("other")
    # input shapes do not show stride and padding: assume the values of most convolutions and of the training samples
    usual = {"stride": 1.0, "stride_w": 1.0, "dilation": 1.0, "padding": np.floor(frame["kernel_size"] / 2),
             "padding_w": np.floor(frame["kernel_size_w"] / 2)}  # fmt: skip
    for column, value in usual.items():
        frame[column] = frame[column].astype(float).fillna(value)
    return frame


def traced_arithmetic(calls: pd.DataFrame, gpu: GpuSpec) -> Arithmetic | None:
    """What `trace_calls` compute, with the peaks of a GPU; None where shapes do not show all products.

    What a step runs again (checkpoints) counts too: a trace does not tell it apart.
    """
    flops = _traced_flops(calls)
    peaks = {dtype: gpu.datasheet_gflop_per_s(dtype) / 1000 for dtype in flops}
    return Arithmetic(sum(flops.values()), next(iter(flops)), peaks) if flops else None


def _traced_flops(calls: pd.DataFrame) -> dict[str, float]:
    longest = calls.sort_values("latency_us", kind="stable").drop_duplicates("op_event", keep="last")
    sums = longest.groupby("dtype")["flops"].sum().sort_values(ascending=False)
    known = calls["flops"].notna().all()
    return {str(dtype): float(value) for dtype, value in sums.items() if value > 0} if known else {}


def _half_precision_type(types: Any) -> str:
    """The half-precision type among the JSON text of an op's input types; empty where there is none."""
    text = types if isinstance(types, str) else ""
    return next((short for name, short in HALF_PRECISION_TYPES.items() if f'"{name}"' in text), "")


def _dims(op: str, shapes: Any, values: Any = None) -> dict[str, Any]:
    """Family and dims of an op from the JSON texts of its input shapes and values; empty if shapes do not show them."""
    try:
        sizes = [s for s in json.loads(shapes) if isinstance(s, list) and s and isinstance(s[0], int)]
    except (TypeError, ValueError):
        return {}
    family = PRODUCT_OPS.get(op)
    if family == "gemm":
        matrices = [s for s in sizes if len(s) >= 2][-2:]
        if len(matrices) == 2:
            left, right = matrices
            m, n = int(np.prod(left[:-1])), left[-1]
            k = right[0] if op == "aten::linear" else right[-1]
            return {"family": family, "B": 1, "M": m, "N": n, "K": k}
    if family == "bmm":
        matrices = [s for s in sizes if len(s) == 3][-2:]
        if len(matrices) == 2:
            (b, m, n), (_, _, k) = matrices
            return {"family": family, "B": b, "M": m, "N": n, "K": k}
    if op in CONVOLUTIONS and len(sizes) >= 2 and len(sizes[0]) == 4 and len(sizes[1]) == 4:
        (b, c, height, width), (out, per_group, window, window_w) = sizes[:2]
        return {"family": "conv2d_forward", "B": b, "in_channels": c, "out_channels": out, "kernel_size": window,
                "kernel_size_w": window_w, "input_size": height, "input_size_w": width,
                "groups": max(c // max(per_group, 1), 1), **_window(op, values)}  # fmt: skip
    return {}


def _flops(op: str, shapes: Any, values: Any) -> float:
    """FLOPs of an op's products, a multiply-add as two; 0 for an op without products, NaN where its inputs do not show them."""
    if op == "aten::convolution_backward" or "attention" in op:
        try:
            tensors = [s for s in json.loads(shapes) if isinstance(s, list) and s]
            if op == "aten::convolution_backward":
                gradients: int = sum(word == "True" for word in json.loads(values)[-1].strip("[]").split(", ")[:2])
                return 2.0 * gradients * float(np.prod(tensors[0])) * float(np.prod(tensors[2][1:]))
            query, key = tensors[1:3] if "backward" in op else tensors[:2]
            keys: int = key[2 if "scaled_dot_product" in op else 1]  # the others have heads behind the sequence
            return (8.0 if "backward" in op else 4.0) * float(np.prod(query)) * keys
        except (TypeError, ValueError, IndexError):
            return float("nan")
    if op not in PRODUCT_OPS and op not in CONVOLUTIONS:
        return 0.0
    d = _dims(op, shapes, values)
    if "N" in d:
        return float(2 * d["B"] * d["M"] * d["N"] * d["K"])
    if "padding" not in d:
        return float("nan")
    high, wide = (
        (d[f"input_size{way}"] + 2 * d[f"padding{way}"] - d["dilation"] * (d[f"kernel_size{way}"] - 1) - 1)
        // d[f"stride{way}"]
        + 1
        for way in ("", "_w")
    )
    products = d["kernel_size"] * d["kernel_size_w"] * d["in_channels"] // d["groups"]
    return float(2 * d["B"] * d["out_channels"] * high * wide * products)


def _window(op: str, values: Any) -> dict[str, int]:
    """Stride, padding and dilation of a convolution, from the input values of a trace; empty without them.

    PyTorch records input values beside shapes since version 2.1.
    """
    stride, padding, dilation = (3, 2, 4) if op == "aten::cudnn_convolution" else (3, 4, 5)
    try:
        arguments = json.loads(values)
        (high, wide), (above, left), (apart, _) = (_pair(arguments[at]) for at in (stride, padding, dilation))
    except (TypeError, ValueError, IndexError):
        return {}
    return {"stride": high, "stride_w": wide, "padding": above, "padding_w": left, "dilation": apart}


def _pair(text: str) -> tuple[int, int]:
    first, *rest = map(int, text.strip("[]").split(","))
    return first, rest[-1] if rest else first


def named_families(calls: pd.DataFrame) -> list[str]:
    """Family of each row of `trace_calls` for reports: that of the launching op in the operator map, else `other`.

    The column `family`, for the transfer methods, is narrower.

    Copies and collectives have families by their kind. The two gradients of a convolution are told apart by the names
    of their kernels.
    """
    columns = (calls[name].astype(str) for name in ("op", "kernel_name", "kind", "family"))
    return [_family(*row) for row in zip(*columns, strict=True)]


def _family(op: str, kernel: str, kind: str, family: str) -> str:
    if kind == "collective":
        return "collective"
    if kind == "link":
        return "memcpy_d2h" if "DtoH" in kernel else "memcpy_h2d"
    if kind == "copy":
        return "memset" if "memset" in kernel.lower() else "memcpy_d2d"
    if family != "other":
        return family
    if op.startswith("aten::cudnn_convolution_backward"):  # before PyTorch 1.11
        return f"conv2d_backward_{'weight' if op.endswith('weight') else 'data'}"
    row = find_row(op)
    rules = row.calls if row is not None else ()
    last = rules[-1].family if rules else "other"
    if last == "conv2d_backward_data":
        return next((name for word, name in CONVOLUTION_GRADIENTS.items() if word in kernel), last)
    return last


def transferred(calls: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> pd.DataFrame:
    """Times of traced calls on another GPU. Traced times are kernel times, without a latency floor."""
    moved = by_wave(calls.assign(family="other"), origin, destination)
    if origin == destination:
        return moved
    measured = calls["latency_us"].to_numpy(dtype=np.float64)
    predicted, method = moved["predicted_us"].to_numpy(dtype=np.float64, copy=True), moved["method"].to_numpy(copy=True)
    half = float(np.exp(P90_SIGMAS * WAVE_LOG_SIGMA))
    bandwidth = sustained_dram_gb_per_s(origin) / sustained_dram_gb_per_s(destination)
    ratios = {"link": origin.pcie_gb_per_s / destination.pcie_gb_per_s, "copy": bandwidth, "collective": 1.0}
    names = {"link": "link_ratio", "copy": "bandwidth_ratio", "collective": "unchanged"}
    for kind, ratio in ratios.items():
        at = np.flatnonzero(calls["kind"] == kind)
        predicted[at], method[at] = measured[at] * ratio, names[kind]
    low, high = np.full(len(calls), 1.0 / half), np.full(len(calls), half)
    for family, model in load_models().items():
        at = np.flatnonzero(calls["family"] == family)
        if not len(at):
            continue
        part = calls.iloc[at].assign(op=model.ops[0])
        predicted[at] = step_calls_us(
            model, part, moved["predicted_us"].to_numpy(dtype=np.float64)[at], origin, destination
        )
        method[at] = "utilisation+wave" if STEP_WAVE_SHARE.get(family) else "utilisation"
        low[at], high[at] = np.exp(model.log_p10), np.exp(model.log_p90)
        if family not in ("gemm", "bmm", "conv2d_forward"):
            continue
        at = at[(part["dtype"] != "fp32").to_numpy()]
        times = on_tensor_cores(model, calls.iloc[at].assign(op=model.ops[0]), origin, destination) if len(at) else None
        if times is not None:
            predicted[at], method[at] = times, "tensor"
    for name, rows in calls.groupby(calls["family"].astype(str)).indices.items():
        kernels = np.asarray(rows)[~calls["kind"].iloc[rows].isin(list(ratios)).to_numpy()]
        predicted[kernels] = raised_to_min_duration(predicted[kernels], str(name), destination, measured[kernels])
    moved["predicted_us"], moved["method"] = predicted, method
    moved["p10_us"], moved["p90_us"] = predicted * low, predicted * high
    return moved
