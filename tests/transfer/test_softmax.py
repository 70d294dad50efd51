"""Softmax's kernels: blocks and rounds as PyTorch counts them, and features that stay finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.gpu_features import block_rounds, block_threads, softmax_features


def _calls(rows: list[tuple[int, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["B", "H"]).astype(float).assign(op="softmax")


def test_blocks_are_those_that_the_public_table_shows() -> None:
    width = np.array([1025.0, 1031.0, 1033.0, 2053.0, 2065.0, 4094.0, 8200.0, 100_000.0])
    assert list(block_threads(width)) == [128, 128, 256, 256, 512, 512, 512, 512]


@pytest.mark.parametrize(
    ("width", "threads", "rounds"),
    [
        (1100, 256, 2.0),  # a vector of 4 each, then 76 of 256 threads once more
        (1536, 256, 3.0),  # a vector each, two single elements
        (
            1101,
            256,
            (2 + 5 + 5 + 5) / 4,
        ),  # three of four rows begin beside a vector: 1 + 4 single elements
        (1102, 256, (2 + 5) / 2),
    ],
)
def test_rounds_of_a_pass_add_up_by_hand(width: int, threads: int, rounds: float) -> None:
    assert block_rounds(np.array([float(width)]), np.array([float(threads)]))[0] == pytest.approx(
        rounds
    )


def test_a_row_of_a_warp_has_no_rounds_and_a_row_of_a_block_no_padding() -> None:
    short, long = softmax_features(_calls([(4096, 768), (4096, 1536)]), load_gpu("A100-PCIE-40GB"))
    assert list(short[:3]) == [0.0, 0.75, 0.0]
    assert list(long[:2]) == [1.0, 1.0] and long[2] == pytest.approx(3 * 256 / 1536)


def test_rows_within_a_sector_cost_where_partial_writes_do() -> None:
    calls = _calls([(4096, 768), (4096, 772), (4096, 771), (4096, 1531)])
    assert list(softmax_features(calls, load_gpu("V100"))[:, 3]) == [0.0, 0.7, 1.0, 0.0]
    assert not softmax_features(calls, load_gpu("L4"))[:, 3].any()


def test_features_hold_no_bandwidth_and_no_clock() -> None:
    calls, gpu = _calls([(4096, 768), (100, 2000)]), load_gpu("T4")
    faster = replace(
        gpu, dram_gb_per_s=2 * gpu.dram_gb_per_s, boost_clock_mhz=2 * gpu.boost_clock_mhz
    )
    assert np.array_equal(softmax_features(calls, gpu), softmax_features(calls, faster))


def test_an_empty_row_has_finite_features() -> None:
    assert np.isfinite(softmax_features(_calls([(0, 64), (64, 0)]), load_gpu("H100"))).all()
