"""Optimizers that a step creates itself: they run as on CUDA while nothing is computed, and their state is counted.

`torch.optim` checks the device of the parameters. On CUDA it processes lists of tensors (`foreach`) by default, and has
fused kernels. On other devices it processes one parameter at a time, with hundreds of launches that a GPU does not
make.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pipeline.as_on_cuda.fully_sharded import own_part
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import is_fake
from pipeline.as_on_cuda.torch_names import (
    CAPTURABLE,
    DEVICE_LIST_MODULES,
    DEVICE_LISTS,
)


@contextmanager
def foreach_on_meta() -> Iterator[None]:
    """While the body runs, optimizers and gradient clipping treat the meta device like CUDA."""
    optimizers = [
        module for name, module in list(sys.modules.items()) if name.startswith("torch.optim.")
    ]
    with ExitStack() as stack:
        for module in (*DEVICE_LIST_MODULES, *optimizers):
            names = [name for name in (*DEVICE_LISTS, CAPTURABLE) if name in vars(module)]
            stack.enter_context(
                replaced(module, **{name: _with_meta(getattr(module, name)) for name in names})
            )
        yield


def _with_meta(devices: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda *args, **kwargs: [*devices(*args, **kwargs), "meta"]


@contextmanager
def stepping() -> Iterator[list[Optimizer]]:
    """Collect the optimizers that take a step while the body runs, each once."""
    seen: list[Optimizer] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        if all(other is not optimizer for other in seen):
            seen.append(optimizer)

    handle = register_optimizer_step_post_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def sparse_updates_shown() -> Iterator[None]:
    """While the body runs, optimizers add each sparse fake gradient to its weight instead of their usual update.

    Fake tensors do not know the number of rows in a sparse gradient; with zero rows the update would do nothing.
    Capture replaces the addition by the operators of the real optimizer (`pipeline.graph.lookups`).
    """
    with ExitStack() as stack:
        for kind in (torch.optim.SparseAdam, torch.optim.Adagrad):
            stack.enter_context(
                replaced(kind, step=Optimizer.profile_hook_step(_adding(kind.step)))
            )
        yield


def _adding(usual: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Optimizer, closure: Any = None) -> Any:
        sparse = _sparse_parameters(self)
        if not sparse or not all(map(is_fake, sparse)):
            return usual(self, closure)
        with torch.no_grad():
            for weight in sparse:
                gradient, weight.grad = weight.grad, None
                if isinstance(self, torch.optim.SparseAdam) and not self.state[weight]:
                    self.state[weight] = {
                        name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")
                    }
                weight.add_(gradient, alpha=-1.0)  # type: ignore[arg-type]
        return usual(self, closure) if isinstance(self, torch.optim.Adagrad) else None

    return step


def _sparse_parameters(optimizer: Optimizer) -> list[Tensor]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight for weight in weights if weight.grad is not None and weight.grad.is_sparse]


def update_of(optimizers: Sequence[Optimizer]) -> str:
    """The update that a step's own optimizers apply to sparse gradients, as a value of the option `optimizer`."""
    names = {torch.optim.SparseAdam: "adam", torch.optim.Adagrad: "adagrad"}
    return next(
        (name for kind, name in names.items() if any(isinstance(one, kind) for one in optimizers)),
        "sgd",
    )


def state_tensors(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Tensors of optimizer state on the device, this rank's parts of them, without single numbers (the step counters)."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    values = [value for state in states for value in state.values()]
    kept = [own_part(value) for value in values if isinstance(value, Tensor)]
    return [tensor for tensor in kept if tensor.numel() > 1]
