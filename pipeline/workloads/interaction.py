"""DLRM's pairwise dot products as one kernel in each direction, as NVIDIA's training example has them.

A block per sample holds its vectors in shared memory, multiplies each by all others, and writes the bottom MLP's output
and the lower triangle beside each other, filled up with zeros to a width that tensor cores take; by parts the same is a
batched product, an index, and a concatenation, of which the index's backward pass alone moves the square three times.
On the meta device one operator stands for each direction; elsewhere the same arithmetic runs in PyTorch's operators.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.workloads.shape_only_ops import is_fake, meta_operators

MULTIPLE = 8
"""The result's width is a multiple of it: what products in half precision on tensor cores are aligned to."""


def width(features: int, dim: int) -> int:
    """Columns of the result: the bottom MLP's, a product for each pair of features, zeros up to the multiple."""
    return -(-(dim + features * (features - 1) // 2) // MULTIPLE) * MULTIPLE


class FusedInteraction(torch.autograd.Function):
    """Dot products of all pairs of a sample's vectors, behind the bottom MLP's output."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, dense: Tensor) -> Tensor:
        """`vectors` (B, F, D), `dense` (B, D) -> (B, `width(F, D)`)."""
        ctx.save_for_backward(vectors)
        if _nothing_computed(vectors):
            found: Tensor = _operators().interact(vectors, dense)
            return found
        batch, features, dim = vectors.shape
        row, column = torch.tril_indices(features, features, -1, device=vectors.device)
        result = vectors.new_zeros(batch, width(features, dim))
        result[:, :dim] = dense
        result[:, dim : dim + len(row)] = torch.bmm(vectors, vectors.transpose(1, 2))[:, row, column]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of the vectors and of the bottom MLP's output."""
        (gradient,), (vectors,) = gradients, ctx.saved_tensors
        if _nothing_computed(vectors):
            return _operators().interact_backward(gradient, vectors)
        batch, features, dim = vectors.shape
        row, column = torch.tril_indices(features, features, -1, device=vectors.device)
        pairs = vectors.new_zeros(batch, features, features)
        pairs[:, row, column] = gradient[:, dim : dim + len(row)]
        return torch.bmm(pairs + pairs.transpose(1, 2), vectors), gradient[:, :dim].contiguous()


def _nothing_computed(tensor: Tensor) -> bool:
    return tensor.device.type == "meta" or is_fake(tensor)


@cache
def _operators() -> Any:
    """The two operators of the meta device, registered when first needed."""
    return meta_operators(
        "dlrm",
        {
            "interact(Tensor vectors, Tensor dense) -> Tensor": lambda v, d: v.new_empty(
                v.shape[0], width(v.shape[1], v.shape[2])
            ),
            "interact_backward(Tensor gradient, Tensor vectors) -> (Tensor, Tensor)": lambda g, v: (
                torch.empty_like(v),
                v.new_empty(v.shape[0], v.shape[2]),
            ),
        },
    )
