"""Optimizers that a step creates itself: they run as on CUDA while nothing is computed, and their state is counted.

`torch.optim` checks the device of the parameters. On CUDA it processes lists of tensors (`foreach`) by default, and has
fused kernels. On other devices it processes one parameter at a time, with hundreds of launches that a GPU does not
make.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pipeline.workloads.shape_only_ops import is_fake

WITHOUT_META_KERNEL = ("_fused_sgd_", "_fused_adagrad_")
"""Fused optimizers without a kernel for the meta device in PyTorch; Adam has one."""


MODULES = tuple(import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"))
"""Modules in which optimizers and gradient clipping look up the devices with `foreach` and fused kernels."""

CAPTURABLE = "_get_capturable_supported_devices"
"""Name of the function that tells an optimizer which devices may store its counters (`capturable=True`).

Every optimizer calls it in its own module.
"""


@contextmanager
def foreach_on_meta() -> Iterator[None]:
    """While the body runs, optimizers and gradient clipping treat the meta device like CUDA."""
    _fill_in()
    with ExitStack() as stack:
        for module in MODULES:
            for kind in ("foreach", "fused"):
                name = f"_get_{kind}_kernels_supported_devices"
                usual = getattr(module, name)
                stack.enter_context(mock.patch.object(module, name, lambda usual=usual: [*usual(), "meta"]))
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, CAPTURABLE):
                usual = getattr(module, CAPTURABLE)
                stack.enter_context(
                    mock.patch.object(module, CAPTURABLE, lambda *_, usual=usual, **__: [*usual(), "meta"])
                )
        yield


@contextmanager
def stepping() -> Iterator[list[Optimizer]]:
    """Collect the optimizers that take a step while the body runs, each once."""
    seen: list[Optimizer] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        if all(each is not optimizer for each in seen):
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
    Capture replaces the addition by the operators of the real optimizer (`pipeline.graph.sparse_optimizers`).
    """
    with ExitStack() as stack:
        for kind in (torch.optim.SparseAdam, torch.optim.Adagrad):
            stack.enter_context(mock.patch.object(kind, "step", Optimizer.profile_hook_step(_adding(kind.step))))
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
                    self.state[weight] = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                weight.add_(gradient, alpha=-1.0)  # type: ignore[arg-type]
        return usual(self, closure) if isinstance(self, torch.optim.Adagrad) else None

    return step


def _sparse_parameters(optimizer: Optimizer) -> list[Tensor]:
    given = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight for weight in given if weight.grad is not None and weight.grad.is_sparse]


def update_of(optimizers: Sequence[Optimizer]) -> str:
    """The update that a step's own optimizers apply to sparse gradients, as a value of the option `optimizer`."""
    names = {torch.optim.SparseAdam: "adam", torch.optim.Adagrad: "adagrad"}
    return next((name for kind, name in names.items() for each in optimizers if isinstance(each, kind)), "sgd")


def state_bytes(optimizers: Sequence[Optimizer]) -> int:
    """Bytes of optimizer state on the device, without single numbers (the step counters)."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in kept if tensor.numel() > 1)


@cache
def _fill_in() -> Any:
    """Shape functions of the fused optimizers in `WITHOUT_META_KERNEL`, registered at the first use."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in WITHOUT_META_KERNEL:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, lambda *_, **__: None, "Meta")
    return library
