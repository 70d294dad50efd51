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
from dataclasses import dataclass, field
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

REGISTERS, BLOCK_THREADS = 65536, 1024
"""Registers of an SM and threads of a block, of every GPU that Triton supports."""


@dataclass(frozen=True)
class Target:
    """What compiled code depends on: compute capability and number of SMs.

    `pads` says whether a product is faster with sizes of whole vectors: (dtype, sizes [batch, M, N, K], padded sizes, whether
    each operand is stored transposed, bytes that copies of operands move) -> bool.
    """

    capability: float
    sms: int
    pads: Callable[..., bool] = field(default=lambda *_: False, compare=False)

    @classmethod
    def of(cls, text: str) -> Target:
        """The target of a text such as `8.0-108`."""
        capability, sms = text.split("-")
        return cls(float(capability), int(sms))

    @property
    def properties(self) -> SimpleNamespace:
        """The figures under the names of `torch.cuda.get_device_properties`."""
        nearest = nearest_capability(self.capability)
        row = architecture_row(nvidia_names()[nearest], nearest)
        major, minor = divmod(round(10 * self.capability), 10)
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
            replaced(compiler("FakeTensorMode"), avoid_device_init=property(lambda _: True)),
            _convolutions(),
            _padding(target),
            _constants_on_host(),
        ):
            stack.enter_context(context)
        for module in list(sys.modules.values()):
            asks = isinstance(module, ModuleType) and callable(vars(module).get("has_triton"))
            if asks and "_inductor" in module.__name__:
                stack.enter_context(replaced(module, has_triton=_saying(True)))
        remembered.cache_clear()
        stack.callback(remembered.cache_clear)
        yield


def _saying(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _answers(target: Target) -> dict[str, Any]:
    """What `torch.cuda` says."""
    properties = target.properties
    said = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_name": properties.name,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "set_rng_state": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8, device="cpu"),
    }
    return {name: _saying(value) for name, value in said.items()}


def _interface(target: Target) -> Any:
    """What the compiler asks a device."""
    properties = target.properties
    said = {
        "get_device_properties": properties,
        "get_compute_capability": properties.major * 10 + properties.minor,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }
    told = {name: staticmethod(_saying(value)) for name, value in said.items()}
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


def _padding(target: Target) -> Any:
    """Products are padded to whole vectors where the target says that it pays; the compiler would measure this."""
    module = compiler("pad_mm")

    def should_pad(match: Any, one: Tensor, other: Tensor, *_: Any) -> bool:
        sizes = [one.shape[:-2].numel(), *one.shape[-2:], other.shape[-1]]
        aligned = module.get_alignment_size(one)
        padded = [sizes[0], *(size + module.get_padded_length(size, aligned) for size in sizes[1:])]
        copied = sum(
            2 * tensor.nbytes
            for name, tensor, edge in (("mat1", one, 1), ("mat2", other, 2))
            if padded[edge : edge + 2] != sizes[edge : edge + 2]
            and not module.should_exclude_padding_time(match, name)
        )
        transposed = [each.stride(-1) != 1 for each in (one, other)]
        return target.pads(one.dtype, sizes, padded, transposed, copied)

    return replaced(module, _should_pad=should_pad)


class _OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes on the host what is for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rename the device, then call."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return args[0] if "device_put" in str(func) else func(*args, **kwargs)


def _constants_on_host() -> Any:
    """While the body runs, the compiler computes constants on the host."""
    folder: Any = compiler("joint_graph").UniformValueConstantFolder

    def on_host(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _OnHost():  # type: ignore[no-untyped-call]
                return function(*args, **kwargs)

        return call

    return replaced(folder, run=on_host(folder.run), __init__=on_host(folder.__init__))
