"""Device calls of a trace as a table for the transfer methods: family, dims, launch geometry, measured time.

Dims come from the launching op's input shapes (recorded with `record_shapes=True`). Without shapes, wave scaling
predicts a call. Matrix products and forward convolutions get their family. Copies between host and device, and
collectives, have kinds of their own because wave scaling does not apply to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Ints
from pipeline.families import work_of
from pipeline.families.dims import Dims
from pipeline.graph.execution_trace import DTYPES
from pipeline.graph.opmap import find_row
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s
from pipeline.prediction_parts import Arithmetic
from pipeline.trace.host_activity import Activity
from pipeline.trace.kineto_fields import Category
from pipeline.transfer import scaling_methods as methods
from pipeline.transfer.shipped_models import load_models

PRODUCT_OPS = {
    "aten::addmm": "gemm", "aten::mm": "gemm", "aten::linear": "gemm", "aten::bmm": "bmm",
    "aten::baddbmm": "bmm",
}  # fmt: skip
"""Family of ops whose main kernel is a matrix product."""

CONVOLUTIONS = (
    "aten::cudnn_convolution",
    "aten::convolution",
    "aten::_convolution",
    "aten::conv2d",
)

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

PRODUCT_KERNELS = "gemm|cutlass|gemv|nvjet|cijk_"
"""Pattern in the names of matrix-product kernels; `nvjet` are cuBLAS's own kernels since Hopper, `Cijk_` those of AMD.

Other kernels of such an op (bias, split-K reduction) are predicted by wave scaling."""

HALF_PRECISION_TYPES = {name: short for name, short in DTYPES.items() if short in ("fp16", "bf16")}
"""Kineto's names of the half-precision types, which tensor cores process directly, and their short names."""

BF16_KERNELS = "bf16|bfloat|nvjet_t|cijk_[a-z]+_[a-z]+_b"
HALF_KERNELS = f"{BF16_KERNELS}|f16|fp8|e4m3|e5m2|16816|wgmma|flash|nvjet_h|cijk_[a-z]+_[a-z]+_h"
"""Patterns in the names of kernels that multiply bf16, and half precision or less, on tensor cores. They count for products of
operators whose input types a trace does not hold. FP8 counts as half: of both, GPUs have the same multiple."""

TF32_KERNELS = "tf32|tensorop|s1688|nvjet"
"""Pattern in the names of kernels that multiply fp32 matrices on tensor cores in TF32."""

CONVOLUTION_KERNELS = "gemm|cutlass|scudnn|winograd|conv|dgrad|wgrad|nvjet|cijk_"

COUNTED_KERNELS = f"(?<!fb)(?:{CONVOLUTION_KERNELS})|gemv|flash|fmha|attention"
"""Pattern in the names of kernels that compute products, not of FBGEMM's: their op must be known for the FLOPs of a step."""

HELPER_KERNELS = (
    "im2col|nonfused|tileskernel|offset|reduce|convert|dot_do|gemv|"
    "grouped_direct|depthwise|triton_(?:p|r)"
)
"""Pattern in the names of kernels that the one above also finds, and that move data and multiply little."""

PRODUCT_INTENSITY = 200.0
"""FLOP per element of products whose shapes a trace does not hold: 50 per byte of fp32. In ResNet-50, products below 42 take a
tenth of the time, and those below 62 a quarter. On tensor cores traffic bounds most products, so the low ones count more."""

TENSOR_INTENSITY = 1000.0
"""FLOP per byte of half-precision products whose shapes a trace does not hold: arithmetic bounds them, at least 3 times the
ridge of Hopper, Blackwell and CDNA3. Large products of language models have 1,000 to 2,000."""

CONVOLUTION_GRADIENTS = {"dgrad": "conv2d_backward_data", "wgrad": "conv2d_backward_weight"}
"""Words in the names of convolution kernels, and the family that they show."""


def trace_calls(act: Activity, calls: Ints) -> pd.DataFrame:
    """One row per call of `calls` (positions in the activity), in their order.

    Returns:
        Columns `kernel_name, stream, op, family, kind, latency_us, grid, block, registers, shared_memory, bytes, dtype`
        and dims. `kind` is kernel, copy (device only), link (host and device) or collective. `dtype` is the type in
        which a product is computed: fp32, tf32, fp16 or bf16. `intensity` is its FLOP per byte, NaN for other kernels.
        `op_event` is the event of `op`, whose products have `flops` (NaN where shapes do not show them); `step_event`
        and `step_op` are the top-level operator.
    """
    events = act.trace.events
    columns = ["name", "category", "stream", "grid", "block", "registers", "shared_memory", "bytes"]
    table = events.loc[act.call_event[calls], columns].reset_index(drop=True)
    table = table.astype({name: object for name in ("name", "category", "grid", "block")})
    launch = act.action_event[act.call_action[calls]]
    op_event = events["op"].to_numpy(dtype=float, na_value=np.nan)[launch]
    linked = ~np.isnan(op_event)
    row = np.where(linked, op_event, 0).astype(np.int64)
    op = np.where(linked, act.trace.names[row], "unknown")

    def of_op(name: str) -> npt.NDArray[Any]:
        """A column of the launching ops; None where a trace lacks the column or a call has no op."""
        if name not in events:
            return np.full(len(row), None, object)
        column = events[name].astype(object).to_numpy()[row]
        column[~linked] = None
        return column

    latency_us = (act.call_end - act.call_start)[calls] / 1000.0
    top = events["top"].fillna(-1).to_numpy(np.int64)[launch]
    step_event = np.where(top >= 0, top, row)
    frame = table.rename(columns={"name": "kernel_name"}).assign(
        op=op,
        latency_us=latency_us,
        op_event=row,
        step_event=step_event,
        step_op=np.where(linked, act.trace.names[step_event], op),
    )
    name = frame["kernel_name"].astype(str)
    moves = frame["category"].isin([Category.MEMCPY, Category.MEMSET])
    kinds = [
        moves & name.str.contains("HtoD|DtoH|Host"),
        moves,
        name.str.contains("nccl|rccl", case=False),
    ]
    frame["kind"] = np.select(kinds, ["link", "copy", "collective"], "kernel")
    frame["dtype"] = _computed_in(name, of_op("input_dtypes"))
    return _with_work(
        frame, list(zip(op, of_op("input_shapes"), of_op("input_values"), strict=True))
    )


def _computed_in(kernel_name: pd.Series, input_dtypes: Iterable[Any]) -> npt.NDArray[Any]:
    """The type in which each kernel computes products: that of its inputs, else what its name says."""
    half = np.array([_half_precision_type(text) for text in input_dtypes], object)
    counts = kernel_name.str.contains(COUNTED_KERNELS, case=False)
    bf16, narrow, tf32 = (
        counts & kernel_name.str.contains(pattern, case=False)
        for pattern in (BF16_KERNELS, HALF_KERNELS, TF32_KERNELS)
    )
    return np.select([half != "", bf16, narrow, tf32], [half, "bf16", "fp16", "tf32"], "fp32")


def _with_work(frame: pd.DataFrame, inputs: list[tuple[str, Any, Any]]) -> pd.DataFrame:
    """`frame` with the work of each call, from name and inputs of its op: family, dims, `flops` and `intensity`."""
    columns = ["family", "B", "M", "N", "K", *CONVOLUTION_DIMS, *WINDOW_DIMS]
    frame[columns] = pd.DataFrame(
        [_dims(*each) for each in inputs],
        frame.index,
        columns,
    )
    guessed = ((frame["family"] == "conv2d_forward") & frame["padding"].isna()).to_numpy()
    # input shapes do not show stride and padding: assume the values of most convolutions and of the training samples
    for column in WINDOW_DIMS:
        sizes = frame[column.replace("padding", "kernel_size")].astype(float)
        usual = sizes // 2 if column.startswith("padding") else 1.0
        frame[column] = frame[column].astype(float).fillna(usual)
    flops = np.array([_flops(*each) for each in inputs])
    # each operand is read, and as much is written or, for the second gradient of a convolution, read again
    elements = [
        2.0 * sum(np.prod(shape, dtype=float) for shape in _tensors(shapes))
        for _, shapes, _ in inputs
    ]
    size = Dims(frame).element_bytes()
    intensity = flops / np.maximum(np.array(elements) * size, 1.0)
    for family, at in frame.groupby("family").indices.items():
        work = work_of(str(family), frame.iloc[at])
        flops[at], intensity[at] = work.flops, work.flops / np.maximum(work.bytes, 1.0)
    name = frame["kernel_name"].astype(str)
    counted = name.str.contains(COUNTED_KERNELS, case=False).to_numpy()
    product = counted & ~name.str.contains(HELPER_KERNELS, case=False).to_numpy()
    cores = frame["dtype"].isin(["fp16", "bf16"])
    unknown = np.where(cores, TENSOR_INTENSITY, PRODUCT_INTENSITY / size)
    frame["intensity"] = np.where(product, np.where(intensity > 0, intensity, unknown), np.nan)
    frame["flops"] = np.where(
        guessed | ((flops == 0) & counted),
        np.nan,
        flops,
    )
    main = name.str.contains(PRODUCT_KERNELS, case=False) | (
        (frame["family"] == "conv2d_forward") & product
    )
    frame["family"] = frame["family"].astype(object).where(main, "other").fillna("other")
    return frame


def traced_arithmetic(calls: pd.DataFrame, gpu: GpuSpec) -> Arithmetic | None:
    """What `trace_calls` compute, with the peaks of a GPU; None where shapes do not show all products.

    What a step runs again (checkpoints) counts too: a trace does not tell it apart.
    """
    longest = calls.sort_values("latency_us", kind="stable").drop_duplicates(
        "op_event", keep="last"
    )
    flops = longest.groupby("dtype")["flops"].sum().sort_values(ascending=False)
    flops = flops[flops > 0]
    if flops.empty or calls["flops"].isna().any():
        return None
    peaks = {str(dtype): gpu.datasheet_gflop_per_s(str(dtype)) / 1000 for dtype in flops.index}
    return Arithmetic(float(flops.sum()), str(flops.index[0]), peaks)


def _half_precision_type(types: Any) -> str:
    """The half-precision type among the JSON text of an op's input types; empty where there is none."""
    text = types if isinstance(types, str) else ""
    return next((short for name, short in HALF_PRECISION_TYPES.items() if f'"{name}"' in text), "")


def _tensors(shapes: Any) -> list[list[int]]:
    """Sizes of an op's tensors from the JSON text of its input shapes; empty without it."""
    try:
        return [
            s
            for s in json.loads(shapes)
            if isinstance(s, list) and s and all(isinstance(n, int) for n in s)
        ]
    except (TypeError, ValueError):
        return []


def _dims(op: str, shapes: Any, values: Any = None) -> dict[str, Any]:
    """Family and dims of an op from the JSON texts of its input shapes and values; empty if shapes do not show them."""
    sizes, family = _tensors(shapes), PRODUCT_OPS.get(op)
    matrices = [s for s in sizes if (len(s) == 3 if family == "bmm" else len(s) >= 2)][-2:]
    if family and len(matrices) == 2:
        left, right = matrices
        batch, rows = (left[0], left[1:-1]) if family == "bmm" else (1, left[:-1])
        k = right[0] if op == "aten::linear" else right[-1]
        return {"family": family, "B": batch, "M": int(np.prod(rows)), "N": left[-1], "K": k}
    if op in CONVOLUTIONS and len(sizes) >= 2 and len(sizes[0]) == 4 and len(sizes[1]) == 4:
        (b, c, *image), (out, per_group, *window) = sizes[:2]
        groups = max(c // max(per_group, 1), 1)
        stated = zip(CONVOLUTION_DIMS, (c, out, *window, *image, groups), strict=True)
        return {"family": "conv2d_forward", "B": b, **dict(stated), **_window(op, values)}
    return {}


def _flops(op: str, shapes: Any, values: Any) -> float:
    """FLOPs of a gradient of a convolution or of attention, a multiply-add as two; 0 for an op without products, else NaN."""
    if op == "aten::convolution_backward" or "attention" in op:
        try:
            tensors = _tensors(shapes)
            if op == "aten::convolution_backward":
                gradients: int = sum(
                    word == "True" for word in json.loads(values)[-1].strip("[]").split(", ")[:2]
                )
                return 2.0 * gradients * float(np.prod(tensors[0])) * float(np.prod(tensors[2][1:]))
            query, key = tensors[1:3] if "backward" in op else tensors[:2]
            keys: int = key[
                2 if "scaled_dot_product" in op else 1
            ]  # the others have heads behind the sequence
            return (8.0 if "backward" in op else 4.0) * float(np.prod(query)) * keys
        except (TypeError, ValueError, IndexError):
            return float("nan")
    return float("nan") if op in PRODUCT_OPS or op in CONVOLUTIONS else 0.0


def _window(op: str, values: Any) -> dict[str, int]:
    """Stride, padding and dilation of a convolution, from the input values of a trace; empty without them.

    PyTorch records input values beside shapes since version 2.1.
    """
    stride, padding, dilation = (3, 2, 4) if op == "aten::cudnn_convolution" else (3, 4, 5)
    try:
        arguments = json.loads(values)
        pairs = [_pair(arguments[at]) for at in (stride, padding, dilation)]
    except (TypeError, ValueError, IndexError):
        return {}
    return dict(zip(WINDOW_DIMS, (side for pair in pairs for side in pair), strict=False))


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


def precision_notes(calls: pd.DataFrame, destination: GpuSpec) -> tuple[str, ...]:
    """A sentence on convolutions of `trace_calls` in fp32 that PyTorch would compute in TF32 on the destination."""
    kept = (
        calls["op"].str.contains("conv") & calls["intensity"].notna() & (calls["dtype"] == "fp32")
    )
    text = "convolutions stay in fp32, as traced; `predict` with dtype=default has them in TF32 on"
    return (f"{text} {destination.name}",) if destination.tf32_gflop_per_s and kept.any() else ()


def transferred(calls: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> pd.DataFrame:
    """Times of traced calls on another GPU. Traced times are kernel times, without a latency floor.

    Products of known sizes take the mean, in log time, of the cross-GPU model and of wave scaling. In convolutions `by_bound`
    has smaller errors than wave scaling (docs/transfer.md).
    """
    moved = methods.by_bound(calls, origin, destination)
    if origin == destination:
        return moved
    for family, model in load_models().items():
        at = np.flatnonzero(calls["family"] == family)
        if not len(at):
            continue
        part = calls.iloc[at].assign(op=model.ops[0])
        beside = (
            moved.iloc[at]
            if family == "conv2d_forward"
            else methods.by_wave(part, origin, destination)
        )
        times = methods.step_calls_us(
            model, part, beside["predicted_us"].to_numpy(), origin, destination
        )
        method = ("utilisation+" + beside["method"]).to_numpy()
        cores = (part["dtype"] != "fp32").to_numpy()
        on_cores = (
            methods.on_tensor_cores(model, part[cores], origin, destination)
            if cores.any()
            else None
        )
        if on_cores is not None:
            times[cores], method[cores] = on_cores, "tensor"
        low, high = (times * np.exp(end) for end in (model.log_p10, model.log_p90))
        moved.iloc[at] = beside.assign(predicted_us=times, method=method, p10_us=low, p90_us=high)
    moved = methods.at_least_min_duration(moved, calls, destination)
    bandwidth = sustained_dram_gb_per_s(origin) / sustained_dram_gb_per_s(destination)
    pcie = origin.pcie_gb_per_s / destination.pcie_gb_per_s
    kinds = (
        ("link", "link_ratio", pcie),
        ("copy", "bandwidth_ratio", bandwidth),
        ("collective", "unchanged", 1.0),
    )
    for kind, by, ratio in kinds:
        rows = calls[calls["kind"] == kind]
        times = rows["latency_us"].to_numpy(dtype=float) * ratio
        moved.loc[rows.index] = methods.with_interval(
            rows, times, methods.WAVE_LOG_SIGMA, by, origin, destination
        )
    return moved
