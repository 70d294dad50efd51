"""Small tables of errors; and fixtures of other rooms: tables of a grid, samples of a known law, a GPU."""

from __future__ import annotations

import pandas as pd
import pytest

from evaluation.checks.method_names import FULL, KERNEL_SUM, TRACKER_METHOD
from tests.kernels.conftest import v100
from tests.show.conftest import artifacts, models, summary
from tests.transfer.conftest import gemm_samples

__all__ = ["artifacts", "gemm_samples", "models", "summary", "v100"]


@pytest.fixture
def error_tables() -> dict[str, pd.DataFrame]:
    """Small tables of errors, by what they are of."""
    pairs = pd.DataFrame(
        {
            "family": "gemm",
            "origin": ["V100", "T4"],
            "destination": ["T4", "V100"],
            "method": "auto",
            "mape": [10.0, 20.0],
            "gmae": [5.0, 9.0],
            "rows": 30,
        }
    )
    moved = pd.concat(
        pd.DataFrame(
            {
                "model": "bert_large",
                "origin": ["V100", "T4"],
                "destination": ["T4", "V100"],
                "method": method,
                "measured_us": 1e5,
                "predicted_us": predicted,
                "error": [us / 1e5 - 1 for us in predicted],
            }
        )
        for method, predicted in ((TRACKER_METHOD, [1.1e5, 8e4]), ("wave", [1.5e5, 5e4]))
    )
    return {"transfer": pairs, "models_moved": moved, "replays": spans(), "passes": passes()}


def spans() -> pd.DataFrame:
    """Two iterations of one trace by two methods: off by 10 and 20 %, and by half."""
    rows = [
        ("v100_ddp", "V100", method, number, 1000.0, 1000.0 * factor)
        for method, factors in ((FULL, (1.1, 0.8)), (KERNEL_SUM, (0.5, 0.5)))
        for number, factor in enumerate(factors)
    ]
    return pd.DataFrame(
        rows, columns=["trace", "device", "method", "number", "measured_us", "predicted_us"]
    )


def passes() -> pd.DataFrame:
    """Three passes on two GPUs."""
    return pd.DataFrame(
        {
            "gpu": ["V100", "V100", "T4"],
            "model": "bert_large",
            "mode": "inference",
            "seq_len": 512,
            "batch_size": [8, 16, 8],
            "measured_us": [2e5, 4e5, 7e5],
            "predicted_us": [2.2e5, 4e5, 7.7e5],
            "p10_us": [2.1e5, 3e5, 6e5],
            "p90_us": [2.4e5, 5e5, 9e5],
        }
    )
