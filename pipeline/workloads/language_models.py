"""Steps of BERT (Devlin et al. 2019), GPT-2 (Radford et al. 2019; also in GPT-3's sizes) and OPT (Zhang et al. 2022).

The models have random weights and the operators of the `transformers` library (`tests/workloads/test_transformers.py`).
The heads are those of the public measurements:

* BERT has its pre-training heads in training, and a classification head with two labels in inference.
* GPT and OPT have a language-model head.

Sequences have full length. BERT's eager attention still adds a mask, as it does for the output of tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.workloads.training_step import Step, host_empty, is_dry

DROPOUT = 0.1

BERT_EPSILON = 1e-12
"""Epsilon of BERT's layer norms, without unit."""

OPT_OFFSET = 2
"""Rows of OPT's position embedding before that of the first token."""

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


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as GPT-2 computes it: with separate operators (Hendrycks and Gimpel 2016)."""
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


class Projection(nn.Module):
    """GPT-2's linear layer, whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.empty(inputs, outputs)),
            nn.Parameter(torch.empty(outputs)),
        )

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


class BertAttention(nn.Module):
    """Self-attention, an output projection, the residual and a layer norm."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.drop = nn.LayerNorm(width, BERT_EPSILON), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape."""
        q, k, v = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        if self.fused:
            seen = F.scaled_dot_product_attention(q, k, v, mask, DROPOUT if self.training else 0.0)
        else:
            seen = attend(q, k, v, mask, q.shape[-1] ** -0.5, self.drop)
        more = self.drop(self.out(merge_heads(seen)))
        y: Tensor = self.norm(more + x)
        return y


class BertLayer(nn.Module):
    """Attention and two linear layers with GELU, each with a residual and a layer norm after it."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads, fused)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.drop = nn.LayerNorm(width, BERT_EPSILON), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, width) -> the same shape."""
        x = self.attention(x, mask)
        inner = F.gelu(self.up(x))
        more = self.drop(self.down(inner))
        y: Tensor = self.norm(more + x)
        return y


class Bert(nn.Module):
    """The encoder: tokens to hidden states."""

    def __init__(
        self, width: int, layers: int, heads: int, vocabulary: int, positions: int, fused: bool
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position, self.kind = nn.Embedding(positions, width), nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width, BERT_EPSILON), nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(BertLayer(width, heads, fused) for _ in range(layers))
        self.positions: Tensor
        self.kinds: Tensor
        self.register_buffer("positions", torch.arange(positions).expand(1, -1), persistent=False)
        self.register_buffer("kinds", torch.zeros(1, positions, dtype=torch.long), persistent=False)

    def embed(self, ids: Tensor, kinds: Tensor | None) -> Tensor:
        """Tokens and their kinds (B, T) -> (B, T, width)."""
        tokens = ids.shape[1]
        if kinds is None:
            kinds = self.kinds[:, :tokens].expand(ids.shape)
        x = self.token(ids) + self.kind(kinds)
        x = x + self.position(self.positions[:, :tokens])
        y: Tensor = self.drop(self.norm(x))
        return y

    def encode(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded tokens (B, T, width) -> hidden states of the same shape."""
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def forward(
        self, ids: Tensor, kinds: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, T, width).

        Args:
            ids: tokens (B, T).
            kinds: 0 for tokens of the first sentence, 1 for those of the second (B, T); without it, all are 0.
            mask: added to the scores of attention (B, 1, 1, T).
        """
        embedded = self.embed(ids, kinds)
        return self.encode(embedded, mask)


class Pooler(nn.Module):
    """A vector for a whole sequence: a linear layer with tanh on the state of its first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, width)."""
        return torch.tanh(self.dense(x[:, 0]))


class Pretraining(nn.Module):
    """BERT with both pre-training heads: the missing words, and whether the second sentence follows the first."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        vocabulary, width = bert.token.weight.shape
        self.bert, self.pooler = bert, Pooler(width)
        self.words = nn.Linear(width, vocabulary)
        self.words.weight = bert.token.weight
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, BERT_EPSILON)
        self.follows = nn.Linear(width, 2)
        initialise(self)

    def forward(self, ids: Tensor, follows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (B, T), which are also the words to find, and labels (B,) -> loss."""
        x = self.bert(ids, mask=mask)
        pooled = self.pooler(x)
        words = self.words(self.norm(F.gelu(self.dense(x))))
        second = self.follows(pooled)
        return F.cross_entropy(words.flatten(0, 1), ids.flatten()) + F.cross_entropy(
            second, follows
        )


class Classifier(nn.Module):
    """BERT that finds the class of a sequence."""

    def __init__(self, bert: Bert, labels: int = 2) -> None:
        super().__init__()
        width = bert.token.weight.shape[1]
        self.bert, self.pooler, self.drop = bert, Pooler(width), nn.Dropout(DROPOUT)
        self.out = nn.Linear(width, labels)
        initialise(self)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (B, T) -> logits (B, labels)."""
        logits: Tensor = self.out(self.drop(self.pooler(self.bert(ids, mask=mask))))
        return logits


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
        self.opt, self.fused = opt, fused
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


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a language model on random tokens."""
    tokens, vocabulary = int(config["seq_len"]), int(config["vocabulary"])
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
