"""BERT (Devlin et al. 2019) with its pre-training heads, or with a classification head with two labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.attention_operators import (
    DROPOUT,
    attend,
    initialise,
    merge_heads,
    split_heads,
)

BERT_EPSILON = 1e-12
"""Epsilon of BERT's layer norms, without unit."""


class BertAttention(nn.Module):
    """Self-attention, an output projection, the residual and a layer norm."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
        self.drop = nn.Dropout(DROPOUT)

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
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
        self.drop = nn.Dropout(DROPOUT)

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
        self.position = nn.Embedding(positions, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
        self.drop = nn.Dropout(DROPOUT)
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
        self.bert = bert
        self.pooler = Pooler(width)
        self.words = nn.Linear(width, vocabulary)
        self.words.weight = bert.token.weight
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, BERT_EPSILON)
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
        self.bert = bert
        self.pooler = Pooler(width)
        self.drop = nn.Dropout(DROPOUT)
        self.out = nn.Linear(width, labels)
        initialise(self)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (B, T) -> logits (B, labels)."""
        logits: Tensor = self.out(self.drop(self.pooler(self.bert(ids, mask=mask))))
        return logits
