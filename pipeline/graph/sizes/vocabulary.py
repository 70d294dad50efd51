"""Vocabulary of size functions.

Rule   one line of `opmap.yaml`: a device call that an operator makes
Work   one device call of known size
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.graph.table import Node, Tensor

FLOATING = ("fp32", "fp64", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class Rule:
    """A device call as `opmap.yaml` describes it; `options` are its further keys, read by the size function."""

    family: str
    op: str
    size: str
    api: str = "cudaLaunchKernel"
    evidence: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    sms: int = 80  # of the GPU, where one is known; decides how libraries split work
    capability: float = 7.0  # likewise: libraries choose by architecture


@dataclass
class Work:
    """One device call: dims of its family, FLOPs, bytes; the rest overrides what the rule says."""

    dims: Mapping[str, int | None]
    flops: float
    read: float
    written: float
    dtype: str
    family: str | None = None
    op: str | None = None
    api: str | None = None
    blocking: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)


Size = Callable[[Node, Rule], "Work | Sequence[Work] | None"]
REGISTERED: dict[str, Size] = {}
"""Size functions by name, as their modules are imported; `registry.SIZES` holds all of them."""


Function = TypeVar("Function", bound=Callable[..., Any])


def size(name: str) -> Callable[[Function], Function]:
    """Register a size function under the name that `opmap.yaml` uses."""

    def register(function: Function) -> Function:
        REGISTERED[name] = function
        return function

    return register


def on_device(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors that lie on the device."""
    return [tensor for tensor in tensors if not tensor.host]


def read_bytes(tensors: Iterable[Tensor]) -> float:
    """Traffic of reading tensors once each."""
    return float(sum(tensor.stored_bytes for tensor in on_device(tensors)))


def main_dtype(node: Node) -> str:
    """The dtype that a kernel computes in: of the first floating tensor on the device, else of the first tensor."""
    tensors = on_device(node.tensors()) + node.results()
    floating = next((t.dtype for t in tensors if t.dtype in FLOATING), None)
    return floating or next((t.dtype for t in tensors), "fp32")


def image_attributes(node: Node) -> dict[str, Any]:
    """`layout` of an operator on images with their channels innermost; PyTorch takes NHWC where any operand lies so."""
    innermost = node.attributes.get("memory_format") == "channels_last" or any(map(_innermost, node.tensors()))
    return {"layout": "nhwc"} if innermost else {}


def _innermost(tensor: Tensor) -> bool:
    several = len(tensor.shape) == 4 and tensor.shape[1] > 1 and not tensor.contiguous
    return several and tensor.strides is not None and tensor.strides[1] == 1 and tensor.dense


def rows_width(tensor: Tensor) -> dict[str, int]:
    """Dims B and H of a tensor seen as rows."""
    rows, width = tensor.rows_width()
    return {"B": rows, "H": width}


def plain_result(node: Node) -> Tensor:
    """The first output, or where traces hold none, the first input on the device."""
    found = node.result() or next(iter(on_device(node.tensors())), None)
    return found or Tensor((), "fp32")


def filled(tensor: Tensor) -> Work:
    """A constant written to all of a tensor."""
    dims = {**rows_width(tensor), "inputs": 0, "outputs": tensor.bytes}
    return Work(dims, 0.0, 0.0, float(tensor.bytes), tensor.dtype, "elementwise", "fill")


def read_by_host(told: Tensor) -> Work:
    """A tensor to pageable host memory, for which the host waits."""
    return Work({"bytes": told.bytes}, 0.0, float(told.bytes), float(told.bytes), told.dtype, "memcpy_d2h", "pageable",
                "cudaMemcpyAsync", True)  # fmt: skip


NUMBER = Tensor((1,), "int64")
"""One whole number on the device, such as a count."""
