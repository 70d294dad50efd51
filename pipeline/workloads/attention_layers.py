"""Implementations of attention: as separate operators (eager) or as one fused operator, also on the meta device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.workloads.autocast import lowered
from pipeline.workloads.shape_only_ops import apply, meta_operators

Weigh = Callable[[Tensor], Tensor]
"""Function of all scores or weights of an attention: (..., T, T) -> the same shape."""


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32 under autocast."""
    return scores.softmax(-1)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, drop: Weigh, weigh: Weigh = softmax
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


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """softmax(q·kᵀ/√d + mask)·v with two matrix products and a softmax; q, k, v (..., T, D)."""
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    return attend(q, k, v, attn_mask, scale, lambda weights: F.dropout(weights, dropout_p, dropout_p > 0))


MAX_HEAD_WIDTH = 256
"""Maximum head width of FlashAttention on CUDA."""


@contextmanager
def eager_attention(on: bool) -> Iterator[None]:
    """While the body runs, `F.scaled_dot_product_attention` is computed with separate operators."""
    if not on:
        yield
        return
    with mock.patch.object(F, "scaled_dot_product_attention", plain_attention):
        yield


@contextmanager
def plain_layers() -> Iterator[None]:
    """While the body runs, `nn.TransformerEncoderLayer` does not use its fused fast path in inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class SteptimeEfficient(torch.autograd.Function):
    """Shapes of CUDA's memory-efficient attention, which CUDA uses for fp32, and for any dtype with a mask.

    Capture finds the CUDA name of a stand-in by the name of its class (`pipeline.graph.cuda_emulation`).
    """

    name = "efficient"

    @classmethod
    def forward(
        cls, ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        """q, k, v (B, heads, T, D), mask (in its stored shape) -> (B, heads, T, D)."""
        output: Tensor = getattr(_operators(), cls.name)(q, k, v, mask, causal, dropout)
        ctx.save_for_backward(q, k, v, output, *([] if mask is None else [mask]))
        ctx.causal = causal
        return output

    @classmethod
    def backward(cls, ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of q, k, v, and of a mask that requires one, in one operator."""
        q, k, v, output, *masks = ctx.saved_tensors
        mask = masks[0] if masks else None
        found = getattr(_operators(), f"{cls.name}_backward")(gradients[0], q, k, v, mask, output, ctx.causal)
        return (*found, torch.empty_like(mask) if mask is not None and ctx.needs_input_grad[3] else None, None, None)


class SteptimeFlash(SteptimeEfficient):
    """Shapes of FlashAttention, which CUDA uses in half precision without a mask."""

    name = "flash"


@contextmanager
def fused_where_possible() -> Iterator[None]:
    """While the body runs, `F.scaled_dot_product_attention` on the meta device is CUDA's fused operator.

    If CUDA has no fused kernel, separate operators are used, as on CUDA. This is the case for

    * tensors that do not have four dimensions,
    * fp64,
    * fewer heads of keys than of queries, if FlashAttention does not support the case.

    Source: ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    plain = F.scaled_dot_product_attention

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, **options: Any,
    ) -> Tensor:  # fmt: skip
        if query.device.type != "meta" or query.dim() != 4 or query.dtype == torch.float64:
            found: Tensor = plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
            return found
        mask = _added(attn_mask, lowered([query])[0].dtype)
        query, key, value, *masks = lowered([query, key, value, *([] if mask is None else [mask])])
        half = query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] <= MAX_HEAD_WIDTH
        flash = half and mask is None and value.shape[-1] == query.shape[-1]
        if not flash and key.shape[1] != query.shape[1]:
            return plain(query, key, value, masks[0] if masks else None, dropout_p, is_causal, **options)
        kernel = SteptimeFlash if flash else SteptimeEfficient
        return apply(kernel, query, key, value, masks[0] if masks else None, is_causal, dropout_p)

    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        yield


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as the kernel adds it to the scores: PyTorch first converts a boolean mask to numbers.

    Source: `convert_boolean_attn_mask` in ATen/native/transformers/attention.cpp.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.full((), -math.inf, dtype=dtype, device=mask.device))


def _result(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def _gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, causal: bool
) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (q, k, v))


@cache
def _operators() -> Any:
    """The operators of the meta device, registered at the first use."""
    given = "Tensor q, Tensor k, Tensor v, Tensor? mask"
    operators: dict[str, Any] = {}
    for kernel in (SteptimeFlash, SteptimeEfficient):
        operators[f"{kernel.name}({given}, bool causal, float dropout) -> Tensor"] = _result
        operators[f"{kernel.name}_backward(Tensor g, {given}, Tensor out, bool causal) -> (Tensor, Tensor, Tensor)"] = (
            _gradients
        )
    return meta_operators("steptime_attention", operators)
