"""Which raw keys of a profiler trace become which columns: the one table that knows Kineto's vocabulary.

Kineto renamed categories and arguments over the years; every spelling maps onto one column here. AMD GPUs (roctracer)
write the same events with `hip*` API names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum


class Category(StrEnum):
    """Category of an event, in the spelling of today's Kineto."""

    OP = "cpu_op"
    ANNOTATION = "user_annotation"
    RUNTIME = "cuda_runtime"
    DRIVER = "cuda_driver"
    KERNEL = "kernel"
    MEMCPY = "gpu_memcpy"
    MEMSET = "gpu_memset"
    SYNC = "cuda_sync"
    DEVICE_ANNOTATION = "gpu_user_annotation"


CATEGORY_ALIASES = {
    "Operator": Category.OP,
    "operator": Category.OP,
    "Runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "Kernel": Category.KERNEL,
    "Memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "Memset": Category.MEMSET,
    "memset": Category.MEMSET,
}
"""Old spellings (PyTorch 1.8 to 1.11) of the categories."""

API_CATEGORIES = (Category.RUNTIME, Category.DRIVER)
HOST_CATEGORIES = (Category.OP, Category.ANNOTATION, *API_CATEGORIES)
DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

INTEGER_ARGS: dict[str, tuple[str, ...]] = {
    "stream": ("stream",),
    "device": ("device",),
    "correlation": ("correlation",),
    "external_id": ("External id", "external id"),
    "record_function_id": ("Record function id",),
    "registers": ("registers per thread",),
    "shared_memory": ("shared memory",),
    "bytes": ("bytes", "Bytes"),
    "sequence": ("Sequence number", "sequence number"),
    "forward_thread": ("Fwd thread id",),
    "wait_event": ("wait_on_cuda_event_record_corr_id",),
    "wait_stream": ("wait_on_stream",),
    "ranks": ("Group size",),
}
"""Integer column -> the argument keys it may come from, newest first."""

TEXT_ARGS: dict[str, tuple[str, ...]] = {
    "grid": ("grid",),
    "block": ("block",),
    "input_shapes": ("Input Dims", "Input dims"),
    "input_dtypes": ("Input type",),
    "input_values": ("Concrete Inputs",),
    "collective": ("Collective name",),
}
"""Text column (JSON text where the value is a list) -> the argument keys it may come from."""

_DEVICE_ARGS = ("stream", "device", "correlation", "external_id", "bytes")
COLUMNS_OF: dict[str, tuple[str, ...]] = {
    Category.OP: ("external_id", "record_function_id", "sequence", "forward_thread", "input_shapes", "input_dtypes",
                  "input_values", "collective", "ranks"),
    Category.ANNOTATION: ("external_id", "record_function_id", "input_shapes", "input_dtypes", "collective", "ranks"),
    Category.RUNTIME: ("correlation", "external_id"),
    Category.DRIVER: ("correlation", "external_id"),
    Category.KERNEL: (*_DEVICE_ARGS[:4], "registers", "shared_memory", "grid", "block", "collective", "ranks"),
    Category.MEMCPY: _DEVICE_ARGS,
    Category.MEMSET: _DEVICE_ARGS,
    Category.SYNC: ("stream", "device", "correlation", "external_id", "wait_event", "wait_stream"),
    Category.DEVICE_ANNOTATION: ("stream", "device", "external_id"),
}  # fmt: skip
"""Which argument columns an event of each category may carry; other categories carry none."""

KERNEL_LAUNCH = "cudaLaunchKernel"
KERNEL_LAUNCHES = re.compile(r"_*(cuda|cu|hip)\w*Launch\w*Kernel")
"""Calls that launch one kernel each: in whole traces of V100, A100 and RTX 2080 Ti every one of them has its kernel.
Since Hopper, libraries launch the same operator's by another of them than before; all go by the name of the first.
Programs built with CUDA 13 call `__cudaLaunchKernel`."""

UNNAMED = "INVALID"
UNNAMED_LAUNCHES = frozenset({505, 506})
"""How Kineto calls what came with CUDA 12.2 and later, until it asks CUPTI for names
(github.com/pytorch/kineto/pull/1400, May 2026), and CUPTI's numbers of the launch of CUDA 13 among them (`cbid`;
`__cudaLaunchKernel_v13000` and its per-thread form in cupti_runtime_cbid.h). Seen with torch 2.11 for CUDA 13, where
without this every launch would be unknown."""


def api_name(name: str, args: object) -> str:
    """The name of a runtime call; that of a launch where Kineto had none for it."""
    launches = name == UNNAMED and isinstance(args, Mapping) and args.get("cbid") in UNNAMED_LAUNCHES
    return KERNEL_LAUNCH if launches else name


_API_FORM = re.compile(r"_*(?:cuda|cu|hip)[A-Z]\w*?((?:_pt(?:sz|ds))?(?:_v\d+)?)")


def plain_api(name: str) -> str:
    """A name without what tells forms of one runtime call apart: `_ptsz`, `_ptds` (each host thread has its own default
    stream) and CUPTI's versions (`_v3020`). Other names stay as they are.
    """
    form = _API_FORM.fullmatch(name)
    return name[: form.start(1)] if form else name


SYNC_APIS = frozenset({
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
    "cuCtxSynchronize", "cuEventSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize",
})  # fmt: skip
"""Runtime calls in which the host waits for a stream, the device, or an event."""

RESOURCE_APIS = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaStreamCreate", "cudaEventCreate", "cudaModule",
    "cudaLibrary", "cudaFuncGetAttributes", "cudaGetDevice", "cudaSetDevice", "cudaGraphInstantiate", "cuMem", "cuModule",
    "cuLibrary", "cuCtxCreate", "cuDevicePrimaryCtx", "cuInit", "hipMalloc", "hipFree", "hipHostMalloc",
    "hipHostRegister", "hipStreamCreate", "hipEventCreate", "hipModuleLoad", "hipGetDevice", "hipSetDevice",
)  # fmt: skip
"""Prefixes of runtime calls that get memory, load code or start the device: what a step after warm-up does not pay."""

WAIT_EVENT_APIS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"})
"""Runtime calls that make one stream wait for an event of another; the host does not wait."""

EVENT_SYNC_APIS = frozenset({"cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"})
RECORD_APIS = frozenset({"cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord", "hipEventRecord"})
"""Runtime calls in which the host waits for an event, and those that put one behind what a stream has been given."""

BACKWARD_PREFIX = "autograd::engine::evaluate_function"
"""Name prefix of the wrapper around each node that the autograd engine runs."""

OPTIMIZER_PREFIX = "Optimizer."
"""Name prefix of the annotations around an optimizer's methods (`Optimizer.step#SGD.step`)."""

OPTIMIZER_STEP = "Optimizer.step"
"""Name prefix of the annotation around the update itself."""

STEP_MARKER = "ProfilerStep"
ZERO_GRAD_MARKER = "Optimizer.zero_grad"
LOADER_MARKER = "enumerate(DataLoader)"
"""Annotations that mark an iteration, best first (DESIGN section 13)."""
