"""Fused attention: the formula's limits, what a fit finds, which calls and GPUs it answers, and held-out sizes."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.gap_models import FILE, kernel_of, nearest, read_fitted
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fused_attention import (
    Constants,
    Shape,
    attention_us,
)
from pipeline.paths import packs_dir

H100 = load_gpu("H100")


def calls(heads=256, tokens=1024, width=64, causal=False, **changes):
    row = {
        "family": "attention",
        "op": "flash",
        "phase": "forward",
        "dtype": "bf16",
        "B": heads,
        "M": tokens,
        "N": tokens,
        "K": width,
        "attributes": json.dumps({"causal": causal}),
    }
    return pd.DataFrame([{**row, **changes}])


def kernel(gpu, *tables):
    return (
        load_predictor(load_gpu(gpu))
        .predict(pd.concat(tables, ignore_index=True))["kernel_us"]
        .to_numpy()
    )


def test_a_long_sequence_runs_at_the_sustained_share_of_the_peak():
    constants = Constants(share_128=0.6, open_gain=1.0, waves=0.0)
    peak = np.array([1e3 * H100.peak_gflop_per_s("bf16")])
    for causal, work in ((False, 1.0), (True, 0.5)):
        table = calls(512, 16384, 128, causal)
        time = attention_us(constants, (128.0, 128.0), H100, peak, Shape.of(table))[0]
        flops = 4 * 512 * 16384**2 * 128 * work
        assert flops / time / peak[0] == pytest.approx(0.6, rel=0.03)


def test_a_mask_halves_long_sequences_and_not_short_ones():
    sizes = ((256, 8192), (64, 64))
    masked, every = (
        kernel("H100", *(calls(*size, 128, causal) for size in sizes)) for causal in (True, False)
    )
    long, short = every / masked
    assert 1.6 < long < 2.2 and short < 1.3


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "H100"])
def test_more_heads_and_tokens_never_take_less(gpu, phase):
    for causal in (True, False):
        heads = [calls(heads, 512, 64, causal, phase=phase) for heads in range(1, 700, 13)]
        tokens = [calls(64, tokens, 64, causal, phase=phase) for tokens in range(16, 5000, 48)]
        for tables in (heads, tokens):
            assert np.all(np.diff(kernel(gpu, *tables)) >= -1e-9), causal


@pytest.mark.parametrize("tokens", [512, 8192])
def test_a_backward_takes_between_two_and_a_half_and_five_forwards(tokens):
    phases = (calls(256, tokens, phase=phase) for phase in ("forward", "backward"))
    forward, back = kernel("L40S", *phases)
    assert 2.5 < back / forward < 5.0


def test_gpus_take_the_kernels_that_pytorch_runs_there():
    for names, kind in (
        (("V100", "T4", "MI250"), None),
        (("A10", "A100-PCIE-40GB", "L4"), "flash2"),
        (("H200", "B200"), "cudnn"),
    ):
        assert {kernel_of(load_gpu(name)) for name in names} == {kind}
    measured = read_fitted(packs_dir() / FILE)
    for name, other in (
        ("RTX3090", "L40S"),
        ("A100-PCIE-40GB", "A100-SXM4-80GB"),
        ("L4", "L40S"),
        ("H100-PCIe", "H100"),
    ):
        assert nearest(load_gpu(name), measured).name == other
    # a desktop Blackwell runs FlashAttention-2, whatever its architecture is called
    assert kernel_of(replace(load_gpu("B200"), compute_capability=12.0)) == "flash2"


def test_evidence_follows_gpu_phase_kernel_and_dtype():
    changes = ({}, {"phase": "backward"}, {"dtype": "fp32"}, {"width": 512}, {"dtype": "fp16"})
    table = pd.concat([calls(**change) for change in changes], ignore_index=True)

    def evidence(gpu, **changed):
        return load_predictor(load_gpu(gpu)).predict(table.assign(**changed))["evidence"].tolist()

    # the samples of an H100 are of FlashAttention-3, which is as fast as cuDNN's kernel; PyTorch's is FlashAttention-2
    moved = ["transferred", "transferred", "roofline", "roofline", "transferred"]
    assert evidence("H100", op="cudnn") == ["pack", *moved[1:4], "pack"]
    assert evidence("H100") == evidence("A10") == moved
    assert set(evidence("H100", op="efficient")[:2]) == {"transferred"}
    assert set(evidence("V100")) == {"roofline"}


def test_a_mask_that_is_data_hides_no_work_and_is_read():
    """Regression: the memory-efficient kernel was predicted by a roofline, faster than the fused kernel."""
    masks = [json.dumps({"causal": False, "mask": size}) for size in (8 << 20, 1 << 30)]
    efficient = [calls(64, 2048, op="efficient", attributes=said) for said in masks]
    efficient.insert(0, calls(64, 2048, op="efficient"))
    hidden, plain, other, small, large = kernel(
        "A100-SXM4-80GB", calls(64, 2048, causal=True), calls(64, 2048), *efficient
    )
    assert hidden < plain == other <= small < large
    cudnn = calls(64, 2048, op="cudnn")
    assert width_of("H100", efficient[0]) > np.log(1.2) + width_of("H100", cudnn)


def width_of(gpu, table):
    """Of the interval, as a logarithm."""
    found = load_predictor(load_gpu(gpu)).predict(table)
    return float(np.log(found["p90_us"] / found["p10_us"])[0])


def test_intervals_widen_where_nothing_was_measured():
    assert width_of("H100", calls(phase="backward")) > width_of("H100", calls())
    assert width_of("H100-PCIe", calls()) > width_of("H100", calls())
    # the A100's samples have one head width and causal masks only
    other, own = (width_of("A100-SXM4-80GB", calls(width=k, causal=True)) for k in (64, 128))
    assert other > own
