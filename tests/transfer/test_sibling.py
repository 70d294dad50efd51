"""Cards of one chip: the measured card's own models serve the other one, scaled by what they differ in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.transferred_models import SameChipModel, same_chip_models
from pipeline.hardware.find_gpu import load_gpu, same_chip_gpu
from pipeline.model_files import list_packs
from tests.kernels.shipped import shipped

pytestmark = pytest.mark.skipif("A100-PCIE-40GB" not in list_packs(), reason="no pack of the A100")


@pytest.mark.parametrize(
    ("gpu", "sibling"),
    [
        ("A100-PCIE-80GB", "A100-PCIE-40GB"),
        ("V100-SXM2-32GB", "V100"),
        ("H100", None),
        ("A40", None),
    ],
)
def test_only_a_card_of_the_same_chip_is_a_sibling(gpu: str, sibling: str | None) -> None:
    found = same_chip_gpu(load_gpu(gpu), list_packs())
    assert (found.name if found else None) == sibling


def _calls() -> pd.DataFrame:
    add = {"family": "elementwise", "op": "add", "B": 65536.0, "H": 4096.0}
    products = [
        {"family": "gemm", "op": "linear", "B": 1.0, "M": size, "N": size, "K": size}
        for size in (4096, 64)
    ]
    return pd.DataFrame([add, *products])


def test_the_80_gb_a100_is_the_40_gb_one_with_more_bandwidth() -> None:
    calls = pd.concat([_calls(), _calls()[:1].assign(B=16.0, H=64.0)], ignore_index=True)
    small = shipped("A100").predict(calls)
    large = load_predictor(load_gpu("A100-PCIE-80GB")).predict(calls)
    traffic, arithmetic, *_ = large["kernel_us"] / small["kernel_us"]
    # traffic by the ratio of bandwidths (1.2), arithmetic as on the smaller card, the floor unchanged
    assert 0.79 < traffic < 0.85 and 0.97 < arithmetic <= 1.0 + 1e-9
    for tiny in (2, 3):
        assert large["predicted_us"][tiny] == pytest.approx(small["predicted_us"][tiny], rel=0.01)
    assert large["evidence"].str.startswith("transferred").all()
    widths = (np.log(found["latency_p90_us"] / found["latency_p10_us"]) for found in (large, small))
    assert (next(widths) >= next(widths)).all()


def test_convolutions_of_the_80_gb_card_are_its_own() -> None:
    model = same_chip_models(load_gpu("A100-PCIE-80GB"))["conv2d_forward"]
    assert model.measured.name == "A100-PCIE-80GB"
    assert model.ratio(pd.DataFrame({"op": ["conv"] * 2})) == pytest.approx(1.0)


def test_probes_move_the_level_of_a_sibling() -> None:
    model = same_chip_models(load_gpu("A100-PCIE-80GB"))["gemm"]
    calls = _calls().iloc[[1] * 10]
    slow = calls.assign(latency_us=model.predict(calls).latency * 1.3)
    moved = model.levelled(slow)
    assert isinstance(moved, SameChipModel) and 0.15 < moved.log_level < np.log(1.3)
    assert model.levelled(slow.iloc[:1]).log_level < moved.log_level
