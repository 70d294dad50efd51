"""Optimizers that a step makes itself: they go as on CUDA while nothing is computed, and their state is counted.

`torch.optim` asks for the device of the parameters: on CUDA it takes lists of tensors (`foreach`) unless told otherwise, and
has fused kernels; elsewhere it goes parameter by parameter, which is hundreds of launches that no GPU sees.
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

LACKING = ("_fused_sgd_", "_fused_adagrad_")
"""Fused optimizers that PyTorch does not have for the meta device; Adam's it has."""


MODULES = tuple(import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"))
"""Where optimizers, and gradient clipping, look up what a device has kernels for."""

CAPTURABLE = "_get_capturable_supported_devices"
"""What every optimizer asks, in its own module, before it keeps its counters on the device (`capturable=True`)."""


@contextmanager
def as_lists() -> Iterator[None]:
    """While the body runs, optimizers and gradient clipping take the meta device for one like CUDA."""
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
    """Optimizers that take a step while the body runs, each once."""
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
    """While the body runs, optimizers of sparse gradients add each of them to its weight, where nothing is computed: fake
    tensors do not know how many rows such a gradient holds, and an update of none is no update. Capture makes of the
    addition what the optimizer really calls (`pipeline.graph.sparse_optimizers`).
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
    """What optimizers of a step's own do to sparse gradients, by the name of the workloads' option."""
    names = {torch.optim.SparseAdam: "adam", torch.optim.Adagrad: "adagrad"}
    return next((name for kind, name in names.items() for each in optimizers if isinstance(each, kind)), "sgd")


def state_bytes(optimizers: Sequence[Optimizer]) -> int:
    """What optimizers keep on the device; single numbers, which count steps, are left out."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in kept if tensor.numel() > 1)


@cache
def _fill_in() -> Any:
    """Shapes of the fused optimizers in `LACKING`, registered when first needed."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in LACKING:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, lambda *_, **__: None, "Meta")
    return library
