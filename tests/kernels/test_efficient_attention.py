"""The memory-efficient kernel of attention, in fp32 and before Ampere, and the random numbers of dropout."""

import json

import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import converted
from pipeline.kernels.features import Scope
from pipeline.model_files import pack_models

RTX3060 = {
    "name": "RTX3060",
    "architecture": "ampere",
    "compute_capability": 8.6,
    "sms": 28,
    "l2_mib": 3,
    "memory_gib": 12,
    "base_clock_mhz": 1320,
    "boost_clock_mhz": 1777,
    "dram_gb_per_s": 360,
    "fp32_tflop_per_s": 12.74,
    "tf32_tflop_per_s": 12.74,
    "fp16_tflop_per_s": 25.5,
    "pcie_generation": 4,
    "tdp_w": 170,
}


def call(phase, heads, tokens, dtype="fp32", op="efficient", **said):
    sizes = {"B": heads, "M": tokens, "N": tokens, "K": 64, "attributes": json.dumps(said)}
    return {"family": "attention", "op": op, "phase": phase, "dtype": dtype, **sizes}


def kernel_us(gpu, *asked, **said):
    spec = load_gpu(gpu) if isinstance(gpu, str) else GpuSpec.from_mapping(gpu)
    table = pd.DataFrame([call(*asked, **said)])
    return load_predictor(spec).predict(table)["kernel_us"].item()


@pytest.mark.parametrize(
    ("heads", "phase", "measured_us"),
    [
        (256, "forward", 1731),
        (256, "backward", 5022),
        (32, "forward", 236),
        (32, "backward", 640),
    ],
)
def test_attention_with_dropout_takes_what_a_trace_shows(heads, phase, measured_us):
    """luatil/torch-profile (MIT), RTX 3060, fp32, 256 tokens, p = 0.1."""
    assert kernel_us(RTX3060, phase, heads, 256, dropout=True) == pytest.approx(
        measured_us, rel=0.15
    )


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_dropout_costs_a_random_number_for_each_score(phase):
    def us(**said):
        return kernel_us("H100", phase, 256, 1024, "fp16", "flash", **said)

    dropout_us = us(dropout=True) - us()
    assert dropout_us > 0.1 * us()
    assert us(dropout=True, causal=True) - us(causal=True) == pytest.approx(dropout_us / 2)


def test_before_ampere_half_precision_gains_little_from_fusion():
    """Authors of the kernel on a V100: as fast as separate operators forward, a fifth slower backward."""
    product = {"family": "bmm", "op": "bmm", "B": 256, "M": 512, "dtype": "fp16"}
    calls = [
        product | {"N": 64, "K": 512},
        product | {"N": 512, "K": 64},
        {"family": "softmax", "op": "softmax", "B": 256 * 512, "H": 512, "dtype": "fp16"},
    ]
    v100 = load_predictor(load_gpu("V100"), [pack_models("V100")])
    separate = v100.predict(pd.DataFrame(calls))["kernel_us"].sum()
    assert 0.8 < kernel_us("V100", "forward", 256, 512, "fp16", "flash") / separate < 1.2


@pytest.mark.parametrize(
    ("heads", "tokens", "causal", "measured_us"), [(256, 559, True, 113.4), (8, 141, False, 9.1)]
)
def test_attention_of_a_trace_is_the_kernel_that_its_operator_names(
    heads, tokens, causal, measured_us
):
    """H100 traces with FlashAttention-2 (AMD-AGI/TraceLens, MIT), where our samples are of cuDNN's kernel."""
    asked = call("forward", heads, tokens, "bf16", "flash", causal=causal)
    h100 = load_predictor(load_gpu("H100"), [pack_models("H100")])
    found = h100.predict(pd.DataFrame([asked])).iloc[0]
    assert found["kernel_us"] == pytest.approx(measured_us, rel=0.1)
    assert found["p10_us"] <= measured_us <= found["p90_us"]


def test_samples_without_a_mark_do_not_answer_for_calls_that_have_it():
    samples = pd.DataFrame({"family": "attention", "op": "flash", "phase": "forward", "B": [8, 16]})
    samples = samples.assign(dtype="bf16", M=128, N=128, K=64, attributes='{"causal":true}')
    scope = Scope.of("attention", samples, ("B", "M", "N", "K"))
    assert scope.covers(samples).all() and converted(vars(scope), Scope) == scope
    assert not scope.covers(samples.assign(attributes='{"causal":true,"dropout":true}')).any()
