"""Constants of fused attention: what a fit finds, which rows it reads, and held-out sizes."""

import json

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from evaluation.training.fused_attention_fit import fit_constants
from pipeline.answers.gap_models import attention_model
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fused_attention import Constants, Shape, attention_us

H100 = load_gpu("H100")


def drawn(constants, gpu=H100, tiles=(128.0, 128.0)):
    """Times that follow the formula exactly."""
    axes = {
        "heads": (8, 16),
        "samples": (1, 4, 16),
        "M": (64, 128, 256, 512, 1024, 2048, 4096, 8192),
        "K": (64, 128),
        "causal": (True, False),
    }
    table = pd.MultiIndex.from_product(axes.values(), names=list(axes)).to_frame(index=False)
    said = ['{"causal":true,"cached":true}' if causal else "{}" for causal in table["causal"]]
    table = table.assign(B=table["heads"] * table["samples"], N=table["M"], attributes=said)
    table = table.assign(dtype="bf16", phase="forward")
    peak = np.full(len(table), 1e3 * gpu.peak_gflop_per_s("bf16"))
    return table.assign(kernel_us=attention_us(constants, tiles, gpu, peak, Shape.of(table)))


def test_a_fit_finds_the_constants_behind_the_times():
    shares = {"share_64": 0.45, "share_128": 0.7, "open_gain": 1.25}
    truth = Constants(start_us=4.0, tile_us=1.0, diagonal_keys=64.0, **shares)
    found = fit_constants(drawn(truth), H100, (128.0, 128.0), Constants())
    assert {name: getattr(found, name) for name in shares} == pytest.approx(shares, rel=0.03)
    assert found.start_us == pytest.approx(4.0, rel=0.15)


def test_public_rows_are_plain_attention_in_microseconds(tmp_path):
    plain = {"kernel_source": "vllm_flash_attn_fa2", "batch_size": 2, "isl": 128, "num_heads": 8}
    plain |= {"head_dim": 64, "attn_dtype": "bfloat16", "latency": 0.01, "num_key_value_heads": 8}
    plain |= {"kv_cache_dtype": "bfloat16", "step": 0, "window_size": 0}
    wrong = {"kernel_source": "triton", "num_key_value_heads": 1, "window_size": 128}
    wrong |= {"step": 5, "head_dim": 512, "attn_dtype": "fp8"}
    others = [{**plain, "batch_size": 4, name: value} for name, value in wrong.items()]
    table = pd.DataFrame([plain, {**plain, "latency": 0.03}, *others])
    dense = {"kernel_source": "vllm_vit_flash_attn_fa2", "head_dim": 80, "latency": 0.005}
    images = pd.DataFrame([plain | dense]).drop(columns=["step", "num_key_value_heads"])
    for name, _, causal in aiconfigurator.ATTENTION["L40S"]:
        path = tmp_path / f"{name}_attention_perf.parquet"
        path.parent.mkdir(parents=True)
        (table if causal else images).to_parquet(path)
    found = aiconfigurator.read_attention("L40S", tmp_path)
    sizes = found[["B", "heads", "M", "N", "K"]].to_numpy().tolist()
    assert sizes == [[16, 8, 128, 128, 80], [16, 8, 128, 128, 64]]
    assert found["kernel_us"].tolist() == pytest.approx([5.0, 20.0])
    said = [json.loads(text) for text in found["attributes"]]
    assert said == [{"causal": False}, {"causal": True, "cached": True}]


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
