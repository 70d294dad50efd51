"""CUDA's fused operators on the meta device: attention, RMS norm, dropout, and grouped products in every dtype.

Capture finds the CUDA name of a stand-in by the name of its class (`pipeline.as_on_cuda.emulation`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.as_on_cuda.mixed_precision import lowered, raised
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators
from pipeline.as_on_cuda.torch_names import GROUPED_PRODUCTS, meta_shapes

MAX_HEAD_WIDTH = 256
"""Maximum head width of FlashAttention on CUDA."""


class SteptimeEfficient(torch.autograd.Function):
    """Shapes of CUDA's memory-efficient attention, which CUDA uses for fp32, and for any dtype with a mask."""

    name = "efficient"

    @classmethod
    def forward(
        cls,
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        dropout: float,
    ) -> Tensor:
        """q, k, v (B, heads, T, D), mask (in its stored shape) -> (B, heads, T, D)."""
        output: Tensor = getattr(_attention_operators(), cls.name)(q, k, v, mask, causal, dropout)
        ctx.save_for_backward(q, k, v, output, *([] if mask is None else [mask]))
        ctx.options = causal, dropout
        return output

    @classmethod
    def backward(cls, ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of q, k, v, and of a mask that requires one, in one operator."""
        q, k, v, output, *masks = ctx.saved_tensors
        mask = masks[0] if masks else None
        of_inputs = getattr(_attention_operators(), f"{cls.name}_backward")(
            gradients[0], q, k, v, mask, output, *ctx.options
        )
        return (
            *of_inputs,
            torch.empty_like(mask) if mask is not None and ctx.needs_input_grad[3] else None,
            None,
            None,
        )


class SteptimeFlash(SteptimeEfficient):
    """Shapes of FlashAttention, which CUDA uses in half precision without a mask."""

    name = "flash"


def fused_attention() -> AbstractContextManager[None]:
    """While the body runs, `F.scaled_dot_product_attention` on the meta device is CUDA's fused operator.

    If CUDA has no fused kernel, separate operators are used, as on CUDA. This is the case for

    * tensors that do not have four dimensions,
    * fp64,
    * fewer heads of keys than of queries, if FlashAttention does not support the case.

    Source: ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    plain = F.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        if query.device.type != "meta" or query.dim() != 4 or query.dtype == torch.float64:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
        mask = _added(attn_mask, lowered([query])[0].dtype)
        query, key, value, *masks = lowered([query, key, value, *([] if mask is None else [mask])])
        half = query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] <= MAX_HEAD_WIDTH
        flash = half and mask is None and value.shape[-1] == query.shape[-1]
        if not flash and key.shape[1] != query.shape[1]:
            return plain(
                query, key, value, masks[0] if masks else None, dropout_p, is_causal, **options
            )
        kernel = SteptimeFlash if flash else SteptimeEfficient
        return apply(kernel, query, key, value, masks[0] if masks else None, is_causal, dropout_p)

    return replaced(F, scaled_dot_product_attention=attention)


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as the kernel adds it to the scores: PyTorch first converts a boolean mask to numbers.

    Source: `convert_boolean_attn_mask` in ATen/native/transformers/attention.cpp.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.full((), -math.inf, dtype=dtype, device=mask.device))


@cache
def _attention_operators() -> Any:
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        return q.new_empty(*q.shape[:-1], v.shape[-1])

    def backward(
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        causal: bool,
        dropout: float,
    ) -> tuple[Tensor, ...]:
        return tuple(tensor.new_empty(tensor.shape) for tensor in (q, k, v))

    inputs = "Tensor q, Tensor k, Tensor v, Tensor? mask"
    operators: dict[str, Any] = {}
    for name in (SteptimeFlash.name, SteptimeEfficient.name):
        operators[f"{name}({inputs}, bool causal, float dropout) -> Tensor"] = forward
        operators[
            f"{name}_backward(Tensor g, {inputs}, Tensor out, bool causal, float dropout)"
            " -> (Tensor, Tensor, Tensor)"
        ] = backward
    return meta_operators("steptime_attention", operators)


class SteptimeRms(torch.autograd.Function):
    """Shapes of CUDA's fused RMS norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, shape: Sequence[int]) -> Tensor:
        """x (..., shape), weight (shape) -> shape of x; the divisor of each row is kept for the backward pass."""
        output, divisor = _norm_operators().rms(x, list(shape), weight)
        ctx.save_for_backward(x, divisor, *([] if weight is None else [weight]))
        ctx.shape = list(shape)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of x and of the weight in one operator."""
        x, divisor, *weights = ctx.saved_tensors
        weight = weights[0] if weights else None
        of_x, of_weight = _norm_operators().rms_backward(
            gradients[0], x, ctx.shape, divisor, weight
        )
        return of_x, of_weight if weights else None, None


def fused_norm() -> AbstractContextManager[None]:
    """While the body runs, `F.rms_norm` on the meta device is CUDA's fused operator, on these conditions.

    * The installed PyTorch has the operator.
    * The operator accepts the inputs: one dtype, and contiguous rows (`rms_norm_symint` in ATen/native/layer_norm.cpp).
    """
    plain = F.rms_norm

    def rms_norm(
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        cast, *others = raised(torch.rms_norm, [input, *([] if weight is None else [weight])])
        alike = all(tensor.dtype == cast.dtype for tensor in others) and not cast.is_complex()
        images = (
            cast.dim() == 4
            and cast.is_contiguous(memory_format=torch.channels_last)
            and not cast.is_contiguous()
        )
        if input.device.type != "meta" or not alike or images:
            return plain(input, normalized_shape, weight, eps)
        return apply(SteptimeRms, cast, others[0] if others else None, tuple(normalized_shape))

    fused = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    return replaced(F, rms_norm=rms_norm if fused else plain)


@cache
def _norm_operators() -> Any:
    def forward(x: Tensor, shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(*x.shape[: x.dim() - len(shape)], *[1] * len(shape))

    def backward(
        g: Tensor, x: Tensor, shape: list[int], divisor: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(shape if weight is not None else [0])

    inputs = "Tensor x, int[] shape"
    return meta_operators(
        "steptime_norm",
        {
            f"rms({inputs}, Tensor? weight) -> (Tensor, Tensor)": forward,
            f"rms_backward(Tensor g, {inputs}, Tensor divisor, Tensor? weight)"
            " -> (Tensor, Tensor)": (backward),
        },
    )


def fused_dropout() -> AbstractContextManager[None]:
    """While the body runs, `F.dropout` is one operator that makes the mask and applies it."""

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return torch.native_dropout(x, p, training)[0] if training and p > 0 else x

    return replaced(F, dropout=dropout)


def weighted_bags() -> AbstractContextManager[None]:
    """While the body runs, bags with a weight per sample have the shapes of CUDA, also on fake CPU tensors.

    The CPU's kernel keeps no list of the bag of each lookup, which the backward pass of the weights reads.
    """
    plain = torch.embedding_bag

    def embedding_bag(*arguments: Any, **options: Any) -> Any:
        weights = options.get("per_sample_weights", arguments[6] if len(arguments) > 6 else None)
        with (
            replaced(meta_shapes(), device_hint=lambda _: "cuda")
            if weights is not None
            else nullcontext()
        ):
            return plain(*arguments, **options)

    return replaced(torch, embedding_bag=embedding_bag)


def lengths_on_host() -> AbstractContextManager[None]:
    """While the body runs, `F.ctc_loss` on the meta device takes lengths in host memory as lists of numbers.

    CUDA's does so too (ATen/native/LossCTC.cpp). The meta device would take them for tensors on the wrong device.
    """
    plain = torch.ctc_loss

    def ctc_loss(
        x: Tensor, targets: Tensor, lengths: Any, target_lengths: Any, *options: Any
    ) -> Tensor:
        known = [
            not isinstance(part, Tensor) or not is_empty(part) for part in (lengths, target_lengths)
        ]
        if x.device.type == "meta" and all(known):
            lengths, target_lengths = (
                part.tolist() if isinstance(part, Tensor) else part
                for part in (lengths, target_lengths)
            )
        elif x.device.type == "meta" and known[1]:
            target_lengths = torch.as_tensor(target_lengths).to(x.device)
        return plain(x, targets, lengths, target_lengths, *options)

    return replaced(torch, ctc_loss=ctc_loss)


@contextmanager
def grouped_products() -> Iterator[None]:
    """While the body runs, grouped products (`F.grouped_mm`) on the meta device accept the same inputs as on CUDA.

    PyTorch's own shape function for the meta device accepts only bf16.
    """
    module = meta_shapes()
    usual: Any = getattr(module, GROUPED_PRODUCTS, None)
    if usual is None:  # this PyTorch version has no grouped products
        yield
        return

    def product(
        mat_a: Tensor, mat_b: Tensor, scale_a: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        offsets, dtype = kwargs.get("offs"), kwargs.get("out_dtype") or mat_a.dtype
        if scale_a is not None or mat_a.dtype == torch.bfloat16 or mat_a.dtype != mat_b.dtype:
            return usual(mat_a, mat_b, scale_a, *args, **kwargs)
        groups = [] if offsets is None or mat_a.dim() != mat_b.dim() else [offsets.shape[0]]
        groups = [mat_a.shape[0]] if mat_a.dim() == mat_b.dim() == 3 else groups
        return mat_a.new_empty(*groups, mat_a.shape[-2], mat_b.shape[-1], dtype=dtype)

    with replaced(module, **{GROUPED_PRODUCTS: product}):
        yield
