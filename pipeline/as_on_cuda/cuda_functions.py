"""What `torch.cuda` lets a script do and tells it, while a step is captured: there is one GPU, the one that was asked.

Settings, statistics and marks for profilers change no step. Events take no time; to wait for one is to wait for the device.
All streams are one.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch import nn

from pipeline.as_on_cuda.host_reads import ASSUMED_NUMBER, read
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import is_recording
from pipeline.errors import SteptimeWarning
from pipeline.hardware.asked_gpu import read_gpu

NOTHING_TO_DO = (
    "empty_cache", "init", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_memory_stats", "set_device", "set_per_process_memory_fraction", "set_rng_state",
    "set_rng_state_all", "set_stream", "set_sync_debug_mode",
)  # fmt: skip
"""Functions of `torch.cuda` that change no step."""

NUMBERS = (
    "clock_rate", "current_device", "device_memory_used", "initial_seed", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "memory_allocated", "memory_cached",
    "memory_reserved", "memory_usage", "power_draw", "temperature", "utilization",
)  # fmt: skip
"""Functions of `torch.cuda` that say a number, which is 0 here: the first GPU, and what a log says of it."""

MARKS = ("mark", "range_push", "range_pop", "range_start", "range_end")
"""Functions of `torch.cuda.nvtx`."""

NCCL = (2, 21, 5)
"""A version of NCCL, for logs."""


def wait_for_device(*_: Any, **__: Any) -> None:
    """The host waits until the device has finished."""
    read(torch.empty((), device="meta"))


class Event:
    """In place of `torch.cuda.Event`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.synchronize = wait_for_device

    def record(self, stream: Any = None) -> None:
        """Nothing: the time of the call is not counted."""

    wait = record

    def query(self) -> bool:
        """True: the device has finished."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds until another event: the number that every reading of a log has."""
        return ASSUMED_NUMBER


class OneStream(Event):
    """The one stream on which everything runs."""

    cuda_stream = stream_id = priority = 0

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        return event or Event()

    wait_event = wait_stream = Event.record


class Stream(OneStream):
    """In place of `torch.cuda.Stream`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        warnings.warn(
            "torch.cuda.Stream: the work of all streams is predicted one after another",
            SteptimeWarning,
            stacklevel=2,
        )


class Device(nullcontext[Any]):
    """In place of `torch.cuda.device`."""


class Generator(torch.Generator):
    """In place of `torch.Generator`: that of a GPU is one of the host, whose numbers nothing uses."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of the host itself, or one that says it is on the GPU."""
        on_host = str(device) == "cpu"
        return _HOST_GENERATOR("cpu") if on_host else super().__new__(cls)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The GPU."""
        return torch.device("cuda", 0)


_HOST_GENERATOR = torch.Generator


def gpu_properties(*_: Any) -> Any:
    """What `torch.cuda.get_device_properties` says of the GPU that was asked; sizes in bytes."""
    gpu = read_gpu()
    major, minor = (int(part) for part in str(gpu.compute_capability).split("."))
    return SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=int(gpu.memory_bytes),
        multi_processor_count=gpu.sms,
    )


def _for_scripts(usual: Callable[..., Any], value: Callable[[], Any]) -> Callable[..., Any]:
    """A function that tells scripts that there is a GPU; libraries, PyTorch among them, are told what this machine has."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1)
        library = any(f"{kind}-packages" in asking.f_code.co_filename for kind in ("site", "dist"))
        own = asking.f_globals.get("__name__", "").startswith("pipeline.")
        return usual(*args, **kwargs) if library or own else value()

    return answer


def _count() -> int:
    """How many GPUs a script finds: one for each rank."""
    return torch.distributed.get_world_size() if is_recording() else 1


def _saying(value: Any) -> Callable[..., Any]:
    """A new function that says a value, whatever it is asked: PyTorch's compiler wants one for each name."""
    return lambda *_, **__: value


@contextmanager
def one_cuda_device() -> Iterator[None]:
    """While the body runs, `torch.cuda`, `torch.accelerator` and marks for profilers are there as on a GPU."""
    cuda: Any = torch.cuda
    state = torch.default_generator.get_state()
    said: dict[str, Any] = {
        **dict.fromkeys(NOTHING_TO_DO),
        **dict.fromkeys(NUMBERS, 0),
        **dict.fromkeys(("current_stream", "default_stream"), OneStream()),
        "get_rng_state": state,
        "get_rng_state_all": [state],
        "memory_stats": defaultdict(int),
        "memory_summary": "",
        "cudart": SimpleNamespace(cudaProfilerStart=int, cudaProfilerStop=int),
    }
    told: dict[str, Any] = {
        **{name: _saying(value) for name, value in said.items()},
        "Event": Event,
        "Stream": Stream,
        "stream": lambda stream: nullcontext(stream),
        "device": Device,
        "synchronize": wait_for_device,
        "get_device_properties": gpu_properties,
        "get_device_name": lambda *_: gpu_properties().name,
        "get_device_capability": lambda *_: (gpu_properties().major, gpu_properties().minor),
        # older chips compute bf16 by way of fp32
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or gpu_properties().major >= 8
        ),
        "is_tf32_supported": lambda: gpu_properties().major >= 8,
        "mem_get_info": lambda *_: (gpu_properties().total_memory,) * 2,
        "is_available": _for_scripts(cuda.is_available, lambda: True),
        "device_count": _for_scripts(cuda.device_count, _count),
    }
    marks: dict[str, Any] = {name: _saying(None) for name in MARKS}
    with ExitStack() as stack:
        for context in (
            replaced(cuda, **told),
            replaced(cuda.nvtx, **marks),
            replaced(cuda.nccl, version=_saying(NCCL)),
            replaced(cuda.profiler, start=_saying(None), stop=_saying(None)),
            replaced(torch, Generator=Generator),
            _accelerator(),
            _modules_moved_by_index(),
        ):
            stack.enter_context(context)
        yield


def _accelerator() -> Any:
    """`torch.accelerator` as on a machine with a GPU."""
    owner: Any = torch.accelerator
    told: dict[str, Callable[[], Any]] = {
        "is_available": lambda: True,
        "device_count": _count,
        "current_accelerator": lambda: torch.device("cuda"),
    }
    answers: dict[str, Any] = {
        name: _for_scripts(getattr(owner, name), told[name]) for name in told
    }
    index: dict[str, Any] = {"set_device_index": _saying(None), "current_device_index": _saying(0)}
    return replaced(owner, synchronize=wait_for_device, **index, **answers)


def _modules_moved_by_index() -> Any:
    """`module.to(rank)`: a whole number names a GPU."""
    usual: Any = nn.Module.to

    def named(value: Any) -> Any:
        return f"cuda:{value}" if type(value) is int else value

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        return usual(self, *map(named, args), **{key: named(kwargs[key]) for key in kwargs})

    return replaced(nn.Module, to=move)
