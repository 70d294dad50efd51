"""Reads a Kineto trace as operator nodes, each with the device calls that it launched.

The trace reader of the library keeps only what predictions need. A check of the operator map also needs concrete
arguments and strides, so this module reads the file directly.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.graph.table import Argument, Node, Tensor

DTYPES = {
    "float": "fp32", "double": "fp64", "long int": "int64", "long": "int64", "int": "int32",
    "bool": "bool", "c10::Half": "fp16", "c10::BFloat16": "bf16", "unsigned char": "uint8",
    "signed char": "int8",
}  # fmt: skip

KINDS = (
    ("collective", r"^nccl"),
    ("memcpy", r"^Memcpy"),
    ("memset", r"^Memset|FillFunctor"),
    ("concat", r"CatArray"),
    ("optimizer", r"multi_tensor_apply"),
    ("norm", r"bn_fw|bn_bw|batch_norm|layer_norm|GammaBeta"),
    ("softmax", r"softmax|SoftMax"),
    ("loss", r"nll_loss"),
    ("pooling", r"pool"),
    ("reduction", r"reduce_kernel"),
    ("embedding", r"split_embedding|dense_embedding|EmbeddingBag|embedding_backward"),
    ("sort", r"RadixSort|DeviceScan|DeviceReduceByKey|DeviceCompact|cub::"),
    (
        "matmul",
        r"gemm|gemv|cutlass|dot_kernel|reduce_1Block|winograd|scudnn|xmma|conv|dgrad|wgrad|"
        r"fft2d|fprop|"
        r"splitKreduce|nchwToNhwc|nhwcToNchw|flash_fwd|flash_bwd|computeOffsets|computeBOffsets|"
        r"cudnn|epilogue|std::enable_if",
    ),
    (
        "index",
        r"index|gather|scatter|linearize|bounds_check|permute|recat|searchsorted|"
        r"offsets_range|to_dense",
    ),
    ("elementwise", r"elementwise|dropout|threshold|uniform|random|distribution"),
)
"""Coarse kinds of device work by kernel name; the first match counts."""

FAMILY_KINDS = {
    "gemm": "matmul", "bmm": "matmul", "conv2d_forward": "matmul", "conv2d_backward_data": "matmul",
    "conv2d_backward_weight": "matmul", "embedding_forward": "embedding",
    "embedding_backward": "embedding", "concat": "concat", "copy": "elementwise",
    "memcpy_h2d": "memcpy", "memcpy_d2h": "memcpy", "memcpy_d2d": "memcpy", "memset": "memset",
    "tril_index_forward": "index", "tril_index_backward": "index", "elementwise": "elementwise",
    "reduction": "reduction", "softmax": "softmax", "layer_norm": "norm", "batch_norm": "norm",
    "pooling": "pooling", "dropout": "elementwise", "optimizer": "optimizer", "loss": "elementwise",
    "sort": "sort", "index": "index", "collective": "collective", "attention": "matmul",
    "rnn": "matmul", "other": "other",
}  # fmt: skip
"""The coarse kind of each family's kernels."""

THIRD_PARTY = re.compile(
    r"^(fbgemm|fb|c10d|nccl|torchrec|torch\.distributed|torch::distributed)::|"
    r"^record_param_comms|^All2All|CppNode<(SplitLookup|fbgemm)|^## |^nccl:"
)
"""Names of operators of TorchRec, FBGEMM and NCCL, which are counted separately."""


@dataclass
class TracedOperators:
    """Operators of a trace and, for each, the kinds of device work launched directly by it."""

    nodes: list[Node]
    launched: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    orphans: Counter[str] = field(default_factory=Counter)
    steps: int = 1


def read_operators(path: Path) -> TracedOperators:
    """Read the operators of a Kineto trace in host order, each with the device work that it launched directly."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    events = [
        e
        for e in json.loads(data.decode("utf-8", "replace"), strict=False)["traceEvents"]
        if e.get("ph") == "X"
    ]
    work = {
        e["args"].get("correlation"): e["name"]
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    host = [
        e
        for e in events
        if e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")
    ]
    host.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
    seen, markers = TracedOperators([]), 0
    stacks: dict[Any, list[tuple[float, int | None]]] = defaultdict(list)
    optimizer_end = 0.0
    for event in host:
        stack, start = stacks[event["tid"]], float(event["ts"])
        while stack and stack[-1][0] <= start:
            stack.pop()
        parent = next((node for _, node in reversed(stack) if node is not None), None)
        if event["cat"] == "cpu_op":
            seen.nodes.append(_node(event, len(seen.nodes), parent))
            if start < optimizer_end:
                _move_step_counters_to_host(seen.nodes[-1])
            stack.append((start + float(event["dur"]), seen.nodes[-1].node_id))
        elif event["cat"] == "user_annotation":
            if str(event["name"]).startswith("Optimizer.step"):
                optimizer_end = start + float(event["dur"])
            markers += str(event["name"]).startswith("ProfilerStep")
            stack.append((start + float(event["dur"]), None))
        elif (name := work.get(event.get("args", {}).get("correlation"))) is not None:
            if parent is None:
                seen.orphans[kind_of_kernel(name)] += 1
            else:
                seen.launched[parent][kind_of_kernel(name)] += 1
    seen.steps = max(1, markers)
    _move_host_zeros_to_host(seen.nodes)
    _infer_reduced_dimensions(seen.nodes)
    return seen


def _infer_reduced_dimensions(nodes: list[Node]) -> None:
    """Infer the reduced dimensions of a sum, if plain arguments were not recorded.

    The input of the next operator with the same parent is the result of the sum.
    """
    after: dict[int | None, Node] = {}
    for node in reversed(nodes):
        following, after[node.parent_id] = after.get(node.parent_id), node
        if (
            node.name != "aten::sum"
            or any(v is not None for v in node.values)
            or len(node.tensors()) != 1
        ):
            continue
        result = next(iter(following.tensors()), None) if following is not None else None
        shape = node.tensors()[0].shape
        if result is not None and len(result.shape) == len(shape) > 1:
            reduced = [
                i
                for i, (kept, size) in enumerate(zip(result.shape, shape, strict=True))
                if kept != size
            ]
            if reduced and all(result.shape[i] == 1 for i in reduced):
                node.values = (None, reduced, True, None)


def _move_step_counters_to_host(node: Node) -> None:
    """Move 0-dimensional tensors to the host: optimizers keep step counters there (unless capturable)."""
    tensors = node.tensors()
    if tensors and all(not tensor.shape for tensor in tensors):
        _to_host(node)


def _move_host_zeros_to_host(nodes: list[Node]) -> None:
    """Move a `zero_` without a nested `fill_` to the host: on CUDA, `zero_` calls `fill_`."""
    filled = {node.parent_id for node in nodes if node.name == "aten::fill_"}
    for node in nodes:
        if node.name == "aten::zero_" and node.node_id not in filled:
            _to_host(node)


def _to_host(node: Node) -> None:
    node.inputs = tuple(replace(a, host=True) if isinstance(a, Tensor) else a for a in node.inputs)


def kind_of_kernel(kernel: str) -> str:
    """Coarse kind of a kernel by its name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, kernel)), "other")


def _node(event: dict[str, Any], number: int, parent: int | None) -> Node:
    args = event.get("args", {})
    dims, types = args.get("Input Dims", []), args.get("Input type", args.get("Input Types", []))
    strides, concrete = args.get("Input Strides", []), args.get("Concrete Inputs", [])
    if isinstance(dims, str) or isinstance(types, str):
        dims, types = [], []
    inputs: list[Argument] = []
    values: list[Any] = []
    for i, shape in enumerate(dims):
        kind = types[i] if i < len(types) else ""
        dtype = DTYPES.get(kind)
        stride = strides[i] if i < len(strides) and len(strides[i]) == len(shape) else None
        is_list = bool(shape) and isinstance(shape[0], list)
        if is_list:
            parts = (
                strides[i]
                if i < len(strides) and len(strides[i]) == len(shape)
                else [None] * len(shape)
            )
            inputs.append(
                tuple(
                    Tensor(tuple(one), "fp32", tuple(each) if each else None)
                    for one, each in zip(shape, parts, strict=True)
                )
            )
        elif dtype and (shape or not (i < len(concrete) and concrete[i])):
            inputs.append(Tensor(tuple(shape), dtype, tuple(stride) if stride else None))
        else:
            inputs.append(None)
        values.append(_value(concrete[i]) if inputs[-1] is None and i < len(concrete) else None)
    return Node(
        number,
        event["name"],
        parent,
        number,
        inputs=tuple(inputs),
        values=tuple(values),
        is_top_level=parent is None,
    )


def _value(text: Any) -> Any:
    if not isinstance(text, str) or not text:
        return None
    try:
        return json.loads(text.lower())
    except ValueError:
        return text
