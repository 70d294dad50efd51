"""Constants of fused attention: what a fit finds, which rows it reads, and held-out sizes."""

import json

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from evaluation.training import fused_attention_fit as attention_fit
from evaluation.training.fused_attention_fit import fit_constants, folds_of, held_out
from pipeline.answers.gap_models import attention_model
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fused_attention import Constants, Shape, attention_us

H100 = load_gpu("H100")


def drawn(constants, gpu=H100, tiles=(128.0, 128.0)):
    """Times that follow the formula exactly."""
    rows = [
        {
            "heads": heads,
            "B": heads * samples,
            "M": tokens,
            "N": tokens,
            "K": width,
            "dtype": "bf16",
            "attributes": json.dumps({"causal": causal, "cached": causal}),
            "phase": "forward",
        }
        for heads in (8, 16)
        for samples in (1, 4, 16)
        for tokens in (64, 128, 256, 512, 1024, 2048, 4096, 8192)
        for width in (64, 128)
        for causal in (True, False)
    ]
    table = pd.DataFrame(rows)
    peak = np.full(len(table), 1e3 * gpu.peak_gflop_per_s("bf16"))
    return table.assign(kernel_us=attention_us(constants, tiles, gpu, peak, Shape.of(table)))


def test_a_fit_finds_the_constants_behind_the_times():
    truth = Constants(
        start_us=4.0, share_64=0.45, share_128=0.7, open_gain=1.25, tile_us=1.0, diagonal_keys=64.0
    )
    found = fit_constants(drawn(truth), H100, (128.0, 128.0), Constants())
    for name, tolerance in (
        ("share_64", 0.03),
        ("share_128", 0.03),
        ("open_gain", 0.03),
        ("start_us", 0.15),
    ):
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


def test_public_rows_are_plain_attention_in_microseconds(tmp_path):
    plain = {
        "kernel_source": "vllm_flash_attn_fa2",
        "batch_size": 2,
        "isl": 128,
        "num_heads": 8,
        "head_dim": 64,
        "attn_dtype": "bfloat16",
        "latency": 0.01,
        "num_key_value_heads": 8,
        "kv_cache_dtype": "bfloat16",
        "step": 0,
        "window_size": 0,
    }
    wrong = [
        {"kernel_source": "triton"},
        {"num_key_value_heads": 1},
        {"kv_cache_dtype": "fp8"},
        {"window_size": 128},
        {"step": 5},
        {"isl": 1},
        {"head_dim": 512},
        {"attn_dtype": "fp8"},
    ]
    table = pd.DataFrame(
        [plain, {**plain, "latency": 0.03}, *({**plain, "batch_size": 4, **one} for one in wrong)]
    )
    dense = pd.DataFrame(
        [{**plain, "kernel_source": "vllm_vit_flash_attn_fa2", "head_dim": 80, "latency": 0.005}]
    )
    for (name, _, causal), rows in zip(
        aiconfigurator.ATTENTION["L40S"], (table, dense), strict=True
    ):
        path = tmp_path / f"{name}_attention_perf.parquet"
        path.parent.mkdir(parents=True)
        (rows if causal else rows.drop(columns=["step", "num_key_value_heads"])).to_parquet(path)
    found = aiconfigurator.read_attention("L40S", tmp_path)
    assert found[["B", "heads", "M", "N", "K"]].to_numpy().tolist() == [
        [16, 8, 128, 128, 80],
        [16, 8, 128, 128, 64],
    ]
    assert found["kernel_us"].tolist() == pytest.approx([5.0, 20.0])
    assert [json.loads(text) for text in found["attributes"]] == [
        {"causal": False},
        {"causal": True, "cached": True},
    ]


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
