"""Muon: an optimizer for the weights between layers (needs torch).

A step changes all singular directions of a weight matrix by about the same amount, so directions with small gradients are
learned as fast as others. With features that are nearly equal, such as the blocks of similar tiles, this saves three of four
steps (`docs/notes/kernels.md`).

The iteration and its coefficients are from Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024).
The length of a step is from Liu et al., *Muon is scalable for LLM training* (2025). PyTorch has `torch.optim.Muon`
from 2.9 on, which computes in bfloat16: rounded coarsely, and slow on most processors. This one computes in the precision
of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of X, X X^T X and X (X^T X)^2 in an iteration. They raise small singular values fastest, and leave all
of them between 0.7 and 1.2 instead of at one."""

ITERATIONS = 5
"""Iterations of a step. With three, the network of matrix products is 3 to 5 % further from what it learns."""

MOMENTUM = 0.95
"""Weight of earlier gradients in the mean of gradients."""

STEP_LENGTH = 0.2
"""Root mean square of a step's entries over the rate, about that of AdamW, so that both take similar rates."""


class Muon(torch.optim.Optimizer):
    """Trains matrices by steps with nearly equal singular values.

    Args:
        matrices: the parameters, each of two dimensions.
        learning_rate: rate of a step; a schedule may change it (`lr` of the group).
        weight_decay: share of the rate by which matrices shrink in a step.
    """

    def __init__(self, matrices: Iterable[Tensor], learning_rate: float, weight_decay: float = 0.0) -> None:
        super().__init__(list(matrices), {"lr": learning_rate, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change the matrices by their gradients (`grad`); a closure is not called."""
        for group in self.param_groups:
            rate, decay = group["lr"], group["weight_decay"]
            for matrix in group["params"]:
                if "mean" not in self.state[matrix]:
                    self.state[matrix]["mean"] = torch.zeros_like(matrix)
                mean = self.state[matrix]["mean"].lerp_(matrix.grad, 1.0 - MOMENTUM)
                direction = orthogonal(torch.lerp(matrix.grad, mean, MOMENTUM))
                matrix.mul_(1.0 - rate * decay)
                matrix.add_(direction, alpha=-rate * STEP_LENGTH * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors, whose singular values are near one (but for tiny ones)."""
    x: Tensor = matrix / (matrix.norm() + 1e-30)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
