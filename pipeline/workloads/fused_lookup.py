"""Lookup of all embedding tables at once, whose backward pass updates the rows it used (FBGEMM's fused operator).

On the meta device there is one operator per direction; capture gives it FBGEMM's name. On other devices PyTorch's own
operators do the same arithmetic, so that a step computes the same with and without FBGEMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.workloads.shape_only_ops import meta_operators

LEARNING_RATE = 1e-3
BETAS, EPSILON = (0.9, 0.999), 1e-8

HALF_EPSILON = 1e-4
"""Epsilon that optimizers add to a square root in fp16, without unit.

The smallest positive number in fp16 is 6e-8. The usual epsilon would become zero, and 0 / 0 would follow.
"""

STATES = {"none": 0, "sgd": 0, "adagrad": 1, "adam": 2}
"""Optimizers that the backward pass can apply -> number of tensors of the weight's size that each keeps."""


class FusedLookup(torch.autograd.Function):
    """Sums of rows for all tables; the backward pass applies the optimizer to the rows that were used."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, tables: int,
        states: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        """`weight` (rows of all tables, D), `indices` (total lookups), `offsets` (T·B) -> (T·B, D); table-major.

        `states`: the optimizer's tensors, in the weight's shape. No tensor means SGD, one Adagrad, two Adam.
        """
        ctx.save_for_backward(indices, offsets)
        ctx.weight, ctx.tables, ctx.states = weight, tables, states
        if weight.device.type == "meta":
            found: Tensor = _operators().lookup(weight, indices, offsets, tables)
            return found
        return F.embedding_bag(indices, weight, offsets, mode="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Update the rows in place."""
        (gradient,) = gradients
        indices, offsets = ctx.saved_tensors
        if ctx.weight.device.type == "meta":
            _operators().lookup_backward(gradient, ctx.weight, indices, offsets, ctx.tables)
        else:
            ends = torch.cat(
                [offsets[1:], offsets.new_full((1,), indices.numel())]
            )  # a tensor made from a list would make the host wait
            rows = gradient.contiguous().repeat_interleave(ends - offsets, 0, output_size=indices.numel())
            _update(ctx.weight, ctx.states, indices, rows)
        return None, None, None, None, None, None


def _update(weight: Tensor, states: Sequence[Tensor], indices: Tensor, rows: Tensor) -> None:
    """Update the rows in `indices`; a row that occurs several times gets the sum of its gradients."""
    if not states:
        weight.index_add_(0, indices, rows, alpha=-LEARNING_RATE)
        return
    used, place = torch.unique(indices, return_inverse=True)
    gradient = rows.new_zeros(len(used), rows.shape[1]).index_add_(0, place, rows)
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


def epsilon(weight: Tensor, usual: float) -> float:
    """The epsilon that an optimizer adds to the square root of a weight's squared gradients."""
    return HALF_EPSILON if weight.dtype == torch.float16 else usual


@cache
def _operators() -> Any:
    """The two operators of the meta device, registered at the first use."""
    common = "Tensor indices, Tensor offsets, int tables"
    return meta_operators(
        "steptime",
        {
            f"lookup(Tensor weight, {common}) -> Tensor": lambda w, i, o, t: w.new_empty(o.shape[0], w.shape[1]),
            f"lookup_backward(Tensor gradient, Tensor(a!) weight, {common}) -> ()": lambda g, w, i, o, t: None,
        },
    )
