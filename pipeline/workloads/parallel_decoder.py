"""Steps of decoders that are trained on many GPUs: `gpt` (Megatron-LM's GPT) and `llama` (arXiv:2302.13971).

A step is what one rank does with one micro-batch: its part of each layer (tensor and context parallelism), and of the layers those
of one part of a pipeline. Activations that come from and go to other parts are tensors on the device; what their exchange takes,
the schedule adds (`pipeline.simulate.schedule`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.as_on_cuda.shape_operators import apply
from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.rank_layout import Layout
from pipeline.workloads.decoder_operators import (
    ColumnLinear,
    RowLinear,
    Shards,
    VocabularyEmbedding,
    bias_gelu,
    causal_softmax,
    dropout_add,
    rotate,
    swiglu,
    vocabulary_loss,
)
from pipeline.workloads.mixed_optimizer import MainWeights
from pipeline.workloads.training_step import Step, host_empty, is_dry

CHECKPOINTING = ("none", "selective", "full")
"""What is computed again in the backward pass: nothing, the core of attention, or each layer."""

ACTIVATIONS = ("gelu", "swiglu")

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this on each rank."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder and how one rank holds it."""

    llama: bool
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    tokens: int
    vocabulary: int
    activation: str
    fused: bool
    dropout: float
    checkpointing: str
    tied: bool
    layers: int
    part: str
    shards: Shards
    context: Shards

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.width // self.heads


class _FromAll(torch.autograd.Function):
    """The keys or values of the tokens of all ranks of a context-parallel group; gradients are summed where they belong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Shards) -> Tensor:
        ctx.context = context
        whole, work = context.gather(x)
        work.wait()
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.context.sum(gradients[0].contiguous()), None


class Core(nn.Module):
    """The core of attention: (T, B, heads, d) of queries, keys and values -> (T, B, width); fused, or separate operators."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Weigh the values."""
        return self._fused(q, k, v) if self.sizes.fused else self._eager(q, k, v)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
        share = self.sizes.dropout if self.training else 0.0
        grouped: Any = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=share, is_causal=True, **grouped)
        return seen.permute(2, 0, 1, 3).flatten(2)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens, samples, heads = q.shape[:3]
        if q.shape[2] != k.shape[2]:
            k, v = (part.repeat_interleave(q.shape[2] // k.shape[2], 2) for part in (k, v))
        q, k, v = (part.reshape(tokens, samples * heads, -1).transpose(0, 1) for part in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = causal_softmax(scores, self.sizes.head_width**-0.5)
        if self.sizes.dropout:
            weights = F.dropout(weights, self.sizes.dropout, self.training)
        seen = torch.bmm(weights, v).view(samples, heads, tokens, -1)
        return seen.permute(2, 0, 1, 3).contiguous().flatten(2)


class Attention(nn.Module):
    """Causal self-attention of the heads of one rank."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, ranks = sizes, sizes.shards.ranks
        self.heads, self.kv_heads = sizes.heads // ranks, sizes.kv_heads // ranks
        outputs = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_width
        self.qkv = ColumnLinear(sizes.width, outputs, not sizes.llama, sizes.shards)
        self.core = Core(sizes)
        self.out = RowLinear(sizes.heads * sizes.head_width, sizes.width, sizes.shards)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        """(T or its part, B, width) -> the same shape."""
        q, k, v = self._split(self.qkv(x))
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        if self.sizes.context.ranks > 1:
            k, v = (apply(_FromAll, part, self.sizes.context) for part in (k, v))
        again = self.sizes.checkpointing == "selective" and self.training
        seen = checkpoint(self.core, q, k, v, use_reentrant=False) if again else self.core(q, k, v)
        y: Tensor = self.out(seen)
        return y

    def _split(self, qkv: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values, each (T, B, heads, d): views of one result."""
        width, groups = self.sizes.head_width, self.kv_heads
        of_group = self.heads // groups
        parts = qkv.view(*qkv.shape[:2], groups, (of_group + 2) * width)
        q, k, v = torch.split(parts, [of_group * width, width, width], -1)
        return q.reshape(*qkv.shape[:2], self.heads, width), k, v


class FeedForward(nn.Module):
    """Two linear layers with GELU or SwiGLU between them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gated = sizes.activation == "swiglu"
        outputs = sizes.ffn_width * (2 if self.gated else 1)
        self.up = ColumnLinear(sizes.width, outputs, False, sizes.shards)
        if not self.gated:
            self.bias = nn.Parameter(torch.empty(outputs // sizes.shards.ranks))
        self.down = RowLinear(sizes.ffn_width, sizes.width, sizes.shards)

    def forward(self, x: Tensor) -> Tensor:
        """(T or its part, B, width) -> the same shape."""
        up = self.up(x)
        y: Tensor = self.down(swiglu(up) if self.gated else bias_gelu(up, self.bias))
        return y


def _norm(sizes: Sizes) -> nn.Module:
    return nn.RMSNorm(sizes.width) if sizes.llama else nn.LayerNorm(sizes.width)


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and added to what came in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.norm, self.norm2 = _norm(sizes), _norm(sizes)
        self.attention, self.feed_forward = Attention(sizes), FeedForward(sizes)
        if not sizes.llama:
            self.bias, self.bias2 = (nn.Parameter(torch.empty(sizes.width)) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        """(T or its part, B, width) -> the same shape."""
        y = self.attention(self.norm(x), angles)
        x = x + y if self.sizes.llama else dropout_add(y, self.bias, x, self.sizes.dropout)
        y = self.feed_forward(self.norm2(x))
        return x + y if self.sizes.llama else dropout_add(y, self.bias2, x, self.sizes.dropout)


class _Arrived(torch.autograd.Function):
    """Ends a part of a pipeline: its gradient is what arrives from the next part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.like = x.shape, x.dtype, x.device
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        shape, dtype, device = ctx.like
        return torch.empty(shape, dtype=dtype, device=device)


class DecoderPart(nn.Module):
    """Layers of a decoder; the first part has the embedding, the last the head and the loss, the whole all of them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, begins, ends = (
            sizes,
            sizes.part in ("whole", "first"),
            sizes.part in ("whole", "last"),
        )
        if begins:
            self.token = VocabularyEmbedding(sizes.vocabulary, sizes.width, sizes.shards)
            if not sizes.llama:
                self.position = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        if ends:
            self.norm = _norm(sizes)
            self.head = ColumnLinear(sizes.width, sizes.vocabulary, False, sizes.shards)
            if begins and sizes.tied:
                self.head.weight = self.token.weight
        if sizes.llama:
            rows = torch.empty(sizes.tokens // sizes.context.ranks, 1, 1, sizes.head_width)
            self.register_buffer("angles", rows)

    def embedded(self, ids: Tensor) -> Tensor:
        """Tokens (B, T) -> (T or its part, B, width)."""
        x: Tensor = self.token(ids)
        if self.sizes.llama:
            return x
        own = x.shape[0]
        x = x + self.position.weight[:own].unsqueeze(1)
        return F.dropout(x, self.sizes.dropout, self.training) if self.sizes.dropout else x

    def forward(self, *batch: Tensor) -> Tensor:
        """The loss of tokens and labels (B, T); of an inner part, what its result's gradient starts from."""
        sizes, (ids, *labels) = self.sizes, batch
        tokens = sizes.tokens // sizes.context.ranks
        if sizes.part in ("whole", "first"):
            x = self.embedded(ids)
        else:
            rows = tokens // sizes.shards.ranks if sizes.shards.splits_tokens else tokens
            (weight, *_) = self.layers.parameters()
            x = weight.new_empty(rows, len(ids), sizes.width).requires_grad_(self.training)
        angles: Any = self.angles if sizes.llama else None
        for layer in self.layers:
            again = sizes.checkpointing == "full" and self.training
            x = checkpoint(layer, x, angles, use_reentrant=False) if again else layer(x, angles)
        if sizes.part not in ("whole", "last"):
            return apply(_Arrived, x)
        logits: Tensor = self.head(self.norm(x))
        return (
            vocabulary_loss(logits, labels[-1].t().contiguous(), sizes.shards)
            if self.training
            else logits
        )


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build what one rank does with one micro-batch of random tokens."""
    sizes = sizes_of(config)
    tokens, dry = sizes.tokens // sizes.context.ranks, is_dry(device)

    def drawn() -> Tensor:
        shape = batch_size, tokens
        return (
            host_empty(*shape, dtype=torch.long) if dry else torch.randint(sizes.vocabulary, shape)
        )

    with torch.device(device):
        part = DecoderPart(sizes)
    if not dry:
        for weight in part.parameters():
            nn.init.normal_(weight, std=0.02)
    batch = (drawn(), drawn()) if sizes.part in ("whole", "last") else (drawn(),)
    if sizes.part in ("middle", "last"):  # its input is on the device
        config = {**config, "copies": "none"}
    step = Step([part], [batch], part, None, device, config)
    if step.training and step.pure and config.get("optimizer") in ("adam", "adamw"):
        owners = int(config.get("owners", 1))
        step.own_optimizers = step.optimizers = [MainWeights(part.parameters(), owners)]
    return step


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """The sizes of a decoder, with the process groups of the layout that a capture plays.

    Raises:
        ConfigError: sizes that do not divide each other.
        UnknownNameError: a choice that does not exist.
    """
    layout = Layout.of_workload(config) or Layout()
    of_axis = dict(layout.sizes)
    tp, cp = of_axis.get("tp", 1), of_axis.get("cp", 1)
    for key, choices in (("checkpointing", CHECKPOINTING), ("activation", ACTIVATIONS)):
        if config[key] not in choices:
            raise UnknownNameError(f"model.{key}", config[key], list(choices))
    width, heads = int(config["width"]), int(config["heads"])
    kv_heads = int(config.get("kv_heads") or heads)
    tokens, fused = int(config["seq_len"]), config["attention"] == "fused"
    _must_divide(("model.width", width), ("model.heads", heads))
    _must_divide(("model.heads", heads), ("model.kv_heads", kv_heads))
    ffn_width = int(config.get("ffn_width") or 4 * width)
    sequence = bool(config.get("sequence", False)) and tp > 1
    if cp > 1 and not fused:
        raise ConfigError(
            f"parallel.cp={cp}: attention over the tokens of other ranks is one operator;"
            " take model.attention=fused"
        )
    multiple = VOCABULARY_MULTIPLE * tp
    return Sizes(
        llama=config["architecture"] == "llama",
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        ffn_width=ffn_width,
        tokens=tokens,
        vocabulary=-(-int(config["vocabulary"]) // multiple) * multiple,
        activation=str(config["activation"]),
        fused=fused,
        dropout=float(config["dropout"]),
        checkpointing=str(config["checkpointing"]),
        tied=bool(config["tied"]),
        layers=1 if "part" in config else int(config["layers"]),
        part=str(config.get("part", "whole")),
        shards=Shards(tp, sequence, _group(layout, "tp")),
        context=Shards(cp, True, _group(layout, "cp")),
    )


def _must_divide(whole: tuple[str, int], by: tuple[str, int]) -> None:
    if by[1] < 1 or whole[1] % by[1]:
        raise ConfigError(f"{whole[0]}={whole[1]}: must be a multiple of {by[0]}={by[1]}")


def _group(layout: Layout, axis: str) -> Any:
    members = layout.members(axis)
    return dist.new_group(list(members)) if len(members) > 1 else None
