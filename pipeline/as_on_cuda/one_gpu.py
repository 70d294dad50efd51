"""What a user's script says about devices before and while it trains: "cuda", and process groups and wrappers of several GPUs.

A capture has one device without data, which stands for the GPU. Tensors that the script moves or makes there are on it. What a
script asks of `torch.cuda` is in `cuda_functions`. A process group and wrappers around modules are taken as they act on one GPU,
and a warning says what is left out (`DistributedDataParallel` is in `wrappers`).
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pipeline.as_on_cuda.cuda_functions import one_cuda_device
from pipeline.as_on_cuda.fully_sharded import SHARDING, meshes_on_meta, sharded_on_meta
from pipeline.as_on_cuda.functional_exchanges import functional_collectives_recorded
from pipeline.as_on_cuda.host_reads import SELECTIONS, selected, with_rows
from pipeline.as_on_cuda.known_values import follow_values
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import is_recording, recording_group
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.errors import InputError, warn
from pipeline.hardware.rank_layout import Layout

_NOT_REPLACED = ("pipeline.", "torch.distributed.distributed_c10d")
"""Beginnings of the names of modules that keep PyTorch's functions of process groups: they make these."""

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
    with ExitStack() as stack:
        stack.enter_context(one_cuda_device())
        stack.enter_context(_variables_of_torchrun())
        if dist.is_available():
            stack.enter_context(_own_group())
        stack.enter_context(_wrappers_left_out())
        stack.enter_context(_sharding())
        stack.enter_context(OnOneDevice(device))
        _IN_PLACE_OF_GPU.append(device)
        stack.callback(_IN_PLACE_OF_GPU.pop)
        yield


class OnOneDevice(TorchFunctionMode):
    """Puts every tensor that would be on a GPU on one device; tensors of that device stay there."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self._indices = set[int]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rename devices, then call."""
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            place = args[1] if len(args) > 1 else kwargs.get("device")
            there = (args[0], self._renamed(place, args[0]) or self.device)
            return self.__torch_function__(Tensor.to, types, there, {"non_blocking": not waits})
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.record_stream:
            return None
        if func is Tensor.to:
            args = (args[0], *(self._renamed(value, args[0]) for value in args[1:]))
        if kwargs.get("device") is not None:
            kwargs = {
                **kwargs,
                "device": self._renamed(kwargs["device"], args[0] if args else None),
            }
        name = getattr(func, "__name__", "").strip("_")
        if name == "repeat_interleave":
            kwargs = with_rows(args, kwargs)
        selects = self.device == "meta" and name in SELECTIONS
        result = selected(func, name, args, kwargs) if selects else func(*args, **kwargs)
        if self.device == "meta":
            follow_values(func, args, kwargs, result)
        return result

    def _renamed(self, value: Any, moved: Any) -> Any:
        """The device instead of one that a call names; other arguments are unchanged."""
        if isinstance(value, bool) or not isinstance(value, str | int | torch.device):
            return value
        place = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
        if place.type == "cuda" and place.index is not None:
            if self._indices and place.index not in self._indices:
                warn(f"{place}: the work of all GPUs of one process is predicted on one GPU")
            self._indices.add(place.index)
        stays = place.type == "cpu" and isinstance(moved, Tensor) and is_empty(moved)
        return self.device if place.type == "cuda" or stays else value


@contextmanager
def _variables_of_torchrun() -> Iterator[None]:
    """While the body runs: the environment variables that `torchrun` sets, for the first of all ranks, on one node."""
    ranks = str(dist.get_world_size() if is_recording() else 1)
    told = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ranks),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    before = dict(os.environ)
    os.environ.update(told)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _own_group() -> Iterator[None]:
    """While the body runs, a script that begins a process group gets one that records: of one rank, unless there is one already.

    It stays until the body ends. Scripts are told that NCCL is its backend. Objects, which go through the host, take no time, and
    all ranks have those of the first.
    """
    usual, begun = dist.new_group, ExitStack()

    def begin(*_: Any, **__: Any) -> None:
        if not dist.is_initialized():
            begun.enter_context(recording_group(Layout((("dp", 1),))))
            warn(
                "init_process_group: the step of one GPU is predicted, without exchange between"
                " GPUs"
            )

    told: dict[str, Any] = {
        "init_process_group": begin,
        "destroy_process_group": lambda group=None: None,
        "new_group": lambda ranks=None, *_, **__: usual(ranks),
        "get_backend": lambda group=None: dist.Backend.NCCL,
        "monitored_barrier": lambda group=None, *_, **__: dist.barrier(group),
        "broadcast_object_list": lambda object_list, *_, **__: None,
        "all_gather_object": lambda object_list, obj, *_, **__: _fill(object_list, obj),
        "gather_object": _gather_object,
        "scatter_object_list": _scatter_object_list,
    }
    with begun, _everywhere({name: (getattr(dist, name), told[name]) for name in told}):
        yield


def _fill(objects: list[Any] | None, own: Any) -> None:
    """Put an object in all places of a list."""
    if objects:
        objects[:] = [own] * len(objects)


def _gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
    _fill(object_gather_list, obj)


def _scatter_object_list(
    scatter_object_output_list: Any, scatter_object_input_list: Any = None, *_: Any, **__: Any
) -> None:
    _fill(scatter_object_output_list, (scatter_object_input_list or [None])[0])


@contextmanager
def _everywhere(functions: Mapping[str, tuple[Any, Any]]) -> Iterator[None]:
    """While the body runs, other functions take the place of PyTorch's, also where a script has imported them by name.

    What the body imports has PyTorch's afterwards.

    Args:
        functions: by name: PyTorch's, and what takes its place.
    """

    def exchange(now: int, then: int) -> None:
        for path, module in list(sys.modules.items()):
            if not path.startswith(_NOT_REPLACED):
                held = getattr(module, "__dict__", {})
                for name, pair in functions.items():
                    if held.get(name) is pair[now]:
                        setattr(module, name, pair[then])

    exchange(0, 1)
    try:
        yield
    finally:
        exchange(1, 0)


@contextmanager
def _wrappers_left_out() -> Iterator[None]:
    """While the body runs, wrappers for several GPUs hold or return the module alone; for a step of several GPUs they raise."""
    sync: Any = nn.SyncBatchNorm
    usual_sync, usual_parallel = sync.forward, nn.DataParallel.__init__

    def normalise(self: Any, x: Tensor) -> Any:
        if not is_empty(x):
            return usual_sync(self, x)
        warn("SyncBatchNorm: the batch norm of one GPU is predicted, without exchange between GPUs")
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
        warn("DataParallel: the step of one GPU is predicted, with the whole batch")

    with ExitStack() as stack:
        stack.enter_context(
            replaced(sync, forward=normalise, _check_input_dim=lambda self, x: None)
        )
        stack.enter_context(replaced(nn.DataParallel, __init__=hold))
        yield


@contextmanager
def _sharding() -> Iterator[None]:
    """While the body runs, a script's `fully_shard` shards a module for several GPUs, and returns it as it is for one.

    It is found as soon as a script has imported it.
    """
    usual: Any = builtins.__import__
    with ExitStack() as stack:
        taken = list[Any]()

        def take() -> None:
            own = getattr(sys.modules.get(SHARDING), "fully_shard", _whole)
            if own is not _whole and not taken:
                taken.append(own)
                left_out = {"fully_shard": (own, _whole)}
                context = sharded_on_meta() if is_recording() else _everywhere(left_out)
                stack.enter_context(context)

        def load(*args: Any, **kwargs: Any) -> Any:
            found = usual(*args, **kwargs)
            take()
            return found

        if is_recording():
            stack.enter_context(meshes_on_meta())
            stack.enter_context(functional_collectives_recorded())
        take()
        stack.enter_context(replaced(builtins, __import__=load))
        yield


def _whole(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """In place of `fully_shard`: the module as it is."""
    warn(
        "fully_shard: the step of one GPU is predicted, with all weights on it and without exchange"
        " between GPUs"
    )
    return module
