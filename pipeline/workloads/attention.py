"""How attention is computed: by its parts (eager) or as one fused operator, on real devices and on meta alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.workloads.autocast import lowered
from pipeline.workloads.standin import apply, meta_operators


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """softmax(q·kᵀ/√d + mask)·v by two matrix products and a softmax; q, k, v (..., T, D)."""
    scores = torch.matmul(q, k.transpose(-2, -1)) * (scale or 1.0 / math.sqrt(q.shape[-1]))
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = F.dropout(torch.softmax(scores, -1), dropout_p, dropout_p > 0)
    return torch.matmul(weights, v)


@contextmanager
def eager_attention(on: bool) -> Iterator[None]:
    """While the body runs, `F.scaled_dot_product_attention` is computed by its parts."""
    if not on:
        yield
        return
    with mock.patch.object(F, "scaled_dot_product_attention", plain_attention):
        yield


@contextmanager
def plain_layers() -> Iterator[None]:
    """While the body runs, `nn.TransformerEncoderLayer` takes no fused fast path in inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class FusedAttention(torch.autograd.Function):
    """Shapes of CUDA's memory-efficient attention; it is what fp32 gets there, and half precision with a mask."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float) -> Tensor:
        """q, k, v (B, heads, T, D) -> (B, heads, T, D)."""
        output: Tensor = _operators().forward(q, k, v, causal, dropout)
        ctx.save_for_backward(q, k, v, output)
        ctx.causal = causal
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of q, k and v in one operator."""
        q, k, v, output = ctx.saved_tensors
        return (*_operators().backward(gradients[0], q, k, v, output, ctx.causal), None, None)


@contextmanager
def fused_where_possible() -> Iterator[None]:
    """While the body runs, `F.scaled_dot_product_attention` on the meta device is CUDA's fused operator.

    What CUDA has no fused kernel for (other than four dimensions, fp64) is computed by its parts there too.
    """
    plain = F.scaled_dot_product_attention

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, **options: Any,
    ) -> Tensor:  # fmt: skip
        if query.device.type != "meta" or query.dim() != 4 or query.dtype == torch.float64:
            found: Tensor = plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
            return found
        return apply(FusedAttention, *lowered([query, key, value]), is_causal, dropout_p)

    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        yield


def _gradients(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (q, k, v))


@cache
def _operators() -> Any:
    """The two operators of the meta device, registered when first needed."""
    qkv = "Tensor q, Tensor k, Tensor v"
    return meta_operators(
        "steptime_attention",
        {
            f"forward({qkv}, bool causal, float dropout) -> Tensor": lambda q, k, v, c, p: q.new_empty(
                *q.shape[:-1], v.shape[-1]
            ),
            f"backward(Tensor g, {qkv}, Tensor out, bool causal) -> (Tensor, Tensor, Tensor)": _gradients,
        },
    )
