"""DLRM's pairwise dot products as one kernel in each direction, as in NVIDIA's training example.

One block per sample keeps the sample's vectors in shared memory and multiplies each vector by all others. It writes the
bottom MLP's output and the lower triangle next to each other, padded with zeros to a width that tensor cores accept.

With separate operators the same computation is a batched product, an index, and a concatenation. The backward pass of
the index alone moves the square matrix three times.

On the meta device there is one operator per direction. On other devices PyTorch's operators do the same arithmetic.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.workloads.shape_only_ops import is_fake, meta_operators

WIDTH_MULTIPLE = 8
"""The width of the result, in elements, is a multiple of this number.

It is the alignment of products in half precision on tensor cores.
"""


def width(features: int, dim: int) -> int:
    """Columns of the result: the bottom MLP's output, one product per pair of features, and zeros as padding."""
    return -(-(dim + features * (features - 1) // 2) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


class FusedInteraction(torch.autograd.Function):
    """The bottom MLP's output, followed by the dot products of all pairs of a sample's vectors."""

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
    """The two operators of the meta device, registered at the first use."""
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
