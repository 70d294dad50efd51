"""Cards of one chip: the measured card's own models serve the other one, scaled by what they differ in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.transferred_models import SameChipModel, same_chip_models
from pipeline.hardware.find_gpu import load_gpu, same_chip, same_chip_gpu
from pipeline.model_files import list_packs
from tests.kernels.shipped import shipped

pytestmark = pytest.mark.skipif("A100-PCIE-40GB" not in list_packs(), reason="no pack of the A100")


@pytest.mark.parametrize(
    ("gpu", "sibling"),
    [
        ("A100-PCIE-80GB", "A100-PCIE-40GB"),
        ("A100-SXM4-80GB", "A100-PCIE-40GB"),
        ("V100-SXM2-32GB", "V100"),
        ("H100", None),
        ("L4", None),
        ("RTX2070", None),
    ],
)
def test_only_a_card_of_the_same_chip_is_a_sibling(gpu: str, sibling: str | None) -> None:
    found = same_chip_gpu(load_gpu(gpu), list_packs())
    assert (found.name if found else None) == sibling


def test_a_card_has_the_chip_of_itself_and_an_a30_would_not_be() -> None:
    a100 = load_gpu("A100")
    assert same_chip(a100, a100) and not same_chip(a100, load_gpu("A40"))


def _calls() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "family": ["elementwise", "gemm", "gemm"],
            "op": ["add", "linear", "linear"],
            "B": [65536.0, 1, 1],
            "H": [4096.0, np.nan, np.nan],
            "M": [np.nan, 4096, 64],
            "N": [np.nan, 4096, 64],
            "K": [np.nan, 4096, 64],
        }
    )


def test_the_80_gb_a100_is_the_40_gb_one_with_more_bandwidth() -> None:
    small = shipped("A100").predict(_calls())
    large = load_predictor(load_gpu("A100-PCIE-80GB")).predict(_calls())
    ratio = (large["kernel_us"] / small["kernel_us"]).to_numpy()
    # traffic by the ratio of bandwidths (1.2), arithmetic as on the smaller card, the floor unchanged
    assert 0.79 < ratio[0] < 0.85 and 0.97 < ratio[1] <= 1.0 + 1e-9
    assert large["predicted_us"].iloc[2] == pytest.approx(small["predicted_us"].iloc[2], rel=0.01)
    tiny = _calls().iloc[[0]].assign(B=16.0, H=64.0)
    floors = [
        shipped(gpu).predict(tiny)["predicted_us"].iloc[0]
        for gpu in ("A100-PCIE-40GB", "A100-PCIE-80GB")
    ]
    assert floors[0] == pytest.approx(floors[1], rel=0.01)
    assert large["evidence"].str.startswith("transferred").all()
    width = np.log(large["latency_p90_us"] / large["latency_p10_us"])
    assert (width >= np.log(small["latency_p90_us"] / small["latency_p10_us"])).all()


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


def test_an_empty_tensor_has_a_time_and_warns_of_nothing() -> None:
    empty = pd.DataFrame({"family": ["elementwise"], "op": ["add"], "B": [0.0], "H": [64.0]})
    model = same_chip_models(load_gpu("A100-PCIE-80GB"))["elementwise"]
    with np.errstate(all="raise"):
        assert model.ratio(empty)[0] == 1.0
