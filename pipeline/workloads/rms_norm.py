"""RMS normalisation as on CUDA: one fused kernel forward; other devices, also meta, run separate operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.workloads.autocast import raised
from pipeline.workloads.shape_only_ops import apply, meta_operators


class SteptimeRms(torch.autograd.Function):
    """Stand-in for the fused norm; capture finds its CUDA name by the class name (`pipeline.graph.cuda_emulation`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, shape: Sequence[int]) -> Tensor:
        """x (..., shape), weight (shape) -> shape of x; the divisor of each row is kept for the backward pass."""
        output, divisor = _operators().rms(x, list(shape), weight)
        ctx.save_for_backward(x, divisor, *([] if weight is None else [weight]))
        ctx.shape = list(shape)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of x and of the weight in one operator."""
        x, divisor, *weights = ctx.saved_tensors
        weight = weights[0] if weights else None
        of_x, of_weight = _operators().rms_backward(gradients[0], x, ctx.shape, divisor, weight)
        return of_x, of_weight if weights else None, None


@contextmanager
def fused_norm() -> Iterator[None]:
    """While the body runs, `F.rms_norm` on the meta device is CUDA's fused operator, on these conditions.

    * The installed PyTorch has the operator.
    * The operator accepts the inputs: one dtype, and contiguous rows (`rms_norm_symint` in ATen/native/layer_norm.cpp).
    """
    plain = F.rms_norm

    def rms_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        cast, *others = raised(torch.rms_norm, [input, *([] if weight is None else [weight])])
        alike = all(each.dtype == cast.dtype for each in others) and not cast.is_complex()
        images = cast.dim() == 4 and cast.is_contiguous(memory_format=torch.channels_last) and not cast.is_contiguous()
        if input.device.type != "meta" or not alike or images:
            return plain(input, normalized_shape, weight, eps)
        return apply(SteptimeRms, cast, others[0] if others else None, tuple(normalized_shape))

    fused = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    with mock.patch.object(F, "rms_norm", rms_norm if fused else plain):
        yield


@cache
def _operators() -> Any:
    """The two operators of the meta device, registered at the first use."""

    def forward(x: Tensor, shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(*x.shape[: x.dim() - len(shape)], *[1] * len(shape))

    def backward(
        g: Tensor, x: Tensor, shape: list[int], divisor: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(shape if weight is not None else [0])

    return meta_operators(
        "steptime_norm",
        {
            "rms(Tensor x, int[] shape, Tensor? weight) -> (Tensor, Tensor)": forward,
            "rms_backward(Tensor g, Tensor x, int[] shape, Tensor divisor, Tensor? weight) -> (Tensor, Tensor)": backward,
        },
    )
