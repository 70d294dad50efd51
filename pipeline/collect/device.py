"""The device that is measured: synchronisation, marks on its time line, number formats, and what it is.

Device settings (clocks, power limits, MIG) are read, never changed.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError

if TYPE_CHECKING:
    import torch

FLOAT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp64": 8}
"""Bytes of one element per floating-point dtype string."""

DEFAULT_CPU_CACHE_BYTES = 32 << 20
"""Last-level cache that is assumed of a CPU that does not state one."""

DEFAULT_FREE_BYTES = 4 << 30
"""Free memory that is assumed of a host that does not state it."""

VERSIONED = ("numpy", "pandas", "pyarrow", "torchvision", "transformers", "triton", "nvidia-cuda-cupti")
"""Packages whose versions the provenance holds; CUPTI is what the profiler sees kernels with."""

SMI_SECONDS = 8
"""Time in which `nvidia-smi` must answer."""
_SILENT: list[str] = []
"""What is told in place of its answer once it did not."""

CPU_THREADS = 1
"""Threads of the CPU as a device: one core is the device, see `fix_threads`."""

DISTURBANCE, LEAST_KEPT = 1.04, 3
"""A repetition counts as undisturbed while its wall time is at most this many times its CPU time."""


def select_device(name: str | None) -> torch.device:
    """The device of a name: `cuda`, `cpu`, or `auto`, `local` and None for CUDA where there is one, else the CPU.

    Raises:
        InputError: the name is unknown, or torch sees no CUDA device.
    """
    import torch

    if name in (None, "auto", "local"):
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cuda", "cpu"):
        raise InputError(f"unknown device {name!r}: choose one of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda: torch sees no CUDA device; use cpu, or install a CUDA build of torch")
    return torch.device(name)


def torch_dtype(name: str) -> torch.dtype:
    """The tensor dtype of a dtype string; TF32 is a mode of fp32 tensors.

    Raises:
        InputError: no tensor dtype has that name.
    """
    import torch

    found = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
             "fp64": torch.float64, "int64": torch.int64, "int32": torch.int32, "int8": torch.int8,
             "uint8": torch.uint8, "bool": torch.bool}.get(name)  # fmt: skip
    if found is None:
        raise InputError(f"unknown dtype {name!r}: choose one of fp32, tf32, bf16, fp16, fp64, int64, int32")
    return found


def set_tf32(on: bool) -> None:
    """Switch TF32 for matmul, convolution and RNN; cuDNN allows it by default, so all are always set.

    Under both names: torch before 2.9 knows `allow_tf32` alone. Later versions refuse to read one name after only the
    other was set, and `allow_tf32 = False` leaves convolutions to a default that something else may have raised.
    """
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with suppress(AttributeError):  # for the day on which the old names are gone
        matmul.allow_tf32 = on
        cudnn.allow_tf32 = on
    if hasattr(matmul, "fp32_precision"):
        precision = "tf32" if on else "ieee"
        for place in (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)):
            if place is not None:
                place.fp32_precision = precision


def synchronise(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Free what the last piece of work held."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Memory that is free now, on the device or (for a CPU) on the host."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return DEFAULT_FREE_BYTES


def answers(device: torch.device) -> bool:
    """Whether the device still computes: an error of CUDA ends one call, or everything that comes after it."""
    if device.type != "cuda":
        return True
    import torch

    try:
        synchronise(device)
        return bool(torch.ones(8, device=device).sum().item() == 8.0)
    except RuntimeError as error:
        return out_of_memory(error)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device's memory did not suffice."""
    text = str(error)
    return "out of memory" in text.lower() or "ALLOC_FAILED" in text


def mark(device: torch.device) -> Any:
    """A point on the device's time line; on the host's where the device is the CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between_us(first: Any, second: Any) -> float:
    """Microseconds between two marks."""
    return float((second - first) * 1e6 if isinstance(first, float) else first.elapsed_time(second) * 1e3)


def cache_bytes(device: torch.device) -> int:
    """Size of the cache in front of DRAM: L2 of a GPU, last level of a CPU."""
    if device.type == "cuda":
        import torch

        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20))
    sizes = [DEFAULT_CPU_CACHE_BYTES]
    try:
        found = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
        sizes = [int(text.removesuffix("K")) << 10 for text in found if text.endswith("K")] or sizes
    except (OSError, ValueError):
        pass
    return max(sizes)


def gpu_name(device: torch.device) -> str:
    """The name that the project gives to this device; `cpu` for a CPU."""
    if device.type != "cuda":
        return "cpu"
    import torch

    return name_of_card(str(torch.cuda.get_device_properties(device).name))


def name_of_card(driver: str) -> str:
    """The project's name of a card by its driver's.

    A card without a file under `config/gpu/` is named after its driver string: `NVIDIA GeForce RTX 4090` is `RTX4090`.
    """
    try:
        from pipeline.hardware.find_gpu import load_gpu

        return str(load_gpu(driver).name)
    except Exception:  # a bare GPU machine has no PyYAML, a new card has no file: both are fine
        short = re.sub(r"\b(NVIDIA|Tesla|GeForce)\b", "", driver)
        return re.sub(r"[^A-Za-z0-9.-]+", "", short) or "gpu"


def gpu_state() -> dict[str, str]:
    """Clocks, power, temperature and load as `nvidia-smi` reports them now; `error` where it cannot.

    One that did not answer in time is not asked again: it would cost every unit of a campaign as long.
    """
    if _SILENT:
        return {"error": _SILENT[0]}
    # the index or UUID that CUDA was told to use is one that nvidia-smi understands
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    core = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,power.draw,temperature.gpu,pstate"
    more = "utilization.gpu,memory.total,memory.used,pcie.link.gen.current,pcie.link.width.current,mig.mode.current"
    found: dict[str, str] = {}
    for keys in (f"{core},{more}", core):  # some drivers refuse some fields
        command = ["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader,nounits", f"--id={gpu}"]
        try:
            line = subprocess.run(
                command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
            ).stdout.strip()
            return dict(zip(keys.split(","), (field.strip() for field in line.split(",")), strict=False))
        except subprocess.TimeoutExpired:
            _SILENT.append(f"nvidia-smi did not answer in {SMI_SECONDS} s")
            return {"error": _SILENT[0]}
        except (OSError, subprocess.SubprocessError) as error:
            found = {"error": str(error)[:200]}
    return found


def describe(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, for provenance."""
    import torch

    found: dict[str, Any] = {
        "gpu": gpu_name(device), "device": device.type, "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "kernel": platform.release(), "cpus": os.cpu_count(), "cpu": _cpu_model(),
        "torch_threads": torch.get_num_threads(), "cache_bytes": cache_bytes(device),
    }  # fmt: skip
    found |= {name: _version(name) for name in VERSIONED}
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        found |= {"driver_name": p.name, "sms": p.multi_processor_count, "memory_bytes": p.total_memory,
                  "capability": f"{p.major}.{p.minor}"}  # fmt: skip
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        return match.group(1) if match else platform.processor()
    except OSError:
        return platform.processor()


def keep_memory_mapped() -> bool:
    """Let the C allocator keep freed memory, as CUDA's caching allocator does; False where the C library has no say.

    Without it glibc hands large tensors back to the system, and each new one pays page faults that come and go with
    the allocator's history: the same `zeros` of 2.5 MB took 50 or 690 µs. Training steps and microbenchmarks on a CPU
    both run with it, so that the one can explain the other.
    """
    import ctypes

    trim_threshold, mmap_max = -1, -4  # parameter numbers of glibc's malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, -1))


def fix_threads(device: torch.device) -> int:
    """Give a CPU device one thread, whatever OMP_NUM_THREADS says; returns the number of threads.

    Steps and microbenchmarks must run with the same threads to compare, and workflow managers set OMP_NUM_THREADS per
    job. More than one makes every parallel operator wait for the slowest core: while another process runs beside it, a
    copy of 30 µs then takes a whole slice of the scheduler (7 ms, seen on two shared cores).
    """
    import torch

    if device.type == "cpu" and torch.get_num_threads() != CPU_THREADS:
        torch.set_num_threads(CPU_THREADS)
    return torch.get_num_threads()


def undisturbed(wall: Sequence[float], core: Sequence[float]) -> list[float]:
    """Wall times of the repetitions in which the thread had a core to itself, by its own CPU time.

    On an idle machine these are all. Where fewer than a few remain, the thread's CPU times stand in: what the wall
    would have shown on a free core, as one thread that never waits does nothing else.
    """
    kept = [w for w, c in zip(wall, core, strict=True) if w <= DISTURBANCE * max(c, 1e-9)]
    return kept if len(kept) >= min(LEAST_KEPT, len(wall)) else list(core)
