"""Maps raw keys of a profiler trace to columns. No other module contains Kineto's names of fields.

Kineto has renamed categories and arguments over the years. Every spelling is mapped to one column here. Traces of AMD
GPUs (roctracer) contain the same events with `hip*` API names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

MISSING = -(2**63)
"""Value of an absent integer in this package. Tables show it as null."""


class Category(StrEnum):
    """Category of an event, in the spelling of current Kineto."""

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


def current_category(name: str) -> str:
    """A category in the spelling of current Kineto."""
    return CATEGORY_ALIASES.get(name, name)


API_CATEGORIES = (Category.RUNTIME, Category.DRIVER)
HOST_CATEGORIES = (Category.OP, Category.ANNOTATION, *API_CATEGORIES)
DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

OTHER_DEVICES = {
    "xpu_": "Intel GPUs", "mtia_": "Meta's MTIA", "hpu_": "Intel's Gaudi",
    "musa_": "Moore Threads GPUs", "privateuse1_": "devices of other makers",
}  # fmt: skip
"""Prefixes of categories (`xpu_runtime`) of devices whose traces cannot be read, as libkineto's ActivityType.cpp and forks
of it name them."""

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
"""For each integer column the argument keys that it may come from, newest first."""

TEXT_ARGS: dict[str, tuple[str, ...]] = {
    "grid": ("grid",),
    "block": ("block",),
    "input_shapes": ("Input Dims", "Input dims"),
    "input_dtypes": ("Input type",),
    "input_values": ("Concrete Inputs",),
    "collective": ("Collective name",),
}
"""For each text column the argument keys that it may come from. A list is stored as JSON text."""

_DEVICE_ARGS = ("stream", "device", "correlation", "external_id", "bytes")
COLUMNS_OF: dict[str, tuple[str, ...]] = {
    Category.OP: (
        "external_id",
        "record_function_id",
        "sequence",
        "forward_thread",
        "input_shapes",
        "input_dtypes",
        "input_values",
        "collective",
        "ranks",
    ),
    Category.ANNOTATION: (
        "external_id",
        "record_function_id",
        "input_shapes",
        "input_dtypes",
        "collective",
        "ranks",
    ),
    Category.RUNTIME: ("correlation", "external_id"),
    Category.DRIVER: ("correlation", "external_id"),
    Category.KERNEL: (
        *_DEVICE_ARGS[:4],
        "registers",
        "shared_memory",
        "grid",
        "block",
        "collective",
        "ranks",
    ),
    Category.MEMCPY: _DEVICE_ARGS,
    Category.MEMSET: _DEVICE_ARGS,
    Category.SYNC: ("stream", "device", "correlation", "external_id", "wait_event", "wait_stream"),
    Category.DEVICE_ANNOTATION: ("stream", "device", "external_id"),
}
"""Argument columns that an event of each category may have. Other categories have none."""

KERNEL_LAUNCH = "cudaLaunchKernel"
COLLECTIVE_KERNELS = re.compile(r"(void )?[nr]ccl\w*kernel", re.IGNORECASE)
"""Names of kernels of collectives. In NCCL: `ncclAllReduceRingLLKernel_sum_f32` until 2.7, then
`ncclKernel_AllReduce_...`, since 2.19 `ncclDevKernel_...`, and since 2.27 also `ncclSymkDevKernel_...`. RCCL's names
begin with `nccl` or `rccl`."""

KERNEL_LAUNCHES = re.compile(r"_*(cuda|cu|hip)\w*Launch\w*Kernel")
"""Calls that launch one kernel each: in whole traces of V100, A100 and RTX 2080 Ti, each of these calls has its kernel.
Since Hopper, libraries launch the kernels of an operator by a different API than before. All these calls are therefore
stored under one name, `cudaLaunchKernel`. Programs built with CUDA 13 call `__cudaLaunchKernel`."""

UNNAMED_API = "INVALID"
UNNAMED_LAUNCHES = frozenset({505, 506})
"""`UNNAMED_API` is Kineto's name for APIs that are new in CUDA 12.2 or later. Since github.com/pytorch/kineto/pull/1400
(May 2026) it gets their names from CUPTI. `UNNAMED_LAUNCHES` are CUPTI's numbers (`cbid`) of the kernel launches of
CUDA 13: `__cudaLaunchKernel_v13000` and its per-thread form in cupti_runtime_cbid.h. They were observed with torch 2.11
for CUDA 13, where every launch would otherwise be unknown."""


def api_name(name: str, args: object) -> str:
    """The name of a runtime call. A launch that Kineto could not name gets the name of a launch."""
    number = args.get("cbid") if name == UNNAMED_API and isinstance(args, Mapping) else None
    return KERNEL_LAUNCH if isinstance(number, int) and number in UNNAMED_LAUNCHES else name


_API_NAME = re.compile(r"_*(?:cuda|cu|hip)[A-Z]\w*?((?:_pt(?:sz|ds))?(?:_v\d+)?)")


def base_api_name(name: str) -> str:
    """A name without the suffixes of variants of a runtime call. These are `_ptsz` and `_ptds` (each host thread has
    its own default stream), and CUPTI's versions (`_v3020`). Other names stay unchanged.
    """
    form = _API_NAME.fullmatch(name)
    return name[: form.start(1)] if form else name


SYNC_APIS = frozenset(
    {
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuEventSynchronize",
        "hipStreamSynchronize",
        "hipDeviceSynchronize",
        "hipEventSynchronize",
    }
)
"""Runtime calls in which the host waits for a stream, the device, or an event."""

CPU_API = "cpu"
"""API of a call whose device is the CPU itself."""

RESOURCE_APIS = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaStreamCreate",
    "cudaEventCreate", "cudaModule", "cudaLibrary", "cudaFuncGetAttributes", "cudaGetDevice",
    "cudaSetDevice", "cudaGraphInstantiate", "cuMem", "cuModule", "cuLibrary", "cuCtxCreate",
    "cuDevicePrimaryCtx", "cuInit", "hipMalloc", "hipFree", "hipHostMalloc", "hipHostRegister",
    "hipStreamCreate", "hipEventCreate", "hipModuleLoad", "hipGetDevice", "hipSetDevice",
)  # fmt: skip
"""Prefixes of runtime calls that allocate memory, load code or start the device. Steps after warm-up have no such
calls."""

WAIT_EVENT_APIS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"})
"""Runtime calls that make one stream wait for an event of another stream. The host does not wait."""

EVENT_SYNC_APIS = frozenset({"cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"})
RECORD_APIS = frozenset(
    {"cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord", "hipEventRecord"}
)
"""Runtime calls in which the host waits for an event, and calls that record an event after the work queued on a
stream."""

BACKWARD_PREFIX = "autograd::engine::evaluate_function"
"""Name prefix of the wrapper around each node that the autograd engine runs."""

OPTIMIZER_PREFIX = "Optimizer."
"""Name prefix of the annotations around an optimizer's methods (`Optimizer.step#SGD.step`)."""

OPTIMIZER_STEP = "Optimizer.step"
"""Name prefix of the annotation around the update itself."""

STEP_MARKER = "ProfilerStep"
ZERO_GRAD_MARKER = "Optimizer.zero_grad"
LOADER_MARKER = "enumerate(DataLoader)"
"""Annotations that mark an iteration (docs/replay.md)."""
