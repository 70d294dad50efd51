"""Small tables of samples that a known law makes, so that tests need no public data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s

GPUS = ("V100", "P100", "T4", "A100-PCIE-40GB")


def law_samples(family: str, gpus: tuple[str, ...] = GPUS, rows: int = 300) -> pd.DataFrame:
    """Latencies of a made-up law (70 % of arithmetic, 80 % of bandwidth, 30 us floor): not measurements."""
    random = np.random.default_rng(3)
    size = np.exp(random.uniform(np.log(64), np.log(4096), (rows, 3))).round()
    parts = []
    for gpu in gpus:
        spec = load_gpu(gpu)
        if family == "gemm":
            dims = {"B": np.ones(rows), "M": size[:, 0], "N": size[:, 1], "K": size[:, 2]}
            flops = 2 * size.prod(axis=1)
            traffic = 4 * (
                size[:, 0] * size[:, 1] + size[:, 1] * size[:, 2] + size[:, 0] * size[:, 2]
            )
            op = "linear"
        else:
            dims, flops, op = {"B": size[:, 0], "H": size[:, 1]}, np.zeros(rows), "relu"
            traffic = 8 * size[:, 0] * size[:, 1]
        kernel = arithmetic_us(spec, flops) / 0.7 + traffic / (
            0.8e3 * sustained_dram_gb_per_s(spec)
        )
        latency = np.maximum(30.0, 16.0 + kernel)
        facts = {
            "gpu": gpu,
            "family": family,
            "op": op,
            "phase": "forward",
            "dtype": "fp32",
            "source": "law",
        }
        parts.append(pd.DataFrame({**facts, "latency_us": latency, **dims}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="session")
def gemm_samples() -> pd.DataFrame:
    return law_samples("gemm")


@pytest.fixture(scope="session")
def relu_samples() -> pd.DataFrame:
    return law_samples("elementwise")
