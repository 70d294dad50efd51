"""FBGEMM's operators on features (indices with lengths of bags): in PyTorch's own operators, and as stand-ins for capture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.shape_operators import is_empty, meta_operators
from pipeline.question.placed_tables import STAND_INS


def split(tensor: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.split` by sizes."""
    return tuple(torch.split(tensor, list(sizes), dim))


def permute(
    lengths: Tensor, indices: Tensor, batch: int, order: Sequence[int], count: int
) -> tuple[Tensor, Tensor]:
    """Features in another order, also several times or not at all: their lengths and indices (FBGEMM's operator).

    Args:
        lengths: lookups of each sample, by feature.
        indices: of all lookups, by feature.
        batch: samples of a feature.
        order: which feature comes at each place.
        count: indices of all these features.
    """
    if is_empty(indices):
        made = feature_operators().permute_2D_sparse_data(
            lengths, indices, len(order) * batch, count
        )
        return made[0], made[1]
    of = lengths.view(-1, batch)
    each = split(indices, [int(n) for n in of.sum(1)])
    moved = [each[feature] for feature in order]
    return of[list(order)].reshape(-1), torch.cat([indices[:0], *moved])


def offsets_of(lengths: Tensor) -> Tensor:
    """Where each bag begins, and the end of the last (FBGEMM's operator)."""
    if is_empty(lengths):
        offsets: Tensor = feature_operators().asynchronous_complete_cumsum(lengths)
        return offsets
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


@cache
def feature_operators() -> Any:
    """Stand-ins of FBGEMM's operators on the meta device."""

    def permuted(lengths: Tensor, indices: Tensor, bags: int, count: int) -> tuple[Tensor, Tensor]:
        return lengths.new_empty(bags), indices.new_empty(count)

    def bucketized(
        indices: Tensor, lengths: Tensor, ranks: int, bags: int, count: int
    ) -> tuple[Tensor, Tensor]:
        return (
            indices.new_empty(indices.numel() + count),
            lengths.new_empty(lengths.numel() + ranks * bags),
        )

    sizes = "int bags, int count"
    return meta_operators(
        STAND_INS,
        {
            f"permute_2D_sparse_data(Tensor lengths, Tensor indices, {sizes})"
            " -> (Tensor, Tensor)": permuted,
            f"block_bucketize_sparse_features(Tensor indices, Tensor lengths, int ranks, {sizes})"
            " -> (Tensor, Tensor)": bucketized,
            "permute_pooled_embs(Tensor sums) -> Tensor": torch.empty_like,
            "asynchronous_complete_cumsum(Tensor lengths) -> Tensor": lambda lengths: (
                lengths.new_empty(lengths.numel() + 1)
            ),
        },
    )
