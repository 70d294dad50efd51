"""Tiles of products: what kernel names show, padding to tiles, and which GPU has which."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.output_tiles import TILES, batched_tiles, tiles_of_kernels


def _calls(rows: list[tuple[int, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["B", "M", "N", "K"]).astype(float).assign(op="bmm")


def test_kernel_names_show_the_tile() -> None:
    names = [
        "maxwell_sgemm_128x64_nn",
        "volta_sgemm_32x128_nn",
        "sgemm_32x32x32_NN",
        "gemv2T",
        None,
    ]
    taken = tiles_of_kernels(pd.DataFrame({"kernel_name": names}))
    assert [TILES[at] if at >= 0 else "" for at in taken] == ["128x64", "32x128", "", "", ""]
    assert list(tiles_of_kernels(pd.DataFrame({"B": [1.0]}))) == [-1]


@pytest.mark.parametrize(
    ("gpu", "tile", "call", "blocks"),
    [
        ("A100-PCIE-40GB", (128, 128), (947, 395, 278, 203), 2 * 4 * 947),
        ("P100", (128, 64), (172, 196, 361, 113), 1 * 4 * 172),
        ("V100", (32, 128), (401, 858, 980, 448), 14 * 7 * 401),
        ("T4", (128, 32), (170, 159, 22, 912), 8 * 5 * 170),
    ],
)
def test_products_are_padded_to_the_blocks_that_the_grids_of_the_public_table_show(
    gpu: str, tile: tuple[int, int], call: tuple[int, ...], blocks: int
) -> None:
    high, wide = tile
    flops = batched_tiles(_calls([call]), load_gpu(gpu))[f"{high}x{wide}"].flops[0]
    assert flops / (2 * high * wide * 8 * np.ceil(call[2] / 8)) == blocks


@pytest.mark.parametrize(
    ("gpu", "tiles"),
    [("P4", {"128x64"}), ("L4", {"128x128"}), ("V100", {"64x64", "32x128", "128x32"})],
)
def test_an_architecture_has_its_tiles_only(gpu: str, tiles: set[str]) -> None:
    found = batched_tiles(_calls([(8, 64, 64, 64)]), load_gpu(gpu))
    assert {name for name, tiled in found.items() if np.isfinite(tiled.flops).all()} == tiles
