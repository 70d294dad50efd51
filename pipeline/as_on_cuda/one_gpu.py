"""What a user's script says about devices before and while it trains: "cuda", `torch.cuda`, and several GPUs.

A capture has one device without data, which stands for the GPU. Tensors that the script moves or makes there are on it. A process
group and wrappers around modules are taken as they act on one GPU, and a warning says what is left out
(`DistributedDataParallel` is in `wrappers`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import is_recording
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.errors import InputError, SteptimeWarning

NOTHING_TO_DO = (
    "set_device",
    "empty_cache",
    "reset_peak_memory_stats",
    "manual_seed",
    "manual_seed_all",
)
"""Functions of `torch.cuda` that change no step."""

ALONE = {
    "destroy_process_group": None, "barrier": None, "all_reduce": None, "broadcast": None,
    "reduce": None, "get_rank": 0, "get_world_size": 1, "get_backend": "nccl",
}  # fmt: skip
"""Functions of `torch.distributed` -> what they return to the only process of a group."""

_TORCH = str(Path(torch.__file__).parent)

_IN_PLACE_OF_GPU: list[str] = []
"""Devices on which scripts find their GPU now; the last one is used."""


def stands_for_gpu(kind: str) -> bool:
    """Whether a type of device means the GPU in a step that is captured: also "cpu", where a script found no GPU here."""
    found_none = (
        kind == "cpu" and _IN_PLACE_OF_GPU[-1:] == ["meta"] and not torch.cuda.is_available()
    )
    return kind in ("cuda", "meta") or found_none


@contextmanager
def one_gpu(device: str) -> Iterator[None]:
    """While the body runs, a user's script finds one GPU, which is `device` ("meta", or "cpu" for fake tensors)."""
    idle: dict[str, Any] = dict.fromkeys(NOTHING_TO_DO, lambda *_, **__: None)
    idle["synchronize"] = lambda device=None: read(torch.empty((), device="meta"))
    with ExitStack() as stack:
        stack.enter_context(replaced(torch.cuda, current_device=lambda: 0, **idle))
        if torch.distributed.is_available():
            recorded = (
                torch.distributed.is_initialized()
            )  # a step of several ranks: its group is there
            there: Any = {"init_process_group": lambda *_, **__: None}
            stack.enter_context(
                replaced(torch.distributed, **there) if recorded else _only_process()
            )
        stack.enter_context(_wrappers_left_out())
        stack.enter_context(OnOneDevice(device))
        _IN_PLACE_OF_GPU.append(device)
        stack.callback(_IN_PLACE_OF_GPU.pop)
        yield


class OnOneDevice(TorchFunctionMode):
    """Puts every tensor that would be on a GPU on one device; tensors of that device stay there."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rename devices, then call."""
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            return args[0].to(self.device, non_blocking=not waits)
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.to:
            args = (args[0], *(self._renamed(value, args[0]) for value in args[1:]))
        if kwargs.get("device") is not None:
            kwargs = {
                **kwargs,
                "device": self._renamed(kwargs["device"], args[0] if args else None),
            }
        return func(*args, **kwargs)

    def _renamed(self, value: Any, moved: Any) -> Any:
        """The device instead of one that a call names; other arguments are unchanged."""
        if isinstance(value, bool) or not isinstance(value, str | int | torch.device):
            return value
        kind = "cuda" if isinstance(value, int) else torch.device(value).type
        stays = kind == "cpu" and isinstance(moved, Tensor) and is_empty(moved)
        return self.device if kind == "cuda" or stays else value


def _only_process() -> AbstractContextManager[None]:
    """While the body runs, a script that begins a process group is the only process in it."""
    group: Any = torch.distributed
    begun: list[bool] = []

    def begin(*args: Any, **kwargs: Any) -> None:
        begun.append(True)
        _warn("init_process_group: the step of one GPU is predicted, without exchange between GPUs")

    def is_initialized() -> bool:
        """PyTorch's own code, such as the profiler's, must not ask a group that is not there."""
        return bool(begun) and not sys._getframe(1).f_code.co_filename.startswith(_TORCH)

    def answering(usual: Callable[..., Any], value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value if begun else usual(*args, **kwargs)

    answers: dict[str, Any] = {
        name: answering(getattr(group, name), value) for name, value in ALONE.items()
    }
    return replaced(group, init_process_group=begin, is_initialized=is_initialized, **answers)


@contextmanager
def _wrappers_left_out() -> Iterator[None]:
    """While the body runs, wrappers for several GPUs hold or return the module alone; for a step of several GPUs they raise."""
    sync: Any = nn.SyncBatchNorm
    usual_sync, usual_parallel, fsdp = (
        sync.forward,
        nn.DataParallel.__init__,
        sys.modules.get("torch.distributed.fsdp"),
    )

    def normalise(self: Any, x: Tensor) -> Any:
        if not is_empty(x):
            return usual_sync(self, x)
        _warn(
            "SyncBatchNorm: the batch norm of one GPU is predicted, without exchange between GPUs"
        )
        return nn.BatchNorm2d.forward(self, x)

    def hold(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not any(map(is_empty, module.parameters())):
            usual_parallel(self, module, *args, **kwargs)
            return
        if is_recording():
            raise InputError(
                "DataParallel trains in one process: leave out devices=, or take"
                " DistributedDataParallel"
            )
        nn.Module.__init__(self)
        self.module, self.device_ids = module, []
        _warn("DataParallel: the step of one GPU is predicted, with the whole batch")

    def whole(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if is_recording():
            raise InputError(
                "fully_shard: FSDP is not predicted yet: leave out devices=, or take"
                " DistributedDataParallel"
            )
        _warn(
            "fully_shard: the step of one GPU is predicted, with all weights on it and without"
            " exchange between GPUs"
        )
        return module

    with ExitStack() as stack:
        stack.enter_context(
            replaced(sync, forward=normalise, _check_input_dim=lambda self, x: None)
        )
        stack.enter_context(replaced(nn.DataParallel, __init__=hold))
        if fsdp is not None and hasattr(fsdp, "fully_shard"):
            stack.enter_context(replaced(fsdp, fully_shard=whole))
        yield


def _warn(text: str) -> None:
    warnings.warn(text, SteptimeWarning, stacklevel=3)
