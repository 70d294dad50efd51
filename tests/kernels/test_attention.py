"""Fused attention: the formula's limits, what a fit finds, which calls and GPUs it answers, and held-out sizes."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from evaluation.training import fused_attention_fit as attention_fit
from evaluation.training.fused_attention_fit import fit_constants, folds_of, held_out
from pipeline.answers.gap_models import FILE, attention_model, kernel_of, nearest, read_fitted, write_fitted
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fused_attention import AttentionModel, Constants, FittedAttention, Shape, attention_us
from pipeline.kernels.intervals import Quantiles
from pipeline.paths import packs_dir

H100 = load_gpu("H100")


def calls(heads=256, tokens=1024, width=64, causal=False, **changes):
    row = {"family": "attention", "op": "flash", "phase": "forward", "dtype": "bf16", "B": heads, "M": tokens,
           "N": tokens, "K": width, "attributes": json.dumps({"causal": causal})}  # fmt: skip
    return pd.DataFrame([{**row, **changes}])


def kernel(gpu, *tables):
    return load_predictor(load_gpu(gpu)).predict(pd.concat(tables, ignore_index=True))["kernel_us"].to_numpy()


def drawn(constants, gpu=H100, tiles=(128.0, 128.0)):
    """Times that follow the formula exactly."""
    rows = [
        {"heads": heads, "B": heads * samples, "M": tokens, "N": tokens, "K": width, "dtype": "bf16",
         "attributes": json.dumps({"causal": causal, "cached": causal}), "phase": "forward"}
        for heads in (8, 16) for samples in (1, 4, 16) for tokens in (64, 128, 256, 512, 1024, 2048, 4096, 8192)
        for width in (64, 128) for causal in (True, False)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    peak = np.full(len(table), 1e3 * gpu.peak_gflop_per_s("bf16"))
    return table.assign(kernel_us=attention_us(constants, tiles, gpu, peak, Shape.of(table)))


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
        forward, back = kernel("L40S", calls(256, tokens, 64), calls(256, tokens, 64, phase="backward"))
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
    assert kinds == {"V100": None, "T4": None, "A10": "flash2", "A100-PCIE-40GB": "flash2", "L4": "flash2",
                     "H200": "cudnn", "B200": "cudnn", "MI250": None}  # fmt: skip
    measured = read_fitted(packs_dir() / FILE)
    took = {
        name: nearest(load_gpu(name), measured).name for name in ("A10", "RTX3090", "A100-PCIE-40GB", "L4", "H100-PCIe")
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
    found = load_predictor(H100).predict(table)["evidence"].tolist()
    assert found == ["pack", "transferred", "roofline", "transferred", "roofline", "pack"]
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
    width = [load_predictor(H100).predict(each)[["p10_us", "p90_us"]].to_numpy()[0] for each in table[:2]]
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
    for table, field, least in ((long, "bf16_gflop_per_s", 1.8), (short, "dram_gb_per_s", 1.08)):
        faster = AttentionModel(replace(H100, **{field: 2.0 * getattr(H100, field)}), H100, model.fitted)
        assert least < model.predict(table).kernel[0] / faster.predict(table).kernel[0] <= 2.01


def test_a_fit_finds_the_constants_behind_the_times():
    truth = Constants(start_us=4.0, share_64=0.45, share_128=0.7, open_gain=1.25, tile_us=1.0, diagonal_keys=64.0)
    found = fit_constants(drawn(truth), H100, (128.0, 128.0), Constants())
    for name, tolerance in (("share_64", 0.03), ("share_128", 0.03), ("open_gain", 0.03), ("start_us", 0.15)):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=tolerance), name


def test_held_out_rows_are_predicted_by_fits_that_did_not_see_them(monkeypatch):
    samples = drawn(Constants())
    fold = folds_of(samples)
    assert samples.assign(fold=fold).groupby(["heads", "M"])["fold"].nunique().max() == 1
    assert set(fold) == set(range(attention_fit.FOLDS))
    seen = []

    def spy(rows, gpu, tiles, start):
        seen.append(set(zip(rows["heads"], rows["M"], strict=True)))
        return start

    monkeypatch.setattr(attention_fit, "fit_constants", spy)
    held_out(samples, H100, (128.0, 128.0), Constants())
    every = set(zip(samples["heads"], samples["M"], strict=True))
    left = [every - part for part in seen]
    assert all(left) and set.union(*left) == every and sum(map(len, left)) == len(every)


def test_constants_read_from_a_file_equal_those_written(tmp_path):
    path = tmp_path / FILE
    fitted = {"H100": FittedAttention(Constants(), (128.0, 64.0), Quantiles.constant(1.1), (64.0, 256.0), True)}
    write_fitted(path, fitted, {"source": "test"})
    back = read_fitted(path)["H100"]
    assert back.constants == Constants() and back.tiles == (128.0, 64.0) and back.open


def test_public_rows_are_plain_attention_in_microseconds(tmp_path):
    plain = {"kernel_source": "vllm_flash_attn_fa2", "batch_size": 2, "isl": 128, "num_heads": 8, "head_dim": 64,
             "attn_dtype": "bfloat16", "latency": 0.01, "num_key_value_heads": 8, "kv_cache_dtype": "bfloat16",
             "step": 0, "window_size": 0}  # fmt: skip
    wrong = [{"kernel_source": "triton"}, {"num_key_value_heads": 1}, {"kv_cache_dtype": "fp8"}, {"window_size": 128},
             {"step": 5}, {"isl": 1}, {"head_dim": 512}, {"attn_dtype": "fp8"}]  # fmt: skip
    table = pd.DataFrame([plain, {**plain, "latency": 0.03}, *({**plain, "batch_size": 4, **one} for one in wrong)])
    dense = pd.DataFrame([{**plain, "kernel_source": "vllm_vit_flash_attn_fa2", "head_dim": 80, "latency": 0.005}])
    for (name, _, causal), rows in zip(aiconfigurator.ATTENTION["L40S"], (table, dense), strict=True):
        path = tmp_path / f"{name}_attention_perf.parquet"
        path.parent.mkdir(parents=True)
        (rows if causal else rows.drop(columns=["step", "num_key_value_heads"])).to_parquet(path)
    found = aiconfigurator.read_attention("L40S", tmp_path)
    assert found[["B", "heads", "M", "N", "K"]].to_numpy().tolist() == [[16, 8, 128, 128, 80], [16, 8, 128, 128, 64]]
    assert found["kernel_us"].tolist() == pytest.approx([5.0, 20.0])
    assert [json.loads(text) for text in found["attributes"]] == [{"causal": False}, {"causal": True, "cached": True}]


@pytest.mark.parametrize("gpu", sorted(aiconfigurator.ATTENTION))
def test_shipped_constants_predict_the_public_times(gpu):
    if aiconfigurator.data_dir() is None:
        pytest.skip("aiconfigurator-core is not installed")
    rows = aiconfigurator.read_attention(gpu)
    measured = rows["kernel_us"].to_numpy(dtype=np.float64)
    found = attention_model(load_gpu(gpu)).predict(rows)
    error = np.abs(found.kernel / measured - 1.0)
    assert error.mean() < 0.10 and error[measured > 200].mean() < 0.07
    assert 0.75 <= np.mean((found.p10 <= measured) & (measured <= found.p90)) <= 0.87
