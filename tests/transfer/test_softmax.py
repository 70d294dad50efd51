"""Softmax's kernels: blocks and rounds as PyTorch counts them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.transfer.gpu_features import block_rounds, block_threads


def test_blocks_are_those_that_the_public_table_shows() -> None:
    width = np.array([1025.0, 1031.0, 1033.0, 2053.0, 2065.0, 100_000.0])
    assert list(block_threads(width)) == [128, 128, 256, 256, 512, 512]


@pytest.mark.parametrize(
    ("width", "threads", "rounds"),
    [
        (1100, 256, 2.0),  # a vector of 4 each, then 76 of 256 threads once more
        (1536, 256, 3.0),  # a vector each, two single elements
        # three of four rows begin beside a vector: 1 + 4 single elements
        (1101, 256, (2 + 5 + 5 + 5) / 4),
        (1102, 256, (2 + 5) / 2),
    ],
)
def test_rounds_of_a_pass_add_up_by_hand(width: int, threads: int, rounds: float) -> None:
    assert block_rounds(np.array([float(width)]), np.array([float(threads)]))[0] == pytest.approx(
        rounds
    )
