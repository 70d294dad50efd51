"""Parts of language models: heads of attention, the causal mask, and GPT-2's linear layer and GELU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SPREAD = 0.02
"""Standard deviation of random weights (Devlin et al. 2019; Radford et al. 2019)."""


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
        seen.expand(samples, 1, tokens, tokens), x.new_zeros(()), x.new_full((), torch.finfo(x.dtype).min)
    )


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as GPT-2 computes it: with separate operators (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Projection(nn.Module):
    """GPT-2's linear layer, whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))

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
