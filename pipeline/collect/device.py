"""The measured device: synchronisation, time marks, number formats, what it cannot run, and its description.

Device settings (clocks, power limits, MIG) are read but never changed.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, MeasurementError

if TYPE_CHECKING:
    import torch

FLOAT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp64": 8}
"""Bytes of one element per floating-point dtype string."""
TORCH_NAMES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp64": "float64",
    **{name: name for name in ("int64", "int32", "int8", "uint8", "bool")},
}
"""PyTorch's name of the tensor dtype per dtype string; TF32 is a mode of fp32 tensors."""


DEFAULT_FREE_BYTES = 4 << 30
"""Bytes of free memory that are assumed if the host does not report it."""


CPU_THREADS = 1
"""Threads of a CPU device: one core is the device, see `fix_threads`."""

MAX_DISTURBANCE, MIN_KEPT = 1.04, 3
"""Criteria for undisturbed repetitions: wall time is at most `MAX_DISTURBANCE` times the CPU time. If fewer than
`MIN_KEPT` repetitions meet this, CPU times are used instead."""

UNSUPPORTED_MESSAGES = re.compile(
    r"not implemented for|could not create a primitive|could not run '|not supported|unsupported|"
    r"does(n't| not) support|only supports|no kernel image is available",
    re.IGNORECASE,
)
"""Messages of PyTorch and its libraries about an operator that the device does not have in this dtype. For example,
`not implemented for` comes from PyTorch's own kernels, `could not create a primitive` from oneDNN, and
`could not run '` from the dispatcher."""

CUDA_STATUS = re.compile(r"CUDA error|CU[A-Z]+_STATUS")
"""Error states of CUDA and its libraries. Their cause can be the dtype, the sizes or the device, so they are not taken
as an unsupported dtype."""


def select_device(name: str | None) -> torch.device:
    """The device with a name: `cuda` or `cpu`. `auto`, `local` and None select CUDA if available, else the CPU.

    Raises:
        InputError: the name is unknown, or torch sees no CUDA device.
    """
    import torch

    if name in (None, "auto", "local"):
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cuda", "cpu"):
        raise InputError(f"unknown device {name!r}: choose one of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device cuda: torch sees no CUDA device; use cpu, or install a CUDA build of torch"
        )
    return torch.device(name)


def torch_dtype(name: str) -> torch.dtype:
    """The tensor dtype of a dtype string.

    Raises:
        InputError: no tensor dtype has that name.
    """
    import torch

    if name not in TORCH_NAMES:
        raise InputError(f"unknown dtype {name!r}: choose one of {', '.join(TORCH_NAMES)}")
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[name])
    return dtype


def set_tf32(dtype: str) -> None:
    """Switch TF32 on or off for matmul, convolution and RNN, as `model.dtype` says; all are always set.

    `tf32` switches it on for all, `default` as PyTorch does by itself (not for matmul), any other dtype off.

    Both settings of PyTorch are written, for these reasons:

    - torch before 2.9 has only `allow_tf32`.
    - Later versions refuse to read one setting after only the other was set.
    - `allow_tf32 = False` leaves convolutions at a default that other code may have changed to TF32.
    """
    import torch

    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    with suppress(AttributeError):  # a future torch may remove the old names
        matmul.allow_tf32 = dtype == "tf32"
        cudnn.allow_tf32 = dtype in ("tf32", "default")
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        for settings in (getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)):
            if settings is not None:
                settings.fp32_precision = "tf32" if dtype in ("tf32", "default") else "ieee"


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Free the memory of the last piece of work."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Bytes of memory that are free now, on the device or (for a CPU) on the host."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return DEFAULT_FREE_BYTES


def still_computes(device: torch.device) -> bool:
    """Whether the device still computes. After some CUDA errors only one call fails, after others every later call."""
    if device.type != "cuda":
        return True
    import torch

    try:
        synchronise(device)
        return bool(torch.ones(8, device=device).sum().item() == 8.0)
    except RuntimeError as error:
        return out_of_memory(error)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device ran out of memory."""
    text = str(error)
    return "out of memory" in text.lower() or "ALLOC_FAILED" in text


def mark(device: torch.device) -> Any:
    """A time mark on the device; on a CPU the host's time."""
    if device.type != "cuda":
        return time.perf_counter()
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between_us(first: Any, second: Any) -> float:
    """Microseconds between two marks."""
    return float(
        (second - first) * 1e6 if isinstance(first, float) else first.elapsed_time(second) * 1e3
    )


def keep_memory_mapped() -> bool:
    """Let the C allocator keep freed memory, as CUDA's caching allocator does; False if the C library cannot do this.

    Without it glibc returns the memory of large tensors to the system. A new tensor then causes page faults, depending
    on the allocator's history: the same `zeros` of 2.5 MB took 50 or 690 µs. Training steps and microbenchmarks on a
    CPU both run with this setting, so that their times can be compared.
    """
    import ctypes

    trim_threshold, mmap_max = -1, -4  # parameter numbers of glibc's malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, -1))


def fix_threads(device: torch.device) -> int:
    """Use one thread on a CPU device, regardless of OMP_NUM_THREADS; returns the number of threads.

    Steps and microbenchmarks can be compared only with the same number of threads, and workflow managers set
    OMP_NUM_THREADS per job. With more than one thread, every parallel operator waits for the slowest core. If another
    process uses a core, a copy of 30 µs then takes a whole time slice of the scheduler: 7 ms on two shared cores.
    """
    import torch

    if device.type == "cpu" and torch.get_num_threads() != CPU_THREADS:
        torch.set_num_threads(CPU_THREADS)
    return torch.get_num_threads()


def undisturbed(wall: Sequence[float], core: Sequence[float]) -> list[float]:
    """Wall times of the repetitions in which the thread had a core to itself, judged by its CPU time.

    On an idle machine all repetitions are kept. If fewer than `MIN_KEPT` remain, the thread's CPU times are returned
    instead. They equal the wall times on a free core, because a single thread that never waits is always running.
    """
    kept = [w for w, c in zip(wall, core, strict=True) if w <= MAX_DISTURBANCE * max(c, 1e-9)]
    return kept if len(kept) >= min(MIN_KEPT, len(wall)) else list(core)


class UnsupportedByDeviceError(MeasurementError):
    """The device lacks an operator that the step or the kernel needs in its dtype.

    Such operators are recognised by PyTorch's error message. The dtypes of an operator depend on the processor and on the
    build of PyTorch: a fused LSTM in bf16 needs AVX-512, for example. PyTorch has no function to check this before, so
    the first run of a step or of a kernel shows it.
    """


def is_unsupported(error: BaseException) -> bool:
    """Whether an error of PyTorch says that the device cannot run an operator in this dtype at all."""
    text = first_line(error)
    return (
        isinstance(error, RuntimeError)
        and not CUDA_STATUS.search(text)
        and (
            isinstance(error, NotImplementedError) or UNSUPPORTED_MESSAGES.search(text) is not None
        )
    )


def unsupported(
    what: str, dtype: str, device: torch.device, error: BaseException
) -> UnsupportedByDeviceError:
    """The error in one line, with a remedy.

    Args:
        what: workload or kernel that did not run.
        dtype: requested number format.
        device: device on which it did not run.
        error: error that PyTorch raised.
    """
    remedy = (
        "use another model or device"
        if dtype == "fp32"
        else "use model.dtype=fp32, another model or device"
    )
    return UnsupportedByDeviceError(
        f"{what}: {device_name(device)} cannot run it in {dtype} ({first_line(error)}); {remedy}"
    )


@contextmanager
def reporting_unsupported(what: str, dtype: str, device: torch.device) -> Iterator[None]:
    """While the body runs `what`, report an operator that the device lacks in one line.

    Raises:
        UnsupportedByDeviceError: PyTorch says that the device cannot run an operator in this dtype.
    """
    try:
        yield
    except RuntimeError as error:
        if is_unsupported(error):
            raise unsupported(what, dtype, device, error) from error
        raise


def device_name(device: torch.device) -> str:
    """The device for a message: `this CPU (x86_64, AVX2)`, or the name of the GPU."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"this CPU ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"


def first_line(error: BaseException) -> str:
    """The first sentence of an error's first line, without PyTorch's advice on debugging."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.split(r"\.\s+(?=[A-Z])", line.strip(), maxsplit=1)[0].rstrip(".")
