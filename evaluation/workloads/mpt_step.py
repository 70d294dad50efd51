"""MosaicML's MPT as a training step of `model=custom`: the models of llm-foundry's tables of FSDP, in bf16.

Sizes are those of `scripts/train/benchmarking` in mosaicml/llm-foundry. Take it with `parallel=fsdp parallel.mixed_precision=bf16
parallel.reduce_dtype=same`, which is the tables' `mixed_precision: PURE` in FSDP2's terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.workloads.training_step import Step, host_empty

SIZES = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16),
    "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}  # fmt: skip
"""Width, layers and heads."""

VOCABULARY = 50368


class Block(nn.Module):
    """A layer: causal attention in one kernel, and a feed-forward network of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, tokens, width) -> the same shape."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, 2)
        q, k, v = (y.view(batch, tokens, self.heads, -1).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        mixed: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return mixed


class Mpt(nn.Module):
    """The decoder, whose output layer has the weights of the embedding."""

    def __init__(self, size: str, tokens: int, again: bool) -> None:
        super().__init__()
        width, layers, heads = SIZES[size]
        self.again = again
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (batch, tokens) -> logits (batch, tokens, vocabulary)."""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return F.linear(self.norm(x), self.token.weight)


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step; `model.options`: size, tokens, and checkpointing."""
    options = config["options"]
    tokens = int(options["tokens"])
    with torch.device(device):
        model = Mpt(str(options["size"]), tokens, bool(options["checkpointing"]))
    ids = host_empty(batch_size, tokens, dtype=torch.long)

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    return Step([model], [(ids,)], model, loss, device, config)
