"""The GPU that PyTorch's compiler asks about, on a machine that has none.

Nothing runs on it. Inductor asks a GPU for its figures while it lowers a graph, and chooses by them: how a reduction is split,
which layout convolutions get, whether kernels are Triton's. The answers are those of the GPU of a question. All of this changes
PyTorch for the whole process, so a step is compiled in a process of its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import NATIVE, TorchDispatchMode, compiler
from pipeline.hardware.architecture import architecture_row, nearest_capability, nvidia_names

CUDA = torch.device("cuda", 0)

MEMORY_BYTES = 80 << 30
"""Memory of the GPU as the compiler sees it. No choice depends on it here: nothing is tuned, and nothing is put into pools."""

L2_BYTES = 40 << 20
"""L2 of the GPU as the compiler sees it, which does not read it."""

REGISTERS, BLOCK_THREADS, BLOCK_BYTES = 65536, 1024, 48 << 10
"""Registers of an SM, and threads and shared memory of a block, of every GPU that Triton supports."""

RESERVED_BYTES = 1 << 10
"""Shared memory of an SM that no block can have."""


@dataclass(frozen=True)
class Target:
    """What compiled code depends on: compute capability and number of SMs."""

    capability: float
    sms: int

    @classmethod
    def of(cls, text: str) -> Target:
        """The target of a text such as `8.0-108`."""
        capability, sms = text.split("-")
        return cls(float(capability), int(sms))

    @property
    def version(self) -> tuple[int, int]:
        """Compute capability as major and minor number."""
        major, minor = f"{self.capability:.1f}".split(".")
        return int(major), int(minor)

    @property
    def properties(self) -> SimpleNamespace:
        """The figures under the names of `torch.cuda.get_device_properties`."""
        nearest = nearest_capability(self.capability)
        row = architecture_row(nvidia_names()[nearest], nearest)
        major, minor = self.version
        return SimpleNamespace(
            name=f"sm_{major}{minor}",
            major=major,
            minor=minor,
            multi_processor_count=self.sms,
            max_threads_per_multi_processor=row.max_threads_per_sm,
            regs_per_multiprocessor=REGISTERS,
            warp_size=row.warp_size,
            max_threads_per_block=BLOCK_THREADS,
            total_memory=MEMORY_BYTES,
            shared_memory_per_block=BLOCK_BYTES,
            shared_memory_per_block_optin=row.shared_memory_per_sm_bytes - RESERVED_BYTES,
            shared_memory_per_multiprocessor=row.shared_memory_per_sm_bytes,
            L2_cache_size=L2_BYTES,
            is_integrated=False,
            is_multi_gpu_board=False,
            gcnArchName="",
        )


@contextmanager
def gpu_of_compiler(target: Target) -> Iterator[None]:
    """While the body runs, PyTorch's compiler finds the target's GPU."""
    _allow_tensors_on_cuda()
    device_interfaces = compiler("device_interfaces")
    compiler("get_interface_for_device")("cpu")  # registers the usual devices
    before, remembered = dict(device_interfaces), compiler("DeviceProperties").create
    with ExitStack() as stack:
        stack.callback(lambda: (device_interfaces.clear(), device_interfaces.update(before)))
        device_interfaces |= dict.fromkeys(("cuda", "cuda:0"), _interface(target))
        for context in (
            replaced(torch.cuda, **_answers(target)),
            replaced(torch.version, cuda="12.8"),
            _fake_devices(),
            _convolutions(),
            replaced(compiler("pad_mm"), _should_pad=lambda *_, **__: False),
            _constants_on_host(),
        ):
            stack.enter_context(context)
        for module in list(sys.modules.values()):
            asks = isinstance(module, ModuleType) and callable(vars(module).get("has_triton"))
            if asks and "_inductor" in module.__name__:
                capable = _saying(target.version >= (7, 0))
                stack.enter_context(replaced(module, has_triton=capable))
        remembered.cache_clear()
        stack.callback(remembered.cache_clear)
        yield


def _saying(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _answers(target: Target) -> dict[str, Any]:
    """What `torch.cuda` says."""
    properties, modern = target.properties, target.version >= (8, 0)
    said = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": target.version,
        "get_device_name": properties.name,
        "mem_get_info": (properties.total_memory, properties.total_memory),
        "is_tf32_supported": modern,
        "is_bf16_supported": modern,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "set_rng_state": None,
        "current_stream": SimpleNamespace(cuda_stream=0, stream_id=0),
    }
    state = {
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8, device="cpu"),
    }
    return {name: _saying(value) for name, value in said.items()} | state


def _interface(target: Target) -> Any:
    """What the compiler asks a device."""
    properties, version = target.properties, target.version
    worker = {
        "current_device": 0,
        "set_device": None,
        "get_device_properties": properties,
    }
    said = {
        "current_device": 0,
        "device_count": 1,
        "is_available": True,
        "get_device_properties": properties,
        "get_compute_capability": version[0] * 10 + version[1],
        "get_raw_stream": 0,
        "is_triton_capable": version >= (7, 0),
        "synchronize": None,
        "raise_if_triton_unavailable": None,
        "maybe_exchange_device": 0,
        "exchange_device": 0,
    }
    told: dict[str, Any] = {name: staticmethod(_saying(value)) for name, value in said.items()}
    told["Worker"] = SimpleNamespace(**{name: _saying(value) for name, value in worker.items()})
    return type("CudaOfTarget", (compiler("CudaInterface"),), told)


_KEPT: list[object] = []
"""Objects of C that PyTorch holds."""


def _allow_tensors_on_cuda() -> None:
    """Let tensors without data say that they are on a GPU.

    PyTorch asks a guard of the device, which builds for the CPU lack. It puts one that does nothing in the place of a guard that
    counts no devices: here a table of functions that all return 0.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    if not guards[1]:
        zero = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
        address = ctypes.cast(zero, ctypes.c_void_p).value
        table = (ctypes.c_void_p * 64)(*[address] * 64)
        guard = (ctypes.c_void_p * 2)(ctypes.addressof(table), 0)
        _KEPT.extend((zero, table, guard))
        guards[1] = ctypes.addressof(guard)
    compiler("_ensureCUDADeviceGuardSet")()


@contextmanager
def _fake_devices() -> Iterator[None]:
    """While the body runs, tensors without data are made and copied on the GPU without asking it."""
    implementations = compiler("op_implementations_dict")
    copy = torch.ops.aten.copy_.default
    before = implementations.get(copy)

    def copied(mode: Any, func: Any, target: Tensor, source: Tensor, *_: Any) -> Tensor:
        return target

    with replaced(compiler("FakeTensorMode"), avoid_device_init=property(lambda self: True)):
        implementations[copy] = copied
        try:
            yield
        finally:
            implementations.pop(copy)
            if before is not None:
                implementations[copy] = before


def _convolutions() -> Any:
    """Convolutions are cuDNN's, in the layout of their operands."""

    def layout(x: Tensor, weight: Tensor, _backend: Any) -> torch.memory_format:
        innermost = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        last = x.dim() in (4, 5) and any(
            each.is_contiguous(memory_format=innermost) and not each.is_contiguous()
            for each in (x, weight)
        )
        return innermost if last else torch.contiguous_format

    cudnn = compiler("_ConvBackend").Cudnn
    return replaced(
        NATIVE,
        _select_conv_backend=_saying(cudnn),
        _conv_determine_backend_memory_format=layout,
    )


class _OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes on the host what is for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rename the device, then call."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return args[0] if "device_put" in str(func) else func(*args, **kwargs)


@contextmanager
def _constants_on_host() -> Iterator[None]:
    """While the body runs, the compiler computes constants on the host."""
    folder, uniform = (
        compiler("ConstantFolder"),
        compiler("joint_graph").UniformValueConstantFolder,
    )

    def on_host(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _OnHost():  # type: ignore[no-untyped-call]
                return function(*args, **kwargs)

        return call

    with (
        replaced(folder, run=on_host(folder.run)),
        replaced(uniform, __init__=on_host(uniform.__init__)),
    ):
        yield
