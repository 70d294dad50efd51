"""The utilisation model: learns a law, carries it to a GPU it never saw, and stays monotone; probes calibrate it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.training.left_out_gpu import shortened
from evaluation.training.recipes import RECIPES
from evaluation.training.utilisation_train import train_utilisation
from pipeline.errors import InputError, PackError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.probes import calibrate
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.utilisation import UtilisationModel
from tests.kernels.better_gpus import improved


@pytest.fixture(scope="module")
def model() -> UtilisationModel:
    if "gemm" not in load_models():
        pytest.skip("no cross-GPU models under packs/transfer")
    return load_models()["gemm"]


def _held_out(samples: pd.DataFrame) -> pd.DataFrame:
    return samples[samples["gpu"] == "V100"].reset_index(drop=True)


@pytest.mark.nightly
def test_a_law_learned_on_three_gpus_holds_on_a_fourth_and_probes_remove_a_factor(
    gemm_samples: pd.DataFrame,
) -> None:
    rows, gpu = _held_out(gemm_samples), load_gpu("V100")
    trained = gemm_samples[gemm_samples["gpu"] != "V100"]
    model = train_utilisation(trained, "gemm", shortened(RECIPES["gemm"], 250))
    _, latency = model.kernel_and_latency(rows, gpu)
    assert np.median(np.abs(latency / rows["latency_us"] - 1)) < 0.10
    slow = rows.assign(latency_us=rows["latency_us"] * 1.6)
    _, calibrated, _ = calibrate(model, slow.sample(10, random_state=0), gpu).predict(slow)
    assert np.median(np.abs(calibrated / slow["latency_us"] - 1)) < 0.12


WINDOW = {"kernel_size": 3.0, "stride": 1.0, "padding": 1.0}
SIZES = {
    "gemm": ("linear", {"B": 1, "M": 16384, "N": 16384, "K": 16384}),
    "conv2d_forward": (
        "conv",
        {"B": 64, "in_channels": 2048, "out_channels": 2048, "input_size": 200},
    ),
}
"""An op of a family, and the largest sizes that are drawn."""


@pytest.mark.parametrize("family", SIZES)
@settings(max_examples=40)
@given(
    gpu=st.sampled_from(["V100", "T4", "P4", "L4", "H100"]),
    what=st.sampled_from(["dram", "clock", "fp32", "power"]),
    factor=st.floats(1.0, 8.0),
    shares=st.tuples(*[st.floats(0.0, 1.0)] * 4),
)
def test_more_bandwidth_throughput_clock_or_power_is_never_slower(
    family: str, gpu: str, what: str, factor: float, shares: tuple[float, ...]
) -> None:
    name, largest = SIZES[family]
    sizes = np.ceil(3 + np.array(shares) * (np.array(list(largest.values())) - 3))
    call = pd.DataFrame([sizes], columns=list(largest)).assign(op=name, **WINDOW)
    before, after = (
        load_models()[family].kernel_and_latency(call, improved(load_gpu(gpu), what, by))
        for by in (1.0, factor)
    )
    assert after[0][0] <= before[0][0] * (1 + 1e-9) and after[1][0] <= before[1][0] * (1 + 1e-9)


def test_a_saved_model_predicts_the_same(
    model: UtilisationModel, gemm_samples: pd.DataFrame, tmp_path: Path
) -> None:
    model.save(tmp_path / "gemm.safetensors")
    loaded = UtilisationModel.load(tmp_path / "gemm.safetensors")
    rows, gpu = _held_out(gemm_samples), load_gpu("H100")
    assert loaded.kernel_and_latency(rows, gpu)[1] == pytest.approx(
        model.kernel_and_latency(rows, gpu)[1]
    )
    assert loaded.provenance == model.provenance


def test_a_damaged_model_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "gemm.safetensors"
    path.write_bytes(b"not a model")
    with pytest.raises(PackError, match=r"gemm\.safetensors"):
        UtilisationModel.load(path)


def test_training_without_samples_says_so(gemm_samples: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="no samples of family softmax"):
        train_utilisation(gemm_samples, "softmax")


def test_an_empty_tensor_takes_the_floor_without_a_warning() -> None:
    empty, shipped = (
        pd.DataFrame({"op": ["add"], "B": 0.0, "H": 64.0}),
        load_models()["elementwise"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel, latency = shipped.kernel_and_latency(empty, load_gpu("H100"))
    assert 0.0 <= kernel[0] < 1e-3 and latency[0] == pytest.approx(
        shipped.floors_us["add"], rel=0.1
    )
