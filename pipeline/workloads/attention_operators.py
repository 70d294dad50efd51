"""Attention with separate operators, and the initial weights of language models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

DROPOUT = 0.1


SPREAD = 0.02
"""Standard deviation of random weights (Devlin et al. 2019; Radford et al. 2019)."""


Weigh = Callable[[Tensor], Tensor]
"""Function of all scores or weights of an attention: (..., T, T) -> the same shape."""


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32 under autocast."""
    return scores.softmax(-1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    drop: Weigh,
    weigh: Weigh = softmax,
) -> Tensor:
    """Attention with separate operators: drop(weigh(scale · q·kᵀ + mask))·v.

    One name holds all scores, so that the memory of each is free when the next exists.

    Args:
        query: (..., T, d), as are `key` and `value`.
        mask: added to the scores.
        scale: factor of the products.
        drop: makes the weights that are used of all weights.
        weigh: makes weights of scores.

    Returns:
        (..., T, d).
    """
    scores = query @ key.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores + mask
    scores = weigh(scores)
    scores = drop(scores)
    return scores @ value


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, width) -> (B, heads, T, width / heads)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, width / heads) -> (B, T, width), in new memory unless the heads of a token are neighbours."""
    return x.transpose(1, 2).contiguous().flatten(2)


def causal_mask(x: Tensor) -> Tensor:
    """The mask that hides later tokens: embedded tokens (B, T, width) -> (B, 1, T, T) of the same dtype."""
    samples, tokens = x.shape[:2]
    position = torch.arange(tokens, device=x.device)
    seen = position <= position.unsqueeze(1)
    return torch.where(
        seen.expand(samples, 1, tokens, tokens),
        x.new_zeros(()),
        x.new_full((), torch.finfo(x.dtype).min),
    )


class Projection(nn.Module):
    """GPT-2's linear layer, whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        shape = (*x.size()[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


def initialise(model: nn.Module) -> None:
    """Give weights small random values and biases zero; layer norms keep theirs."""
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Embedding | Projection):
            nn.init.normal_(part.weight, std=SPREAD)
            if getattr(part, "bias", None) is not None:
                nn.init.zeros_(part.bias)  # type: ignore[arg-type]
