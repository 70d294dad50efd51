"""Products far larger than the samples: what their additional rows, columns and sums take."""

import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.model_files import list_packs, pack_models


def kernel_us(gpu, *sizes):
    rows = [
        {"family": "gemm", "op": "linear", "B": 1, "M": m, "N": n, "K": k, "dtype": "fp32"}
        for m, n, k in sizes
    ]
    folders = [pack_models(gpu)] if gpu in list_packs() else []
    predicted = load_predictor(load_gpu(gpu), folders).predict(pd.DataFrame(rows))
    return predicted["kernel_us"].to_numpy()


@pytest.mark.parametrize("gpu", ["V100", "A100-PCIE-40GB", "RTX2080Ti"])
def test_rows_beyond_the_samples_add_time_at_the_rate_of_the_chip(gpu):
    spec = load_gpu(gpu)
    for n, k in ((128, 1), (128, 64), (256, 256)):
        fewer, more = kernel_us(gpu, (500_000, n, k), (1_000_000, n, k))
        arithmetic_us = 2 * 500_000 * n * k / spec.peak_gflop_per_s("fp32") / 1e3
        bytes_us = 4 * 500_000 * (n + k) / spec.peak_dram_gb_per_s() / 1e3
        assert 0.9 < (more - fewer) / max(arithmetic_us, bytes_us) < 1.8


def test_a_tall_product_takes_as_long_as_a_wide_one():
    tall, wide = kernel_us("RTX2080Ti", (1_000_000, 256, 128), (128, 256, 1_000_000))
    assert tall == pytest.approx(wide, rel=0.1)


@pytest.mark.parametrize(("columns", "measured_us"), [((512, 8), 1561), ((1024, 16), 3073)])
def test_long_sums_of_narrow_products_take_what_others_measured(columns, measured_us):
    """DeepBench (Apache-2.0), V100 with CUDA 10.1, sums of 500,000: means of both layouts of the first matrix."""
    k, m = columns
    assert kernel_us("V100-SXM2-16GB", (m, 500_000, k))[0] == pytest.approx(measured_us, rel=0.2)


@pytest.mark.parametrize("gpu", ["L40S", "H100"])
def test_no_tall_product_moves_its_bytes_faster_than_memory(gpu):
    spec, (m, n, k) = load_gpu(gpu), (2_000_000, 128, 64)
    call = {"family": "gemm", "op": "linear", "B": 1, "M": m, "N": n, "K": k, "dtype": "bf16"}
    us = load_predictor(spec).predict(pd.DataFrame([call]))["kernel_us"].item()
    assert us > (2 * m * (n + k) - spec.l2_bytes) / spec.dram_gb_per_s / 1e3
