"""Small tables of calls and samples for the kernel tests."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import learned_variants as learned
from pipeline.kernels import networks as trees
from pipeline.kernels.physics import Physics


@pytest.fixture(scope="session")
def v100():
    return load_gpu("V100")


@pytest.fixture(scope="session")
def gemm_samples(v100):
    """Made-up latencies that follow physics with a floor of 60 us: what a fit must be able to learn back."""
    rng = np.random.default_rng(1)
    rows = 240
    sizes = {
        name: np.exp(rng.uniform(np.log(64), np.log(4096), rows)).astype(int)
        for name in ("M", "N", "K")
    }
    table = pd.DataFrame({"op": "linear", "B": 1, **sizes})
    calls = table.assign(family="gemm", phase="forward", dtype="fp32")
    kernel = 1.3 * Physics.of(v100).kernel_us("gemm", calls)
    table["latency_us"] = np.maximum(60.0, 14.0 + kernel) * np.exp(rng.normal(0, 0.01, rows))
    return table


@pytest.fixture(scope="module")
def small_networks():
    """Few optimiser steps: for tests of the machinery, not of the last percent."""
    with pytest.MonkeyPatch.context() as patch:
        small = replace(learned.NETWORK, width=32, layers=2, frequencies=2, steps=80)
        patch.setattr(learned, "NETWORK", small)
        patch.setattr(learned, "PAPER_STEPS", 30)
        patch.setattr(trees, "REGRESSION_ROUNDS", 60)
        yield
