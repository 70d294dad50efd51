"""Emulates a CUDA device, so that the campaign's CUDA branches run on a CPU. Only for tests, never for a measurement.

While `pretend()` is open, three things change:

- torch reports that it has a GPU.
- Tensors requested on `cuda` are created on the CPU.
- Profiler traces get the events that a GPU adds: launches in `cuda_runtime`, kernels with correlation, stream, grid,
  block and registers, copies and fills.

Times are derived from those of the CPU's operators: they are plausible but have no meaning.
"""

from __future__ import annotations

import gc
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.utils._device
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity

from pipeline.collect import measured_steps, peaks, profiling
from pipeline.collect.profiling import SESSIONS
from tests.collect.pretended_events import add_device_events

SMI = """#!/bin/sh
# an nvidia-smi for tests: FIELDS holds the answer to the long query; the short one always works
for argument in "$@"; do case "$argument" in --query-gpu=*) query="${argument#--query-gpu=}" ;; esac; done
case "$query" in
  *utilization.gpu*) %s ;;
  *) echo "NVIDIA H200, 580.159.04, 1980, 3201, 1980, 700.00, 120.11, 31, P0" ;;
esac
"""
LONG = (
    "NVIDIA H200, 580.159.04, 1980, 3201, 1980, 700.00, 120.11, 31, P0, {busy}, 143771, 4, [N/A],"
    " [N/A], [N/A]"
)


@dataclass
class PretendedGpu:
    """The emulated device: its answers to queries, and a record of the work that it received.

    Args:
        kernels: whether the profiler may see kernels.
        free_bytes: free memory, in bytes, that `mem_get_info` returns.
        fault: called with every torch function and its arguments; may raise an error.
        jitter: relative spread of event times: every fifth interval is longer by this fraction.
        cache_bytes: size of the L2 cache in bytes.
        drops: the n-th session of the profiler loses n times this many kernels at its start, as CUPTI 12.9 does.
    """

    kernels: bool = True
    free_bytes: int = 140 << 30
    fault: Callable[[Any, tuple[Any, ...]], None] | None = None
    jitter: float = 0.0
    cache_bytes: int = 1 << 16
    drops: int = 0
    sessions: int = 0
    lost: bool = False
    intervals: int = 0
    log: list[tuple[str, int, float]] = field(default_factory=list)

    def properties(self, device: Any = None) -> SimpleNamespace:
        """What `torch.cuda.get_device_properties` returns."""
        return SimpleNamespace(
            name="NVIDIA H200",
            major=9,
            minor=0,
            multi_processor_count=132,
            total_memory=150_754_820_096,
            L2_cache_size=self.cache_bytes,
            uuid="00000000-0000-0000-0000-000000000000",
        )

    def synchronize(self, device: Any = None) -> None:
        """Return at once; a lost device raises its error."""
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.log.append(("cudaDeviceSynchronize", time.time_ns(), 1.5))

    def sleep(self, cycles: int) -> None:
        """Run a kernel of this many cycles."""
        self.log.append(("spin_kernel", time.time_ns(), max(cycles / 2000, 1.0)))


class _Event:
    def __init__(self, gpu: PretendedGpu) -> None:
        self.gpu = gpu
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: _Event) -> float:
        self.gpu.intervals += 1
        longer = 1 + self.gpu.jitter * (self.gpu.intervals % 5 == 0)
        return (other.at - self.at) * 1e3 * longer


class _Stream:
    def __init__(self, gpu: PretendedGpu) -> None:
        self.gpu = gpu

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def wait_event(self, event: Any) -> None:
        pass


class _OnCpu(TorchFunctionMode):
    """Redirects all calls with device `cuda` to the CPU."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if (
            self.gpu.lost and func is not torch._C._set_grad_enabled
        ):  # the host continues even if the device is lost
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self.gpu.fault is not None:
            self.gpu.fault(func, args)
        if func is torch.Tensor.pin_memory:
            return args[0]
        asked = _is_cuda(kwargs.get("device"))
        if asked:
            kwargs["device"] = torch.device("cpu")
        if func in (torch.Tensor.to, torch.Tensor.cuda):
            asked = asked or func is torch.Tensor.cuda or any(map(_is_cuda, args[1:]))
            args = tuple(torch.device("cpu") if _is_cuda(a) else a for a in args)
            if func is torch.Tensor.cuda:
                func = torch.Tensor.to
                args = (args[0], torch.device("cpu"))
            if asked and len(args) + len(kwargs) < 5:
                kwargs.setdefault("copy", not isinstance(args[0], torch.nn.Parameter))
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


def _answers(gpu: PretendedGpu) -> dict[str, Callable[..., Any]]:
    """What functions of `torch.cuda` give."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": gpu.properties,
        "synchronize": gpu.synchronize,
        "get_device_name": lambda device=None: gpu.properties().name,
        "is_bf16_supported": lambda *a, **k: True,
        "get_device_capability": lambda device=None: (9, 0),
        "empty_cache": lambda: None,
        "_sleep": gpu.sleep,
        "mem_get_info": lambda device=None: (gpu.free_bytes, gpu.properties().total_memory),
        "max_memory_allocated": lambda device=None: 123 << 20,
        "reset_peak_memory_stats": lambda device=None: None,
        "current_stream": lambda device=None: _Stream(gpu),
        "is_current_stream_capturing": lambda: False,
        "Event": lambda enable_timing=False, **k: _Event(gpu),
    }


@contextmanager
def pretend(busy: str = "3", smi: str = "answers", **options: Any) -> Iterator[PretendedGpu]:
    """Context in which torch and `nvidia-smi` report a GPU.

    Args:
        busy: utilisation that `nvidia-smi` reports.
        smi: `answers`, `short` (the long query is refused), or `missing`.
        options: arguments of `PretendedGpu`.
    """
    gpu = PretendedGpu(**options)
    real_autocast = torch.autocast
    real_context = torch.utils._device.DeviceContext

    class Context(real_context):  # type: ignore[misc, valid-type]
        def __init__(self, device: Any) -> None:
            super().__init__(torch.device("cpu") if _is_cuda(device) else device)

    def autocast(device: str, *args: Any, **kwargs: Any) -> Any:
        return real_autocast("cpu" if _is_cuda(device) else device, *args, **kwargs)

    replaced: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, answer) for name, answer in _answers(gpu).items()),
        (torch.backends.cudnn, "version", lambda: 91002),
        (torch, "Generator", _generator_class()),
        (torch, "autocast", autocast),
        (torch.utils._device, "DeviceContext", Context),
        *((module, "profile", _profile_class(gpu)) for module in (peaks, profiling)),
        # in use, every campaign has its own process
        *((SESSIONS, name, value) for name, value in (("sessions", 0), ("lost", 0), ("scale", 1))),
    ]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steptime_pretend_")))
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        # a size that a CPU multiplies quickly
        stack.enter_context(mock.patch.dict(measured_steps.MATRIX_SIDES, {"cuda": 64}))
        stack.enter_context(mock.patch.dict(os.environ, {"PATH": _path_with(place, smi, busy)}))
        gc.freeze()  # a campaign's garbage collection does not search pytest's objects
        stack.callback(gc.unfreeze)
        stack.enter_context(_OnCpu(gpu))
        yield gpu


def _path_with(place: Path, smi: str, busy: str) -> str:
    if smi == "missing":
        return str(place)
    script = place / "nvidia-smi"
    script.write_text(SMI % (f'echo "{LONG.format(busy=busy)}"' if smi == "answers" else "exit 2"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{place}{os.pathsep}{os.environ.get('PATH', '')}"


def _generator_class() -> type:
    real = torch.Generator

    class Instances(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    class Generator(metaclass=Instances):
        def __new__(cls, device: Any = "cpu") -> Any:
            return real("cpu")

    return Generator


def _profile_class(gpu: PretendedGpu) -> type:
    class Profile(torch.profiler.profile):
        def __init__(self, *, activities: Any = None, **options: Any) -> None:
            self.with_device = ProfilerActivity.CUDA in (activities or ())
            super().__init__(activities=[ProfilerActivity.CPU], **options)

        def __enter__(self) -> Any:
            gpu.sessions += 1
            self.opened = time.time_ns()
            return super().__enter__()

        def export_chrome_trace(self, path: str) -> None:
            super().export_chrome_trace(path)
            if self.with_device and gpu.kernels:
                add_device_events(Path(path), gpu, self.opened)

    return Profile
