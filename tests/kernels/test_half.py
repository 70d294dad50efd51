"""bf16 products of newer GPUs: reading the public tables, the shipped models, and which rows they answer for."""

import json

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from pipeline.answers.gap_models import (
    FallbackModel,
    tensor_core_gemm_model,
    tensor_core_transfer_models,
)
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.who_answers import kernel_predictor
from pipeline.families.tensor_cores import LAUNCH_CYCLES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.model_files import HALF, check_pack, list_packs
from pipeline.paths import packs_dir
from tests.kernels.shipped import shipped


def products(dtype, size=4096.0):
    one = {"family": "gemm", "op": "linear", "phase": "forward", "dtype": dtype, "B": 1.0}
    return pd.DataFrame([{**one, "M": size, "N": size, "K": size}])


def test_shipped_models_say_how_good_they_are():
    assert (
        {"A100-SXM4-80GB", "B200", "H100", "H200", "L40S"}
        <= set(list_packs(HALF))
        <= set(aiconfigurator.TABLES)
    )
    for gpu in list_packs(HALF):
        files = check_pack(f"half/{gpu}")["files"]
        assert sum(entry["bytes"] for entry in files.values()) < 1_000_000
        found = json.loads(
            (packs_dir() / "half" / gpu / "kernels" / "gemm" / "family.json").read_text()
        )
        assert found["metrics"]["gmae"] < 0.10
        assert 0.75 <= found["metrics"]["coverage"] <= 0.85
        assert found["scope"]["dtypes"] == ["bf16"]


def test_half_rows_rest_on_measurements_and_others_on_what_there_was():
    predictor = load_predictor(load_gpu("H200"))
    calls = pd.concat(
        [products(dtype) for dtype in ("bf16", "fp16", "fp32", "tf32")], ignore_index=True
    )
    found = predictor.predict(calls)
    assert found["evidence"].tolist() == ["pack", "pack", "transferred", "transferred"]
    assert (
        found["kernel_us"][0]
        == found["kernel_us"][1]
        < found["kernel_us"][3]
        < found["kernel_us"][2]
    )
    # two operands of 4096 x 4096 at no more than the tensor cores' peak
    assert 2 * 4096.0**3 / found["kernel_us"][0] / 1e3 < load_gpu("H200").peak_gflop_per_s("bf16")


def test_a_card_of_the_same_chip_takes_the_measured_one_s():
    # the measured card's own answer, and its slower sister's
    measured, sister = (
        tensor_core_gemm_model(load_gpu(gpu)) for gpu in ("A100-SXM4-80GB", "A100-PCIE-40GB")
    )
    calls = products("bf16")
    assert (measured.evidence, sister.evidence) == ("pack", "transferred")
    here, there = measured.predict(calls), sister.predict(calls)
    assert here.kernel[0] <= there.kernel[0] < 1.5 * here.kernel[0]
    assert there.p90[0] / there.p10[0] > here.p90[0] / here.p10[0]
    assert tensor_core_gemm_model(load_gpu("V100")) is None


class Fixed(KernelModel):
    """A model that answers one time for one dtype."""

    evidence = ""

    def __init__(self, evidence, dtype, time):
        self.evidence, self.dtype, self.time = evidence, dtype, time

    def covers(self, calls):
        return (calls["dtype"] == self.dtype).to_numpy()

    def predict(self, calls):
        time = np.full(len(calls), self.time)
        return Estimate(time, time, time, time, np.ones(len(calls), dtype=bool), time, time)


def test_a_gpu_s_own_samples_come_first():
    calls = pd.DataFrame({"dtype": ["fp32", "bf16", "fp16"]})
    both = FallbackModel(Fixed("measured", "bf16", 1.0), Fixed("pack", "bf16", 2.0))
    assert both.predict(calls).kernel.tolist() == [1.0, 1.0, 1.0]
    other = FallbackModel(Fixed("measured", "fp32", 1.0), Fixed("pack", "bf16", 2.0))
    assert other.predict(calls).kernel.tolist() == [1.0, 2.0, 1.0]
    assert other.evidence_of(calls).tolist() == ["measured", "pack", "measured"]
    assert other.covers(calls).tolist() == [True, True, False]


def test_products_on_tensor_cores_need_no_samples_of_the_gpu():
    # GPUs without half-precision samples of their chip, with an fp32 pack and without
    for gpu, dtypes in (("V100", ["fp16"]), ("RTX3090", ["bf16", "fp16", "tf32"])):
        predictor = shipped(gpu)
        calls = pd.concat([products(dtype) for dtype in (*dtypes, "fp32")], ignore_index=True)
        found = predictor.predict(
            pd.concat([calls, calls.assign(family="bmm", B=4.0)], ignore_index=True)
        )
        half = (calls["dtype"] != "fp32").tolist() * 2
        assert (found["evidence"][half] == "transferred").all()
        gflop_per_s = 2e-3 * 4096.0**3 / found["kernel_us"][0]
        assert (
            0.6 * load_gpu(gpu).fp16_gflop_per_s
            < gflop_per_s
            < 1.05 * load_gpu(gpu).fp16_gflop_per_s
        )
        assert (found["p10_us"] < found["kernel_us"]).all() and (
            found["kernel_us"] < found["p90_us"]
        ).all()


def test_tf32_runs_the_tiles_of_half_precision_and_as_fp32_where_there_is_none():
    a100 = load_predictor(load_gpu("A100-SXM4-80GB"))
    half, full = (a100.predict(products(dtype)) for dtype in ("bf16", "tf32"))
    assert (half["evidence"][0], full["evidence"][0]) == ("pack", "transferred")
    assert full["kernel_us"][0] / half["kernel_us"][0] == pytest.approx(2.0, rel=0.05)
    assert full["p90_us"][0] / full["p10_us"][0] > half["p90_us"][0] / half["p10_us"][0]
    v100 = shipped("V100")
    tf32, fp32 = (v100.predict(products(dtype))["kernel_us"][0] for dtype in ("tf32", "fp32"))
    assert tf32 == pytest.approx(fp32)


def test_without_the_cross_gpu_model_what_was_fitted_still_answers(monkeypatch):
    for module in ("transfer.shipped_models", "answers.gap_models"):  # each imports it by name
        monkeypatch.setattr(f"pipeline.{module}.TRANSFER", "no such folder")
    found = kernel_predictor(load_gpu("A100-PCIE-40GB"), "auto", None).predict(
        pd.concat([products(dtype) for dtype in ("bf16", "tf32")], ignore_index=True)
    )
    launch = LAUNCH_CYCLES / load_gpu("A100-PCIE-40GB").boost_clock_mhz
    half, tf32 = found["kernel_us"] - launch
    assert tf32 / half == pytest.approx(2.0)
    assert set(tensor_core_transfer_models(load_gpu("A10"))) == set()
