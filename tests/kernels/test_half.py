"""bf16 products of newer GPUs: reading the public tables, the shipped models, and which rows they answer for."""

import json

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from pipeline.answers.gap_models import (
    FallbackModel,
    tensor_core_gemm_model,
)
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.model_files import HALF, check_pack, list_packs
from pipeline.paths import packs_dir
from tests.kernels.shipped import shipped


def products(dtype, size=4096.0):
    one = {"family": "gemm", "op": "linear", "phase": "forward", "dtype": dtype, "B": 1.0}
    return pd.DataFrame([{**one, "M": size, "N": size, "K": size}])


def test_shipped_models_say_how_good_they_are():
    shipped_gpus = set(list_packs(HALF))
    assert {"A100-SXM4-80GB", "B200", "H100", "H200", "L40S"} <= shipped_gpus
    assert shipped_gpus <= set(aiconfigurator.TABLES)
    for gpu in shipped_gpus:
        files = check_pack(f"half/{gpu}")["files"]
        assert sum(entry["bytes"] for entry in files.values()) < 1_000_000
        facts = packs_dir() / "half" / gpu / "kernels" / "gemm" / "family.json"
        found = json.loads(facts.read_text())
        assert found["metrics"]["gmae"] < 0.10 and 0.75 <= found["metrics"]["coverage"] <= 0.85
        assert found["scope"]["dtypes"] == ["bf16"]


def test_half_rows_rest_on_measurements_and_others_on_what_there_was():
    calls = pd.concat(map(products, ("bf16", "fp16", "tf32", "fp32")), ignore_index=True)
    found = load_predictor(load_gpu("H200")).predict(calls)
    assert found["evidence"].tolist() == ["pack", "pack", "transferred", "transferred"]
    brain, half, tf32, full = found["kernel_us"]
    assert brain == half < tf32 < full
    # two operands of 4096 x 4096 at no more than the tensor cores' peak
    assert 2 * 4096.0**3 / brain / 1e3 < load_gpu("H200").peak_gflop_per_s("bf16")


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
        return Estimate.around(time, time, 1.2, time)


def test_a_gpu_s_own_samples_come_first():
    calls = pd.DataFrame({"dtype": ["fp32", "bf16"]})
    for own, times in (("bf16", [1.0, 1.0]), ("fp32", [1.0, 2.0])):
        both = FallbackModel(Fixed("measured", own, 1.0), Fixed("pack", "bf16", 2.0))
        assert both.predict(calls).kernel.tolist() == times
    assert both.evidence_of(calls).tolist() == ["measured", "pack"]


@pytest.mark.parametrize(
    ("gpu", "dtypes"), [("V100", ["fp16"]), ("RTX3090", ["fp16", "bf16", "tf32"])]
)
def test_products_on_tensor_cores_need_no_samples_of_the_gpu(gpu, dtypes):
    """GPUs without half-precision samples of their chip, with an fp32 pack and without."""
    calls = pd.concat(map(products, dtypes), ignore_index=True)
    batched = calls.assign(family="bmm", B=4.0)
    found = shipped(gpu).predict(pd.concat([calls, batched], ignore_index=True))
    assert set(found["evidence"]) == {"transferred"}
    share = 2e-3 * 4096.0**3 / found["kernel_us"][0] / load_gpu(gpu).fp16_gflop_per_s
    assert 0.6 < share < 1.05
    assert (found["p10_us"] < found["kernel_us"]).all()
    assert (found["kernel_us"] < found["p90_us"]).all()


def test_tf32_runs_the_tiles_of_half_precision_and_as_fp32_where_there_is_none():
    calls = pd.concat(map(products, ("bf16", "tf32", "fp32")), ignore_index=True)
    found = load_predictor(load_gpu("A100-SXM4-80GB")).predict(calls)
    assert found["evidence"][:2].tolist() == ["pack", "transferred"]
    assert found["kernel_us"][1] / found["kernel_us"][0] == pytest.approx(2.0, rel=0.05)
    width = found["p90_us"] / found["p10_us"]
    assert width[1] > width[0]
    _, tf32, fp32 = shipped("V100").predict(calls)["kernel_us"]
    assert tf32 == pytest.approx(fp32)
