"""Wrappers that a capture sees through: models distributed over GPUs, and compiled code.

The constructor of `DistributedDataParallel` needs a process group and compares weights between ranks. A capture has
neither. The forward pass of the wrapper is that of the module. Code inside `torch.compile` runs uncompiled, and is noted.

In a step of several ranks, `nn.SyncBatchNorm` runs its kernels and its exchange of sums. Source of the operators and their
order: torch/nn/modules/_functions.py and ATen/native/cuda/Normalization.cu.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pipeline.as_on_cuda.data_parallel import copy_inputs, exchanges_recorded
from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import is_recording
from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators
from pipeline.as_on_cuda.torch_names import compiler
from pipeline.errors import SteptimeWarning

EXCHANGE = ("no_sync", "join", "register_comm_hook")
"""Methods of `DistributedDataParallel` that change what is exchanged, or when."""


@contextmanager
def unwrapped() -> Iterator[None]:
    """While the body runs, `DistributedDataParallel` around a module without data only holds it, and warns about it.

    In a step of several ranks it exchanges gradients (`data_parallel`), and `SyncBatchNorm` its sums.
    """
    if is_recording():
        with exchanges_recorded(), norms_of_all_ranks():
            yield
        return
    kind: Any = DistributedDataParallel
    init, forward = kind.__init__, kind.forward

    def begin(
        self: Any, module: nn.Module, device_ids: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if not _without_data(module):
            init(self, module, device_ids, *args, **kwargs)
            return
        nn.Module.__init__(self)
        self.module = module
        copy_inputs(self, device_ids)
        warnings.warn(
            "DistributedDataParallel: the step of one GPU is predicted, without the exchange of"
            " gradients",
            SteptimeWarning,
            stacklevel=2,
        )

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            self.module(*args, **kwargs)
            if _without_data(self.module)
            else forward(self, *args, **kwargs)
        )

    def left_out(name: str) -> Any:
        usual = getattr(kind, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return nullcontext() if _without_data(self.module) else usual(self, *args, **kwargs)

        return call

    exchange: dict[str, Any] = {name: left_out(name) for name in EXCHANGE}
    with replaced(kind, __init__=begin, forward=run, **exchange):
        yield


def _without_data(module: nn.Module) -> bool:
    first: Tensor | None = next(module.parameters(), None)
    return first is not None and is_empty(first)


@contextmanager
def compiled_calls(
    begin: Callable[[Any, Any], Any], running: list[Any], end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While the body runs, `begin` is told what `torch.compile` has compiled for Inductor, when it is called.

    Compiled code that other compiled code calls is a part of it.

    Args:
        begin: gets the module or optimizer whose method is compiled, else the function, and the compiler's options. It returns
            what takes the place of the compiler (a callback of PyTorch's frame evaluation), or None: the code runs as written.
        running: not empty while compiled code runs.
        end: called when it has run.
    """
    frames = compiler("eval_frame")
    usual = getattr(frames, "_callback_from_stance")  # noqa: B009

    def entered(callback: Any) -> Any:
        call = sys._getframe(1).f_locals
        options = getattr(frames.innermost_backend(callback), "config", None)
        if options is None or "cleanups" not in call:
            return usual(callback)
        if not running:
            call["cleanups"].extend((running.clear, end))
            running.append(begin(owner_of(call["fn"]), options))
        return running[0]

    with replaced(frames, _callback_from_stance=entered):
        yield


def owner_of(function: Any) -> Any:
    """The module or optimizer whose method a function is; else the function itself. PyTorch wraps some of its own once more."""
    inner = (
        function if hasattr(function, "__self__") else getattr(function, "__wrapped__", function)
    )
    owner = getattr(inner, "__self__", inner)
    return owner if isinstance(owner, nn.Module | Optimizer) else inner


def updated_by(owner: Any) -> tuple[list[Optimizer], bool]:
    """The optimizers whose step compiled code is (its owner, or what a function uses by name); and whether it computes more."""
    used = [owner]
    if inspect.isfunction(owner):
        names = inspect.getclosurevars(owner)
        used = [*names.nonlocals.values(), *names.globals.values()]
    optimizers = [each for each in used if isinstance(each, Optimizer)]
    return optimizers, not optimizers or any(isinstance(each, nn.Module) for each in used)


def compiled_once(model: Any) -> Any:
    """A model; of one that is compiled twice, which is the compiled function of its module, a module that calls this function."""
    owner = owner_of(model)
    if owner is model or not isinstance(owner, nn.Module):
        return model
    once: Any = torch.compile(owner)
    once.forward = model
    return once


_gather: Any = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)  # the first from PyTorch 2.13 on


class SteptimeSyncNorm(torch.autograd.Function):
    """Normalises by the mean and variance over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """x (N, C, ...) -> the same shape."""
        operators = _operators()
        mean, deviation = operators.stats(x)
        count = mean.new_full((1,), 1.0)
        sent = torch.cat([mean, deviation, count])
        received = sent.new_empty(dist.get_world_size() * sent.numel())
        _gather(received, sent)
        for _ in range(
            3
        ):  # ranks without samples are left out of counts, means and deviations: the host waits for a mask
            read(received[:1])
        mean, deviation = operators.gather(x, received)
        ctx.save_for_backward(x, mean, deviation, *(() if weight is None else (weight,)))
        result: Tensor = operators.normalise(x, weight, bias, mean, deviation)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of x, of the weight and of the bias."""
        x, mean, deviation, *weights = ctx.saved_tensors
        operators = _operators()
        sums, products, of_weight, of_bias = operators.reduce(gradients[0], x, mean, deviation)
        both = torch.cat([sums, products])
        dist.all_reduce(both)
        of_x = operators.spread(gradients[0], x, mean, deviation, both)
        return of_x, of_weight if weights else None, of_bias if weights else None


def norms_of_all_ranks() -> AbstractContextManager[None]:
    """While the body runs, `SyncBatchNorm` of a module without data that trains sums over all ranks."""
    sync: Any = nn.SyncBatchNorm
    usual = sync.forward

    def normalise(self: Any, x: Tensor) -> Tensor:
        if not is_empty(x):
            result: Tensor = usual(self, x)
            return result
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return apply(SteptimeSyncNorm, x, self.weight, self.bias)

    return replaced(sync, forward=normalise, _check_input_dim=lambda self, x: None)


@cache
def _operators() -> Any:
    def channels(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[1], dtype=torch.float32)

    return meta_operators(
        "steptime_sync",
        {
            "stats(Tensor x) -> (Tensor, Tensor)": lambda x: (channels(x), channels(x)),
            "gather(Tensor x, Tensor received) -> (Tensor, Tensor)": lambda x, received: (
                channels(x),
                channels(x),
            ),
            "normalise(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor deviation)"
            " -> Tensor": lambda x, *_: torch.empty_like(x),
            "reduce(Tensor g, Tensor x, Tensor mean, Tensor deviation)"
            " -> (Tensor, Tensor, Tensor, Tensor)": lambda g, x, *_: tuple(
                channels(x) for _ in range(4)
            ),
            "spread(Tensor g, Tensor x, Tensor mean, Tensor deviation, Tensor sums) -> Tensor": (
                lambda g, x, *_: torch.empty_like(x)
            ),
        },
    )
