"""GPT-2 (Radford et al. 2019) and OPT (Zhang et al. 2022) with the operators of the `transformers` library.

`tests/workloads/test_transformers.py` compares them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.attention_layers import attend
from pipeline.workloads.language_layers import Projection, causal_mask, gelu, initialise, merge_heads, split_heads

DROPOUT = 0.1

OFFSET = 2
"""Rows of OPT's position embedding before that of the first token."""


class GptLayer(nn.Module):
    """GPT-2's layer: attention and two linear layers with GELU, each with a layer norm before it and a residual."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = Projection(width, 3 * width), Projection(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = Projection(width, 4 * width), Projection(4 * width, width)
        self.drop = nn.Dropout(DROPOUT)

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).split(x.shape[-1], 2))
        if self.fused:
            share = DROPOUT if self.training else 0.0
            seen = F.scaled_dot_product_attention(q, k, v, dropout_p=share, is_causal=True)
        else:
            seen = attend(q, k, v, mask, q.shape[-1] ** -0.5, lambda s: self.drop(s.to(v.dtype)))
        y: Tensor = self.drop(self.out(merge_heads(seen)))
        return y

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape."""
        x = self.attention(self.norm(x), mask) + x
        y: Tensor = x + self.drop(self.down(gelu(self.up(self.norm2(x)))))
        return y


class OptLayer(nn.Module):
    """OPT's layer: attention and two linear layers with ReLU, each with a layer norm before it and a residual."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.key, self.value, self.query, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.drop = nn.Dropout(DROPOUT)

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape; queries are scaled before the product, weights are always computed in fp32."""
        q = split_heads(self.query(x) * (x.shape[-1] // self.heads) ** -0.5, self.heads)
        k, v = (split_heads(part(x), self.heads) for part in (self.key, self.value))
        if self.fused:
            seen = F.scaled_dot_product_attention(q, k, v, scale=1.0, is_causal=True)
        else:
            seen = attend(q, k, v, mask, 1.0, nn.Identity(), lambda s: s.softmax(-1, dtype=torch.float32).to(v.dtype))
        y: Tensor = self.drop(self.out(merge_heads(seen)))
        return y

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape."""
        x = x + self.attention(self.norm(x), mask)
        flat = x.flatten(0, 1)
        y: Tensor = flat + self.drop(self.down(F.relu(self.up(self.norm2(flat)))))
        return y.view(x.shape)


class Decoder(nn.Module):
    """Layers that see earlier tokens only, with a head that finds the next token.

    Args:
        opt: whether it is OPT; otherwise GPT-2.
        fused: whether attention is one operator.
    """

    def __init__(
        self, width: int, layers: int, heads: int, vocabulary: int, positions: int, opt: bool, fused: bool
    ) -> None:
        super().__init__()
        self.opt, self.fused = opt, fused
        self.token = nn.Embedding(vocabulary, width, padding_idx=1 if opt else None)
        self.position = nn.Embedding(positions + OFFSET * opt, width)
        self.drop = nn.Dropout(0.0 if opt else DROPOUT)
        kind = OptLayer if opt else GptLayer
        self.layers = nn.ModuleList(kind(width, heads, fused) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        initialise(self)

    def positions(self, ids: Tensor) -> Tensor:
        """Positions of tokens (B, T). OPT counts the tokens of each sequence, GPT-2 has one row for all."""
        if not self.opt:
            return torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        seen = torch.ones(ids.shape, device=ids.device)
        return (seen.cumsum(1) * seen - 1).long() + OFFSET

    def hidden(self, ids: Tensor) -> Tensor:
        """Tokens (B, T) -> hidden states (B, T, width)."""
        tokens, positions = self.token(ids), self.position(self.positions(ids))
        mask = None if self.fused else causal_mask(tokens)
        x: Tensor = self.drop(tokens + positions)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens (B, T) -> logits (B, T, vocabulary)."""
        logits: Tensor = self.head(self.hidden(ids))
        return logits


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross entropy in fp32: logits (B, T, vocabulary), tokens (B, T) -> scalar; the last token has no label."""
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:].flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), labels)
