"""Types and helpers of size functions.

Rule   one call in a row of `opmap.yaml`: a device call that an operator makes
Work   one device call with its size
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.families.dims import SECTOR_BYTES
from pipeline.graph.table import DTYPE_BYTES, Node, Tensor

WARP = 32
"""Threads of a warp."""

FLOATING = ("fp32", "fp64", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class Rule:
    """A device call as `opmap.yaml` describes it; `options` are its other keys, which the size function reads."""

    family: str
    op: str
    size: str
    api: str = "cudaLaunchKernel"
    evidence: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    sms: int = 80  # SM count of the GPU if known. Libraries split work by it.
    capability: float = 7.0  # Of the GPU if known. Libraries choose algorithms by it.
    native_bf16: bool = (
        True  # Whether the GPU computes in bf16. Otherwise cuDNN is not used for bf16.
    )


@dataclass
class Work:
    """One device call: dims of its family, FLOPs and bytes; all other fields override those of the rule."""

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
"""Size functions by name, of the modules imported so far; `pipeline.graph.sizes` imports all of them."""


Function = TypeVar("Function", bound=Callable[..., Any])


def size(name: str) -> Callable[[Function], Function]:
    """Register a size function under the name that `opmap.yaml` uses."""

    def register(function: Function) -> Function:
        REGISTERED[name] = function
        return function

    return register


def over(
    rows: Tensor | tuple[int, int],
    flops: float,
    read: float,
    written: float,
    family: str | None = None,
    op: str | None = None,
    dtype: str = "",
    **more: Any,
) -> Work:
    """A kernel over rows (number, width) of elements. The bytes that it reads and writes are its dims too.

    The default dtype is that of the rows; `more`: other fields of `Work`.
    """
    if isinstance(rows, Tensor):
        dtype = dtype or rows.dtype
        rows = rows.rows_width()
    count, width = rows
    dims = {"B": count, "H": width, "inputs": int(read), "outputs": int(written)}
    return Work(dims, flops, read, written, dtype, family, op, **more)


def element_bytes(tensor: Tensor) -> int:
    """Bytes of one element."""
    return DTYPE_BYTES.get(tensor.dtype, 4)


def on_device(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors in device memory."""
    return [tensor for tensor in tensors if not tensor.host]


def read_bytes(tensors: Iterable[Tensor]) -> float:
    """Bytes that are moved to read each tensor once."""
    return float(sum(tensor.stored_bytes for tensor in on_device(tensors)))


def main_dtype(node: Node) -> str:
    """The dtype of a kernel: that of the first floating-point tensor on the device, else that of the first tensor."""
    tensors = on_device(node.tensors()) + node.results()
    floating = next((t.dtype for t in tensors if t.dtype in FLOATING), None)
    return floating or next((t.dtype for t in tensors), "fp32")


def computing_dtype(node: Node, operand: Tensor) -> str:
    """The dtype of products: TF32 for fp32 operands if it is allowed."""
    return "tf32" if node.attributes.get("tf32") and operand.dtype == "fp32" else operand.dtype


def image_attributes(node: Node) -> dict[str, Any]:
    """The attribute `layout` of an operator on images in NHWC; PyTorch uses NHWC if any operand has this layout."""
    innermost = node.attributes.get("memory_format") == "channels_last" or any(
        map(_innermost, node.tensors())
    )
    return {"layout": "nhwc"} if innermost else {}


def _innermost(tensor: Tensor) -> bool:
    several = len(tensor.shape) == 4 and tensor.shape[1] > 1 and not tensor.contiguous
    return several and tensor.strides is not None and tensor.strides[1] == 1 and tensor.dense


def rows_width(tensor: Tensor) -> dict[str, int]:
    """Dims B (number of rows) and H (width) of a tensor."""
    rows, width = tensor.rows_width()
    return {"B": rows, "H": width}


def scattered(source: Tensor, target: Tensor) -> bool:
    """Whether a warp that writes neighbouring elements reads each from a sector of its own."""
    inner = next((i for i in reversed(range(len(target.shape))) if target.shape[i] > 1), None)
    if (
        inner is None
        or not source.strides
        or len(source.strides) != len(target.shape)
        or not target.contiguous
    ):
        return False
    apart = source.strides[inner] * source.bytes / max(source.numel, 1)
    return bool(apart >= SECTOR_BYTES and target.shape[inner] >= WARP)


def plain_result(node: Node) -> Tensor:
    """The first output, or the first input on the device if the trace has no output."""
    result = node.result() or next(iter(on_device(node.tensors())), None)
    return result or Tensor((), "fp32")


def filled(tensor: Tensor) -> Work:
    """A kernel that writes a constant to all elements of a tensor."""
    return over(tensor, 0, 0, tensor.bytes, "elementwise", "fill")


def read_by_host(tensor: Tensor) -> Work:
    """A copy of a tensor to pageable host memory; the host waits for it."""
    return copied(tensor, "memcpy_d2h", "pageable", blocking=True)


def copied(tensor: Tensor, family: str, op: str, blocking: bool = False) -> Work:
    """A copy of all bytes of a tensor."""
    moved, api = tensor.bytes, "cudaMemcpyAsync"
    return Work({"bytes": moved}, 0, moved, moved, tensor.dtype, family, op, api, blocking)


NUMBER = Tensor((1,), "int64")
"""One integer on the device, such as a count."""
