"""Operators of HSTU's layers, as its public code runs them with Triton (meta-recsys/generative-recommenders, `ops/triton`).

Sequences of different lengths lie one behind the other (jagged): all tokens have the shape (tokens, width), and `offsets` says
where each sequence begins. On the meta device each Triton kernel is one operator, and the backward pass computes norms and
projections again, as there. On other devices PyTorch's own operators do the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators


@dataclass(frozen=True)
class Jagged:
    """What attention knows of the sequences of a batch.

    Attributes:
        heads: attention heads.
        candidates: tokens at the end of each sequence that attend to what is before them, and not to each other.
        pairs: of tokens of which one attends to the other, in all sequences.
        longest: tokens of the longest sequence that there may be; it scales the weights.
    """

    heads: int
    candidates: int
    pairs: int
    longest: int


@cache
def _operators() -> Any:
    def like(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.empty_like, inputs))

    values, sizes = "Tensor q, Tensor k, Tensor v, Tensor offsets", "int pairs, int heads"
    return meta_operators(
        "hstu",
        {
            "norm(Tensor x, Tensor weight, Tensor bias) -> Tensor": lambda x, *_: like(x)[0],
            "norm_backward(Tensor g, Tensor x, Tensor weight) -> (Tensor, Tensor, Tensor)": (
                lambda _, x, weight: like(x, weight, weight)
            ),
            f"attention({values}, {sizes}) -> Tensor": lambda q, k, v, *_: v.new_empty(v.shape),
            f"attention_backward({values}, {sizes}, Tensor g, Tensor(a!) dq, Tensor(b!) dk,"
            " Tensor(c!) dv) -> ()": lambda *_: None,
            "gate(Tensor values, Tensor u, Tensor weight, Tensor bias) -> Tensor": (
                lambda values, *_: values.new_empty(len(values), 3 * values.shape[1])
            ),
            "gate_backward(Tensor g, Tensor values, Tensor u, Tensor weight)"
            " -> (Tensor, Tensor, Tensor, Tensor, Tensor)": (
                lambda g, values, u, weight: like(values, u, weight, weight, g)
            ),
        },
    )


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        result: Tensor = _operators().norm(x, weight, bias)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _operators().norm_backward(gradients[0], *ctx.saved_tensors)


class Norm(nn.LayerNorm):
    """Layer norm as one kernel; with `swish`, its sigmoid times its input (the public code's `SwishLayerNorm`)."""

    def __init__(self, width: int, swish: bool = False) -> None:
        super().__init__(width)
        self.swish = swish

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        if is_empty(x):
            return apply(_Norm, x, self.weight, self.bias)
        normed = F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype))
        return x * normed.sigmoid() if self.swish else normed


def attended(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, of: Jagged) -> Tensor:
    """Weighs values by SiLU of scores, without a softmax: (tokens, heads x width) of queries, keys, values -> that of values."""
    if is_empty(q):
        result: Tensor = _operators().attention(q, k, v, offsets, of.pairs, of.heads)
        return result
    found = []
    lengths = offsets.diff().tolist()
    for each in zip(*(torch.split(part, lengths) for part in (q, k, v)), strict=True):
        query, key, value = (part.view(len(part), of.heads, -1) for part in each)
        scores = torch.einsum("ihd,jhd->hij", query, key) * query.shape[-1] ** -0.5
        place = torch.arange(len(query)).clamp(max=len(query) - of.candidates)
        seen = (place.unsqueeze(1) > place) | torch.eye(len(query), dtype=torch.bool)
        weights = (F.silu(scores) / of.longest).masked_fill(~seen, 0.0)
        found.append(torch.einsum("hij,jhd->ihd", weights, value).flatten(1))
    return torch.cat(found)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
        *weights, offsets, ctx.of = more
        ctx.save_for_backward(x, *weights, offsets)
        _, u, v, q, k = _projected(x, *weights)
        torch.sort(offsets[1:] - offsets[:-1], descending=True)  # long sequences run first
        return F.silu(u), attended(q, k, v, offsets, ctx.of)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, norm, norm_bias, weight, bias, offsets = ctx.saved_tensors
        normed, u, v, q, k = _projected(x, norm, norm_bias, weight, bias)
        back = x.new_empty(len(x), weight.shape[1])
        du, dv, dq, dk = back.chunk(4, 1)
        dq.zero_()  # blocks add to it
        of = ctx.of.pairs, ctx.of.heads, gradients[1], dq, dk, dv
        _operators().attention_backward(q, k, v, offsets, *of)
        torch.ops.aten.silu_backward.grad_input(gradients[0], u, grad_input=du)
        first = _operators().norm_backward(back.mm(weight.t()), x, norm)
        return *first, normed.t().mm(back), back.sum(0), None, None


def _projected(
    x: Tensor, norm: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    """The normed tokens, and u, v, q, k."""
    normed = _operators().norm(x, norm, norm_bias)
    return normed, *torch.addmm(bias, normed, weight).chunk(4, 1)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        values, u, x, norm, norm_bias, weight = inputs
        ctx.save_for_backward(values, u, norm, weight)
        return torch.addmm(x, _operators().gate(values, u, norm, norm_bias), weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (g,), (*saved, weight) = gradients, ctx.saved_tensors
        back = _operators().gate_backward(g.mm(weight.t()), *saved)
        return *back[:2], g, *back[2:4], back[4].t().mm(g)


class Layer(nn.Module):
    """Attention of all heads, gated by a projection of the tokens.

    Args:
        width: of a token.
        inner: width of all heads.
        share: that dropout sets to zero.
        of: what attention knows of the sequences.
    """

    def __init__(self, width: int, inner: int, share: float, of: Jagged) -> None:
        super().__init__()
        self.of, self.share = of, share
        self.norm, self.gate = Norm(width), Norm(inner)
        self.weight = nn.Parameter(torch.empty(width, 4 * inner))
        self.bias = nn.Parameter(torch.zeros(4 * inner))
        self.out = nn.Parameter(torch.empty(3 * inner, width))
        for weight in (self.weight, self.out):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """(tokens, width) -> the same shape."""
        own = self.norm.weight, self.norm.bias, self.weight, self.bias
        last = self.gate.weight, self.gate.bias, self.out
        first, second = ([part.to(x.dtype) for part in weights] for weights in (own, last))
        if is_empty(x):
            u, values = _Attend.apply(x, *first, offsets, self.of)  # type: ignore[no-untyped-call]
            return apply(_Output, values, u, x, *second)
        u, v, q, k = torch.addmm(first[3], self.norm(x), first[2]).chunk(4, 1)
        u, values = F.silu(u), attended(q, k, v, offsets, self.of)
        joined = torch.cat([u, values, self.gate(values) * u], 1)
        return torch.addmm(x, F.dropout(joined, self.share, self.training), second[2])
