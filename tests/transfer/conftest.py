"""Small tables of samples that a known law makes, so that tests need no public data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s

GPUS = ("V100", "P100", "T4", "A100-PCIE-40GB")


@pytest.fixture(scope="session")
def gemm_samples() -> pd.DataFrame:
    """Latencies of a made-up law (70 % of arithmetic, 80 % of bandwidth, 30 us floor): not measurements."""
    sizes = np.random.default_rng(3).uniform(np.log(64), np.log(4096), (300, 3))
    m, n, k = np.exp(sizes).round().T
    traffic = 4 * (m * n + n * k + m * k)
    parts = []
    for gpu in GPUS:
        spec = load_gpu(gpu)
        bandwidth = 0.8e3 * sustained_dram_gb_per_s(spec)
        kernel = arithmetic_us(spec, 2 * m * n * k) / 0.7 + traffic / bandwidth
        latency = np.maximum(30.0, 16.0 + kernel)
        parts.append(
            pd.DataFrame({"gpu": gpu, "latency_us": latency, "B": 1.0, "M": m, "N": n, "K": k})
        )
    return pd.concat(parts, ignore_index=True).assign(
        family="gemm", op="linear", phase="forward", dtype="fp32", source="law"
    )
