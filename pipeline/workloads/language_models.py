"""Steps of BERT (`pipeline.workloads.bert`), GPT-2 (Radford et al. 2019; also in GPT-3's sizes) and OPT (Zhang et al. 2022).

The models have random weights and the operators of the `transformers` library (`tests/workloads/test_transformers.py`).
GPT and OPT have a language-model head, as in the public measurements. Sequences have full length. BERT's eager attention
still adds a mask, as it does for the output of tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.workloads.attention_operators import (
    DROPOUT,
    Projection,
    attend,
    causal_mask,
    initialise,
    merge_heads,
    split_heads,
)
from pipeline.workloads.bert import Bert, Classifier, Pretraining
from pipeline.workloads.training_step import Step, host_empty, is_dry

OPT_OFFSET = 2
"""Rows of OPT's position embedding before that of the first token."""


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as GPT-2 computes it: with separate operators (Hendrycks and Gimpel 2016)."""
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


class GptLayer(nn.Module):
    """GPT-2's layer: attention and two linear layers with GELU, each with a layer norm before it and a residual."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.norm = nn.LayerNorm(width)
        self.qkv = Projection(width, 3 * width)
        self.out = Projection(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = Projection(width, 4 * width)
        self.down = Projection(4 * width, width)
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
        self.heads = heads
        self.fused = fused
        self.key, self.value, self.query, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.drop = nn.Dropout(DROPOUT)

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape; queries are scaled before the product, weights are always computed in fp32."""
        q = split_heads(self.query(x) * (x.shape[-1] // self.heads) ** -0.5, self.heads)
        k, v = (split_heads(part(x), self.heads) for part in (self.key, self.value))
        if self.fused:
            seen = F.scaled_dot_product_attention(q, k, v, scale=1.0, is_causal=True)
        else:
            seen = attend(
                q,
                k,
                v,
                mask,
                1.0,
                nn.Identity(),
                lambda s: s.softmax(-1, dtype=torch.float32).to(v.dtype),
            )
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
        self,
        width: int,
        layers: int,
        heads: int,
        vocabulary: int,
        positions: int,
        opt: bool,
        fused: bool,
    ) -> None:
        super().__init__()
        self.opt = opt
        self.fused = fused
        self.token = nn.Embedding(vocabulary, width, padding_idx=1 if opt else None)
        self.position = nn.Embedding(positions + OPT_OFFSET * opt, width)
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
        return (seen.cumsum(1) * seen - 1).long() + OPT_OFFSET

    def hidden(self, ids: Tensor) -> Tensor:
        """Tokens (B, T) -> hidden states (B, T, width)."""
        tokens = self.token(ids)
        positions = self.position(self.positions(ids))
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


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a language model on random tokens."""
    tokens = int(config["seq_len"])
    vocabulary = int(config["vocabulary"])
    positions = int(config.get("positions", tokens))
    if tokens > positions:
        raise ConfigError(
            f"model.seq_len={tokens}: {config.get('name')} has {positions} positions"
            " (model.positions)"
        )
    width, layers, heads = (int(config[key]) for key in ("width", "layers", "heads"))
    if width % heads:
        raise ConfigError(
            f"model.width={width}: must be a multiple of the number of heads (model.heads={heads})"
        )
    fused = config.get("attention", "eager") == "fused"
    training = config.get("mode", "train") == "train"
    dry = is_dry(device)
    ids = (
        host_empty(batch_size, tokens, dtype=torch.long)
        if dry
        else torch.randint(vocabulary, (batch_size, tokens))
    )
    if config["architecture"] != "bert":
        with torch.device(device):
            decoder = Decoder(
                width, layers, heads, vocabulary, positions, config["architecture"] == "opt", fused
            )

        def forward(ids: Tensor) -> Tensor:
            logits: Tensor = decoder(ids)
            return next_token_loss(logits, ids) if training else logits

        return Step([decoder], [(ids,)], forward, None, device, config)
    with torch.device(device):
        bert = Bert(width, layers, heads, vocabulary, positions, fused)
        model = Pretraining(bert) if training else Classifier(bert)
    batch: tuple[Tensor, ...] = (ids,)
    if training:
        batch += (
            host_empty(batch_size, dtype=torch.long) if dry else torch.randint(2, (batch_size,)),
        )
    if not fused:
        batch += (
            host_empty(batch_size, 1, 1, tokens) if dry else torch.zeros(batch_size, 1, 1, tokens),
        )
    return Step([model], [batch], model, None, device, config)
