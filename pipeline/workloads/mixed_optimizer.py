"""Adam on fp32 copies of half-precision weights, as frameworks for large models have it; one rank may own a part of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

CLIPPED_TO = 1.0
"""Norm to which gradients are clipped, as in the recipes of GPT-3 and Llama."""


class MainWeights(torch.optim.Adam):
    """Gradients to fp32, clipped by their norm; one fused Adam kernel a list; weights back to half precision.

    Args:
        weights: in half precision.
        owners: ranks that update a part each (ZeRO-1, Megatron-LM's distributed optimizer). The exchange of gradients and
            weights is not part of the update.
    """

    def __init__(self, weights: Iterable[nn.Parameter], owners: int = 1) -> None:
        self.halves, self.owners = list(weights), owners
        mains = [nn.Parameter(self._own(weight.detach()).float()) for weight in self.halves]
        super().__init__(mains, lr=1e-4, fused=True)

    def _own(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that this rank updates."""
        return tensor.flatten()[: -(-tensor.numel() // self.owners)] if self.owners > 1 else tensor

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights from their gradients."""
        mains: list[Tensor] = [weight for group in self.param_groups for weight in group["params"]]
        for main, half in zip(mains, self.halves, strict=True):
            if half.grad is not None:
                main.grad = self._own(half.grad).float()
        given = [main for main in mains if main.grad is not None]
        nn.utils.clip_grad_norm_(given, CLIPPED_TO, foreach=True)
        super().step(closure)
        torch._foreach_copy_([self._own(half.detach()) for half in self.halves], mains)
        for main in mains:
            main.grad = None
            self.state[main]["main"] = main.detach()  # counts as optimizer state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete the gradients of the weights, or fill them with zeros."""
        grads = [half.grad for half in self.halves if half.grad is not None]
        if set_to_none:
            for half in self.halves:
                half.grad = None
        elif grads:
            torch._foreach_zero_(grads)
