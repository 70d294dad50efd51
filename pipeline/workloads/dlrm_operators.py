"""DLRM's fused operators: the lookup of all embedding tables at once, and the dot products as one kernel.

On the meta device there is one operator per direction. On other devices PyTorch's own operators do the same arithmetic.

* The lookup is FBGEMM's fused operator, whose name capture gives it. Its backward pass updates the rows it used.
* The dot products are those of NVIDIA's training example. One block per sample keeps the sample's vectors in shared memory
  and multiplies each vector by all others. It writes the bottom MLP's output and the lower triangle next to each other,
  padded with zeros to a width that tensor cores accept. With separate operators the same computation is a batched
  product, an index, and a concatenation; the backward pass of the index alone moves the square matrix three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.as_on_cuda.shape_operators import is_empty, meta_operators
from pipeline.workloads.step_optimizers import epsilon

LEARNING_RATE = 1e-3
BETAS, EPSILON = (0.9, 0.999), 1e-8

WIDTH_MULTIPLE = 8
"""The width of the fused interaction, in elements, is a multiple of this number.

It is the alignment of products in half precision on tensor cores.
"""


class FusedLookup(torch.autograd.Function):
    """Sums of rows for all tables; the backward pass applies the optimizer to the rows that were used."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        tables: int,
        states: Sequence[Tensor],
    ) -> Tensor:
        """`weight` (rows of all tables, D), `indices` (total lookups), `offsets` (T·B), by table -> (B·T, D), by sample.

        `states`: the optimizer's tensors, in the weight's shape. No tensor means SGD, one Adagrad, two Adam.
        """
        ctx.save_for_backward(indices, offsets)
        ctx.weight = weight
        ctx.tables = tables
        ctx.states = states
        if weight.device.type == "meta":
            sums: Tensor = _lookup_operators().lookup(weight, indices, offsets, tables)
            return sums
        return _turned(F.embedding_bag(indices, weight, offsets, mode="sum"), tables)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Update the rows in place."""
        (gradient,) = gradients
        indices, offsets = ctx.saved_tensors
        if ctx.weight.device.type == "meta":
            _lookup_operators().lookup_backward(gradient, ctx.weight, indices, offsets, ctx.tables)
        else:
            end = offsets.new_full(
                (1,), indices.numel()
            )  # a tensor made from a list would make the host wait
            ends = torch.cat([offsets[1:], end])
            by_table = _turned(gradient, len(offsets) // ctx.tables)
            rows = by_table.repeat_interleave(ends - offsets, 0, output_size=indices.numel())
            _update(ctx.weight, ctx.states, indices, rows)
        return None, None, None, None, None, None


def _turned(rows: Tensor, outer: int) -> Tensor:
    """Rows (`outer` x inner, D) in the order (inner x `outer`, D)."""
    return rows.reshape(outer, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def _update(weight: Tensor, states: Sequence[Tensor], indices: Tensor, rows: Tensor) -> None:
    """Update the rows in `indices`; a row that occurs several times gets the sum of its gradients."""
    if not states:
        weight.index_add_(0, indices, rows, alpha=-LEARNING_RATE)
        return
    used, position = torch.unique(indices, return_inverse=True)
    gradient = rows.new_zeros(len(used), rows.shape[1]).index_add_(0, position, rows)
    small = epsilon(weight, EPSILON)
    if len(states) == 1:
        (total,) = states
        total[used] += gradient**2
        weight[used] -= LEARNING_RATE * gradient / (total[used].sqrt() + small)
        return
    mean, square = states
    mean[used] += (1 - BETAS[0]) * (gradient - mean[used])
    square[used] += (1 - BETAS[1]) * (gradient**2 - square[used])
    weight[used] -= LEARNING_RATE * mean[used] / (square[used].sqrt() + small)


@cache
def _lookup_operators() -> Any:
    common = "Tensor indices, Tensor offsets, int tables"
    return meta_operators(
        "steptime",
        {
            f"lookup(Tensor weight, {common}) -> Tensor": lambda w, i, o, t: w.new_empty(
                o.shape[0], w.shape[1]
            ),
            f"lookup_backward(Tensor gradient, Tensor(a!) weight, {common}) -> ()": (
                lambda g, w, i, o, t: None
            ),
        },
    )


def interaction_width(features: int, dim: int) -> int:
    """Columns of the result: the bottom MLP's output, one product per pair of features, and zeros as padding."""
    return -(-(dim + features * (features - 1) // 2) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


class FusedInteraction(torch.autograd.Function):
    """The bottom MLP's output, followed by the dot products of all pairs of a sample's vectors."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, dense: Tensor) -> Tensor:
        """`vectors` (B, F, D), `dense` (B, D) -> (B, `interaction_width(F, D)`)."""
        ctx.save_for_backward(vectors)
        if is_empty(vectors):
            joined: Tensor = _interaction_operators().interact(vectors, dense)
            return joined
        batch, features, dim = vectors.shape
        row, column = torch.tril_indices(features, features, -1, device=vectors.device)
        result = vectors.new_zeros(batch, interaction_width(features, dim))
        result[:, :dim] = dense
        result[:, dim : dim + len(row)] = torch.bmm(vectors, vectors.transpose(1, 2))[
            :, row, column
        ]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of the vectors and of the bottom MLP's output."""
        (gradient,) = gradients
        (vectors,) = ctx.saved_tensors
        if is_empty(vectors):
            return _interaction_operators().interact_backward(gradient, vectors)
        batch, features, dim = vectors.shape
        row, column = torch.tril_indices(features, features, -1, device=vectors.device)
        pairs = vectors.new_zeros(batch, features, features)
        pairs[:, row, column] = gradient[:, dim : dim + len(row)]
        return torch.bmm(pairs + pairs.transpose(1, 2), vectors), gradient[:, :dim].contiguous()


@cache
def _interaction_operators() -> Any:
    def forward(vectors: Tensor, dense: Tensor) -> Tensor:
        return vectors.new_empty(vectors.shape[0], interaction_width(*vectors.shape[1:]))

    def backward(gradient: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(vectors), vectors.new_empty(vectors.shape[0], vectors.shape[2])

    return meta_operators(
        "dlrm",
        {
            "interact(Tensor vectors, Tensor dense) -> Tensor": forward,
            "interact_backward(Tensor gradient, Tensor vectors) -> (Tensor, Tensor)": backward,
        },
    )
