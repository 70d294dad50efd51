"""Fused operators of decoders that are trained on many GPUs, and linear layers that are split over them.

Megatron-LM (arXiv:1909.08053, 2205.05198) and Transformer Engine fuse what stands between matrix products: bias and activation,
bias with dropout and residual, scale with mask and softmax, rotary embedding. On the meta device each is one operator per
direction. On other devices PyTorch's own operators do the same arithmetic.

Activations have the shape (tokens, samples, width), as in Megatron-LM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Collectives of one tensor; the first names are those from PyTorch 2.13 on."""


@cache
def _operators() -> Any:
    def like(x: Tensor, *_: Tensor) -> Tensor:
        return torch.empty_like(x)

    def halves(x: Tensor) -> Tensor:
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)

    return meta_operators(
        "megatron",
        {
            "softmax(Tensor scores) -> Tensor": like,
            "softmax_backward(Tensor g, Tensor weights) -> Tensor": like,
            "bias_gelu(Tensor x, Tensor bias) -> Tensor": like,
            "bias_gelu_backward(Tensor g, Tensor x, Tensor bias) -> Tensor": like,
            "swiglu(Tensor x) -> Tensor": halves,
            "swiglu_backward(Tensor g, Tensor x) -> Tensor": lambda _, x: torch.empty_like(x),
            "rotate(Tensor x, Tensor angles) -> Tensor": like,
            "rotate_backward(Tensor g, Tensor angles) -> Tensor": like,
            "dropout_add(Tensor x, Tensor bias, Tensor residual) -> (Tensor, Tensor)": (
                lambda x, *_: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool))
            ),
            "dropout_add_backward(Tensor g, Tensor mask) -> Tensor": like,
        },
    )


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights: Tensor = _operators().softmax(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _operators().softmax_backward(gradients[0], *ctx.saved_tensors)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax of scaled scores of earlier tokens: (..., T, T) -> the same shape."""
    if is_empty(scores):
        return apply(_Softmax, scores)
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return (scores * scale).masked_fill(hidden, -1e4).softmax(-1)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        result: Tensor = _operators().bias_gelu(x, bias)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = _operators().bias_gelu_backward(gradients[0], *ctx.saved_tensors)
        return back, back.sum((0, 1))


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU of x + bias."""
    return apply(_BiasGelu, x, bias) if is_empty(x) else F.gelu(x + bias, approximate="tanh")


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        result: Tensor = _operators().swiglu(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _operators().swiglu_backward(gradients[0], *ctx.saved_tensors)


def swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half times the second: (..., 2 F) -> (..., F)."""
    if is_empty(x):
        return apply(_Swiglu, x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        result: Tensor = _operators().rotate(x, angles)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _operators().rotate_backward(gradients[0], *ctx.saved_tensors), None


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding (arXiv:2104.09864): x (T, B, heads, d), angles (T, 1, 1, d)."""
    if is_empty(x):
        return apply(_Rotate, x, angles)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        result: Tensor
        result, mask = _operators().dropout_add(x, bias, residual)
        ctx.save_for_backward(mask)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = _operators().dropout_add_backward(gradients[0], *ctx.saved_tensors)
        return back, back.sum((0, 1)), gradients[0]


def dropout_add(x: Tensor, bias: Tensor, residual: Tensor, share: float) -> Tensor:
    """Dropout of x + bias, added to the residual."""
    if is_empty(x):
        return apply(_DropoutAdd, x, bias, residual)
    return residual + F.dropout(x + bias, share)


@dataclass(frozen=True)
class Shards:
    """How a layer is split over the ranks of a tensor-parallel group.

    Attributes:
        ranks: of the group; 1: nothing is split.
        sequence: whether activations between products are split over tokens, which takes an all-gather and a reduce-scatter in
            place of an all-reduce.
        group: the process group; None for one rank.
    """

    ranks: int = 1
    sequence: bool = False
    group: Any = None

    @property
    def splits_tokens(self) -> bool:
        """Whether a rank holds a part of the tokens between products."""
        return self.sequence and self.ranks > 1

    def gather(self, x: Tensor) -> tuple[Tensor, Any]:
        """The tokens of all ranks, and what to wait for before they are read."""
        if not self.splits_tokens:
            return x, None
        whole = x.new_empty(x.shape[0] * self.ranks, *x.shape[1:])
        return whole, _all_gather(whole, x.contiguous(), self.group, async_op=True)

    def reduce(self, x: Tensor) -> tuple[Tensor, Any]:
        """The sum over the ranks, of the own tokens where these are split, and what to wait for."""
        if self.ranks == 1:
            return x, None
        if not self.sequence:
            return x, dist.all_reduce(x, group=self.group, async_op=True)
        own = x.new_empty(x.shape[0] // self.ranks, *x.shape[1:])
        return own, _reduce_scatter(own, x, group=self.group, async_op=True)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the ranks, of the own tokens where these are split; the stream waits for it."""
        return _done(*self.reduce(x))


def _done(result: Tensor, work: Any) -> Tensor:
    if work is not None:
        work.wait()
    return result


class _ColumnLinear(torch.autograd.Function):
    """A linear layer whose outputs are split. The exchange of its input's gradient runs beside the product of its weight's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shards: Shards) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shards, ctx.biased = shards, bias is not None
        return F.linear(_done(*shards.gather(x)), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        whole, gathering = ctx.shards.gather(x)
        back, reducing = ctx.shards.reduce(g.matmul(weight))
        rows = g.flatten(0, -2)
        of_weight = rows.t().mm(_done(whole, gathering).flatten(0, -2))
        of_bias = rows.sum(0) if ctx.biased else None
        return _done(back, reducing), of_weight, of_bias, None


class _RowSum(torch.autograd.Function):
    """Behind a linear layer whose inputs are split: sums its outputs; the gradient is gathered where tokens are split."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return shards.sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _done(*ctx.shards.gather(gradients[0])), None


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are split over ranks; with one rank, a linear layer."""

    def __init__(self, inputs: int, outputs: int, bias: bool, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs // shards.ranks, inputs))
        self.bias = nn.Parameter(torch.empty(outputs // shards.ranks)) if bias else None
        self.shards = shards

    def forward(self, x: Tensor) -> Tensor:
        """(T / ranks or T, B, inputs) -> (T, B, outputs / ranks)."""
        if self.shards.ranks == 1:
            return F.linear(x, self.weight, self.bias)
        return apply(_ColumnLinear, x, self.weight, self.bias, self.shards)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over ranks, without its bias."""

    def __init__(self, inputs: int, outputs: int, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs // shards.ranks))
        self.shards = shards

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, inputs / ranks) -> (T / ranks or T, B, outputs)."""
        y = F.linear(x, self.weight)
        return y if self.shards.ranks == 1 else apply(_RowSum, y, self.shards)


class VocabularyEmbedding(nn.Module):
    """Embedding of tokens whose rows are split over ranks: each looks up its own, and the sum has all."""

    def __init__(self, vocabulary: int, width: int, shards: Shards) -> None:
        super().__init__()
        self.rows = vocabulary // shards.ranks
        self.weight = nn.Parameter(torch.empty(self.rows, width))
        self.shards = shards

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens (B, T) -> (T / ranks or T, B, width)."""
        if self.shards.ranks == 1:
            return F.embedding(ids, self.weight).transpose(0, 1).contiguous()
        others = ids >= self.rows
        found = F.embedding(ids.masked_fill(others, 0), self.weight)
        own = found.masked_fill(others.unsqueeze(-1), 0.0).transpose(0, 1).contiguous()
        return apply(_RowSum, own, self.shards)


class _VocabularyLoss(torch.autograd.Function):
    """Cross entropy of logits whose classes are split over ranks (Megatron-LM, tensor_parallel/cross_entropy.py)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, shards: Shards) -> Tensor:
        sums = Shards(shards.ranks, False, shards.group).sum
        logits = logits.sub_(sums(logits.max(-1)[0]).unsqueeze(-1))
        others = labels >= logits.shape[-1]
        own = labels.masked_fill(others, 0)
        chosen = logits.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        chosen = sums(chosen.masked_fill(others, 0.0))
        exponentials = logits.exp_()
        total = sums(exponentials.sum(-1))
        exponentials.div_(total.unsqueeze(-1))
        ctx.save_for_backward(exponentials, others, own)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        exponentials, others, own = ctx.saved_tensors
        chosen = 1.0 - others.to(exponentials.dtype)
        back = exponentials.scatter_add_(-1, own.unsqueeze(-1), -chosen.unsqueeze(-1))
        return back.mul_(gradients[0].unsqueeze(-1)), None, None


def vocabulary_loss(logits: Tensor, labels: Tensor, shards: Shards) -> Tensor:
    """Mean cross entropy in fp32: logits (T, B, vocabulary / ranks), labels (T, B) -> scalar.

    As in Megatron-LM, one rank computes it in place, too, which holds one copy of the fp32 logits, not three.
    """
    return apply(_VocabularyLoss, logits.float(), labels, shards).mean()
