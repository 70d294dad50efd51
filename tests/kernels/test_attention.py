"""Fused attention: the formula's limits, what a fit finds, which calls and GPUs it answers, and held-out sizes."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from evaluation.training.write_packs import write_fitted
from pipeline.answers.gap_models import FILE, attention_model, kernel_of, nearest, read_fitted
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.estimate import Quantiles
from pipeline.kernels.fused_attention import (
    AttentionModel,
    Constants,
    FittedAttention,
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
    long = kernel("H100", calls(256, 8192, 128, True), calls(256, 8192, 128, False))
    short = kernel("H100", calls(64, 64, 128, True), calls(64, 64, 128, False))
    assert 1.6 < long[1] / long[0] < 2.2
    assert short[1] / short[0] < 1.3


def test_more_heads_tokens_and_width_never_take_less():
    for gpu in ("A100-SXM4-80GB", "L40S", "H100", "B200", "RTX3090"):
        for phase in ("forward", "backward"):
            for causal in (True, False):
                grown = [
                    [calls(heads, 512, 64, causal, phase=phase) for heads in range(1, 700, 13)],
                    [calls(64, tokens, 64, causal, phase=phase) for tokens in range(16, 5000, 48)],
                ]
                for tables in grown:
                    assert np.all(np.diff(kernel(gpu, *tables)) >= -1e-9), (gpu, phase, causal)


def test_a_backward_takes_between_two_and_a_half_and_five_forwards():
    for tokens in (512, 2048, 8192):
        forward, back = kernel(
            "L40S", calls(256, tokens, 64), calls(256, tokens, 64, phase="backward")
        )
        assert 2.5 < back / forward < 5.0


def test_a_serving_cache_s_write_is_no_part_of_a_prediction():
    peak = np.array([1e3 * H100.peak_gflop_per_s("bf16")])
    table = calls(2048, 128, 128, True)
    with_write = Shape.of(table.assign(attributes='{"causal":true,"cached":true}'))
    constants = Constants(cache_start_us=2.0, cache_share=1.0, l2_edge=0.01)
    bare = attention_us(constants, (128.0, 128.0), H100, peak, Shape.of(table))
    both = attention_us(constants, (128.0, 128.0), H100, peak, with_write)
    moved = 4 * 2048 * 128 * 128 * 2  # q, k, v, o: the cache reads and writes as many bytes
    assert both - bare == pytest.approx(2.0 + moved / (1e3 * H100.peak_dram_gb_per_s()), rel=1e-6)


def test_gpus_take_the_kernels_that_pytorch_runs_there():
    kinds = {
        name: kernel_of(load_gpu(name))
        for name in ("V100", "T4", "A10", "A100-PCIE-40GB", "L4", "H200", "B200", "MI250")
    }
    assert kinds == {
        "V100": None,
        "T4": None,
        "A10": "flash2",
        "A100-PCIE-40GB": "flash2",
        "L4": "flash2",
        "H200": "cudnn",
        "B200": "cudnn",
        "MI250": None,
    }
    measured = read_fitted(packs_dir() / FILE)
    took = {
        name: nearest(load_gpu(name), measured).name
        for name in ("A10", "RTX3090", "A100-PCIE-40GB", "L4", "H100-PCIe")
    }
    assert took == {
        "A10": "L40S",
        "RTX3090": "L40S",
        "A100-PCIE-40GB": "A100-SXM4-80GB",
        "L4": "L40S",
        "H100-PCIe": "H100",
    }
    # a desktop Blackwell runs FlashAttention-2, whatever its architecture is called
    assert kernel_of(replace(load_gpu("B200"), compute_capability=12.0)) == "flash2"


def test_evidence_follows_gpu_phase_kernel_and_dtype():
    table = pd.concat(
        [
            calls(),
            calls(phase="backward"),
            calls(dtype="fp32"),
            calls(op="efficient"),
            calls(width=512),
            calls(dtype="fp16"),
        ],
        ignore_index=True,
    )
    # the samples of an H100 are of FlashAttention-3, which is as fast as cuDNN's kernel; PyTorch's is FlashAttention-2
    cudnn = (
        load_predictor(H100)
        .predict(table.assign(op=table["op"].replace("flash", "cudnn")))["evidence"]
        .tolist()
    )
    assert cudnn == ["pack", "transferred", "roofline", "transferred", "roofline", "pack"]
    assert set(load_predictor(H100).predict(table)["evidence"]) == {"transferred", "roofline"}
    assert load_predictor(load_gpu("A10")).predict(table)["evidence"].tolist() == (
        ["transferred", "transferred", "roofline", "transferred", "roofline", "transferred"]
    )
    assert set(load_predictor(load_gpu("V100")).predict(table)["evidence"]) == {"roofline"}
    assert attention_model(load_gpu("V100")) is None


def test_a_mask_that_is_data_hides_no_work_and_is_read():
    """Regression: the memory-efficient kernel was predicted by a roofline, faster than the fused kernel."""
    table = [calls(64, 2048), calls(64, 2048, op="efficient")]
    masks = [json.dumps({"causal": False, "mask": size}) for size in (8 << 20, 1 << 30)]
    table += [calls(64, 2048, op="efficient", attributes=said) for said in masks]
    plain, other, small, large = kernel("A100-SXM4-80GB", *table)
    assert plain == other <= small < large
    assert kernel("A100-SXM4-80GB", calls(64, 2048, causal=True))[0] < plain
    table[0] = calls(64, 2048, op="cudnn")
    width = [
        load_predictor(H100).predict(each)[["p10_us", "p90_us"]].to_numpy()[0] for each in table[:2]
    ]
    assert width[1][1] / width[1][0] > 1.2 * width[0][1] / width[0][0]


def test_intervals_widen_where_nothing_was_measured():
    def width(gpu, table):
        found = load_predictor(load_gpu(gpu)).predict(table)
        return float(np.log(found["p90_us"] / found["p10_us"])[0])

    own = width("H100", calls())
    assert width("H100", calls(phase="backward")) > own
    assert width("H100-PCIe", calls()) > own
    # the A100's samples have one head width and causal masks only
    assert width("A100-SXM4-80GB", calls(width=64, causal=True)) > width(
        "A100-SXM4-80GB", calls(width=128, causal=True)
    )


def test_a_faster_clock_or_more_bandwidth_moves_what_it_bounds():
    model = attention_model(H100)
    long, short = calls(256, 8192, 128), calls(4096, 64, 64)
    for table, field, least in (
        (long, "bf16_gflop_per_s", 1.8),
        (short, "measured_dram_gb_per_s", 1.05),
    ):
        faster = AttentionModel(
            replace(H100, **{field: 2.0 * getattr(H100, field)}), H100, model.fitted
        )
        assert least < model.predict(table).kernel[0] / faster.predict(table).kernel[0] <= 2.01


def test_constants_read_from_a_file_equal_those_written(tmp_path):
    path = tmp_path / FILE
    fitted = {
        "H100": FittedAttention(
            Constants(), (128.0, 64.0), Quantiles.constant(1.1), (64.0, 256.0), True
        )
    }
    write_fitted(path, fitted, {"source": "test"})
    back = read_fitted(path)["H100"]
    assert back.constants == Constants() and back.tiles == (128.0, 64.0) and back.open
