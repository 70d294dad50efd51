"""Numbers that Lin et al. (HiPC 2022) published: training steps with the errors of their predictions, and mean errors.

The tables lie in `facts/`, and `facts/README.md` says where each number comes from. Nothing was fitted to them.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from evaluation.published.published_errors import NETWORK_METHODS

FACTS = Path(__file__).parent / "facts"

MODELS = {
    "DLRM_default": "dlrm_default", "DLRM_MLPerf": "dlrm_mlperf", "DLRM_DDP": "dlrm_ddp",
    "ResNet50": "resnet50", "Inception-V3": "inception_v3",
}  # fmt: skip
"""Our name of each of their models."""

DLRM_READING_MS = 0.15
"""Largest error, in ms, of a DLRM step that is read from the paper's figure."""

KEYS = ("gpu", "model", "batch_size")


def read_dlrm() -> pd.DataFrame:
    """The 36 DLRM steps.

    Returns:
        A row per step: `KEYS`, `measured_us`, and shares and errors as fractions. `busy` is measured active time over
        measured step, `published_busy` the same ratio of the paper's predictions, and `published_error` the paper's
        predicted step over the measured one, minus 1. The paper's code has no active times. It states the errors of the
        predicted active time against the measured active time and against the measured step, whose quotient is `busy`.
    """
    table = _steps("lin2022_dlrm_steps.csv")
    active, step, kernels_only = (
        1 + table[f"{what}_error_pct"] / 100 for what in ("active", "step", "kernels_only")
    )
    return table[[*KEYS, "measured_us"]].assign(
        busy=kernels_only / active, published_busy=kernels_only / step, published_error=step - 1
    )


def read_cnn() -> pd.DataFrame:
    """The 18 steps of convolutional networks: `KEYS`, `measured_us`, and an absolute error of each of `NETWORK_METHODS`."""
    table = _steps("lin2022_cnn_steps.csv")
    errors = {title: table[name] / 100 for name, title in NETWORK_METHODS.items()}
    return table[[*KEYS, "measured_us"]].assign(**errors)


def read_mean_errors() -> pd.DataFrame:
    """Errors of their DLRM predictions: what, gpu (or `all`), gmae_pct, least_pct, worst_pct."""
    return pd.read_csv(FACTS / "lin2022_errors.csv")


def read_kernel_errors() -> pd.DataFrame:
    """Errors of kernel models that their code prints: family, gpu, method, tables (all, large), gmae_pct, mean_pct."""
    return pd.read_csv(FACTS / "lin2022_kernels.csv")


def _steps(name: str) -> pd.DataFrame:
    table = pd.read_csv(FACTS / name)
    return table.assign(model=table["model"].map(MODELS), measured_us=1e3 * table["batch_time_ms"])
