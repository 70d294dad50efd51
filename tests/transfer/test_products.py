"""Tiles of products: what kernel names show, padding to tiles, and which GPU has which."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluation.training.utilisation_train import op_floors, unknown_host_floors
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


def test_products_are_padded_to_the_blocks_that_the_grids_of_the_public_table_show() -> None:
    def blocks(gpu: str, tile: str, call: tuple[int, ...]) -> float:
        high, wide = (int(v) for v in tile.split("x"))
        flops = batched_tiles(_calls([call]), load_gpu(gpu))[tile].flops[0]
        return float(flops / (2 * high * wide * 8 * np.ceil(call[2] / 8)))

    assert blocks("A100-PCIE-40GB", "128x128", (947, 395, 278, 203)) == 2 * 4 * 947
    assert blocks("P100", "128x64", (172, 196, 361, 113)) == 1 * 4 * 172
    assert blocks("V100", "32x128", (401, 858, 980, 448)) == 14 * 7 * 401
    assert blocks("T4", "128x32", (170, 159, 22, 912)) == 8 * 5 * 170


def test_an_architecture_has_its_tiles_only() -> None:
    def open_tiles(gpu: str) -> list[str]:
        found = batched_tiles(_calls([(8, 64, 64, 64)]), load_gpu(gpu))
        return [name for name, tiled in found.items() if np.isfinite(tiled.flops).all()]

    assert open_tiles("P4") == ["128x64"]
    assert open_tiles("H100") == open_tiles("L4") == ["128x128"]
    assert set(open_tiles("V100")) == {"64x64", "32x128", "128x32"}


def test_a_floor_is_what_calls_that_wait_for_the_host_usually_take() -> None:
    lucky, usual, kernels = (
        [24.0],
        list(np.linspace(25.6, 26.4, 101)),
        list(np.linspace(40.0, 4000.0, 100)),
    )
    table = pd.DataFrame({"op": "add", "latency_us": [*lucky, *usual, *kernels]})
    assert op_floors(table)["add"] == pytest.approx(26.0, rel=0.01)


def test_an_unknown_host_is_like_those_of_the_newest_gpus() -> None:
    floors = {
        "P100": {"add": 41.0},
        "V100": {"add": 32.0},
        "T4": {"add": 25.0},
        "A100-PCIE-40GB": {"add": 26.0},
    }
    assert unknown_host_floors(floors) == {"add": 25.5}
    assert unknown_host_floors({name: floors[name] for name in ("P100", "V100")}) == {"add": 36.5}
